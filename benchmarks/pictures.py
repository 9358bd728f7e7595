"""Picture towers of SigLIP-base and CLIP ViT-B/16 shapes, random weights, in weft and its peers, one after another.

python benchmarks/pictures.py FOLDER --peer-python PEER_PYTHON [--shapes siglip,clip] [--batches 1,8] [--rounds 7]

The weights and an ONNX file are written to FOLDER once. Every engine runs in a process of its own and takes turns with
the others, so that all see the same machine; pictures are prepared before the clock runs. Preprocessing is measured
beside Pillow and numpy, on a picture that is decoded. Each line of JSON has the median seconds of a call, the pictures
a second, and the processor's seconds of a call, which other work on the machine changes little where --threads is 1
(waiting threads may spin). ONNX Runtime's int8 is its own dynamic quantisation. The peers' Python needs torch,
transformers, onnx, onnxruntime, openvino and Pillow.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SHAPE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
         "image_size": 224, "patch_size": 16}  # fmt: skip
KINDS = {
    "siglip": {**SHAPE, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    "clip": {**SHAPE, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "projection_dim": 512},
}
SETTINGS = [("weft", "f32"), ("weft", "f16"), ("weft", "bf16"), ("weft", "int8"), ("torch", "f32"), ("torch", "bf16"),
            ("onnxruntime", "f32"), ("onnxruntime", "int8"), ("openvino", "f32"), ("openvino", "f16"),
            ("openvino", "bf16")]  # fmt: skip
PICTURE = (1080, 1920)  # rows and columns of the one that is prepared
Run = Callable[[int], Any]


def shapes(kind: str) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape."""
    cfg: dict[str, Any] = KINDS[kind]
    size, inner, patch = cfg["hidden_size"], cfg["intermediate_size"], cfg["patch_size"]
    places = (cfg["image_size"] // patch) ** 2
    made: dict[str, tuple[int, ...]] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = (outputs, inputs), (outputs,)

    def norm(name: str) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = (size,), (size,)

    for i in range(cfg["num_hidden_layers"]):
        at = f"vision_model.encoder.layers.{i}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{at}.self_attn.{part}", size, size)
        norm(f"{at}.layer_norm1")
        norm(f"{at}.layer_norm2")
        linear(f"{at}.mlp.fc1", inner, size)
        linear(f"{at}.mlp.fc2", size, inner)
    norm("vision_model.post_layernorm")
    at = "vision_model.embeddings"
    made[f"{at}.patch_embedding.weight"] = (size, 3, patch, patch)
    made[f"{at}.position_embedding.weight"] = (places + (kind == "clip"), size)
    if kind == "clip":
        made[f"{at}.class_embedding"] = (size,)
        norm("vision_model.pre_layrnorm")
        return {**made, "visual_projection.weight": (cfg["projection_dim"], size)}
    made[f"{at}.patch_embedding.bias"] = (size,)
    head = "vision_model.head"
    made |= {f"{head}.probe": (1, 1, size), f"{head}.attention.in_proj_weight": (3 * size, size)}
    made[f"{head}.attention.in_proj_bias"] = (3 * size,)
    linear(f"{head}.attention.out_proj", size, size)
    norm(f"{head}.layernorm")
    linear(f"{head}.mlp.fc1", inner, size)
    linear(f"{head}.mlp.fc2", size, inner)
    return made


def write(folder: Path, kind: str) -> None:
    """The tower's weights and config."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": kind, "vision_config": {**KINDS[kind], "model_type": f"{kind}_vision_model"}}
    config |= {"projection_dim": 512} if kind == "clip" else {}
    (folder / "config.json").write_text(json.dumps(config))
    header, at, rng = {}, 0, np.random.default_rng(0)
    for name, shape in shapes(kind).items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with (folder / "model.safetensors.part").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for name, shape in shapes(kind).items():
            values = rng.standard_normal(shape, np.float32) * np.float32(0.03)
            gain = "norm" in name and name.endswith(".weight")
            file.write((values + np.float32(1) if gain else values).tobytes())
    os.replace(folder / "model.safetensors.part", folder / "model.safetensors")


def pixels(count: int) -> np.ndarray:
    """Pictures as peers read them, float32 [count, 3, 224, 224]."""
    return np.random.default_rng(1).standard_normal((count, 3, 224, 224), np.float32)


def patches(image: np.ndarray) -> np.ndarray:
    """The same picture as weft reads it, float32 [196, 768]."""
    return np.ascontiguousarray(image.reshape(3, 14, 16, 14, 16).transpose(1, 3, 0, 2, 4).reshape(196, 768))


def of_weft(folder: Path, kind: str, precision: str, threads: int) -> Run:
    from weft.pictures import Patches
    from weft.runtime import Tower, open_tower

    checkpoint = open_tower(folder)
    assert checkpoint is not None
    tower = Tower(checkpoint, normalise=True, compute=precision, threads=threads)
    given = [Patches(patches(image), 14, 14) for image in pixels(8)]
    return lambda count: tower.vectors(given[:count])


def module_of(folder: Path, kind: str) -> Any:
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection, SiglipVisionConfig, SiglipVisionModel

    made = {
        "clip": (CLIPVisionModelWithProjection, CLIPVisionConfig),
        "siglip": (SiglipVisionModel, SiglipVisionConfig),
    }
    model_class, config_class = made[kind]
    model = model_class(config_class(**KINDS[kind], attn_implementation="sdpa")).eval()
    from safetensors.torch import load_file

    own, given = model.state_dict(), load_file(str(folder / "model.safetensors"))
    named = {
        name: given[name if name in given else f"vision_model.{name}"] for name in own if "position_ids" not in name
    }
    model.load_state_dict(named, strict=False)

    class Vectors(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pictures: Any) -> Any:
            found = self.model(pictures)
            vectors = found.image_embeds if kind == "clip" else found.pooler_output
            return vectors / vectors.norm(dim=-1, keepdim=True)

    return Vectors().eval()


def of_torch(folder: Path, kind: str, precision: str, threads: int) -> Run:
    import torch

    torch.set_num_threads(threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[precision]
    module, given = module_of(folder, kind).to(dtype), torch.from_numpy(pixels(8)).to(dtype)

    def run(count: int) -> Any:
        with torch.inference_mode():
            return module(given[:count]).float().numpy()

    return run


def onnx_file(folder: Path, kind: str) -> str:
    path = folder / "model.onnx"
    if not path.is_file():
        import torch

        part = folder / "part.onnx"
        torch.onnx.export(
            module_of(folder, kind),
            (torch.from_numpy(pixels(2)),),
            str(part),
            input_names=["pictures"],
            output_names=["vectors"],
            dynamic_axes={"pictures": {0: "n"}, "vectors": {0: "n"}},
            opset_version=17,
            dynamo=False,
        )
        os.replace(part, path)
    return str(path)


def int8_file(folder: Path, kind: str) -> str:
    """The ONNX file with weights of int8, whose activations are quantised at every call."""
    path = folder / "model-int8.onnx"
    if not path.is_file():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        part = folder / "part-int8.onnx"
        quantize_dynamic(onnx_file(folder, kind), str(part), op_types_to_quantize=["MatMul", "Gemm"],
                         weight_type=QuantType.QInt8, per_channel=True)  # fmt: skip
        os.replace(part, path)
    return str(path)


def of_onnxruntime(folder: Path, kind: str, precision: str, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    file = int8_file(folder, kind) if precision == "int8" else onnx_file(folder, kind)
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    given = pixels(8)
    return lambda count: session.run(None, {"pictures": given[:count]})[0]


def of_openvino(folder: Path, kind: str, precision: str, threads: int) -> Run:
    import openvino

    config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    core, given = openvino.Core(), pixels(8)
    requests: dict[int, Any] = {}

    def run(count: int) -> Any:
        if count not in requests:
            model = core.read_model(onnx_file(folder, kind))
            model.reshape([count, 3, 224, 224])  # fixed shapes are its faster way
            requests[count] = core.compile_model(model, "CPU", config).create_infer_request()
        requests[count].infer({0: given[:count]}, share_inputs=True)
        return np.array(requests[count].get_output_tensor(0).data)

    return run


def preparing(engine: str, threads: int) -> Run:
    """A decoded picture of 1920 x 1080 to what a SigLIP of 224 pixels reads."""
    picture = np.random.default_rng(2).integers(0, 256, (*PICTURE, 3), np.uint8)
    if engine == "weft":
        from weft.pictures import open_picture, patches_of, read_picture_recipe

        config = {"image_processor_type": "SiglipImageProcessor"}
        recipe = read_picture_recipe(config, {"image_size": 224, "patch_size": 16}, "preprocessor_config.json")
        return lambda count: [patches_of(open_picture(picture), recipe, threads=threads).values for _ in range(count)]
    from PIL import Image

    image = Image.fromarray(picture)

    def one() -> np.ndarray:
        small = np.asarray(image.resize((224, 224), Image.Resampling.BICUBIC))
        scaled = (small.astype(np.float32) * np.float32(1 / 255) - np.float32(0.5)) / np.float32(0.5)
        return patches(np.ascontiguousarray(scaled.transpose(2, 0, 1)))

    return lambda count: [one() for _ in range(count)]


MAKERS = {"weft": of_weft, "torch": of_torch, "onnxruntime": of_onnxruntime, "openvino": of_openvino}


def work(engine: str, kind: str, precision: str, folder: Path, threads: int) -> None:
    """A process of one engine: for each count on its input, the seconds of a call and the first numbers it made."""
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).parent]  # it has a tokenizers.py
    run = preparing(engine, threads) if kind == "prepare" else MAKERS[engine](folder, kind, precision, threads)
    for line in sys.stdin:
        started, worked = time.perf_counter(), time.process_time()
        found = run(int(line))
        took, worked = time.perf_counter() - started, time.process_time() - worked
        print(
            json.dumps(
                {"s": took, "cpu_s": worked, "first": np.asarray(found[0], np.float64).reshape(-1)[:64].tolist()}
            ),
            flush=True,
        )


class Engine:
    """The process of one engine."""

    def __init__(self, python: str, engine: str, kind: str, precision: str, given: argparse.Namespace) -> None:
        self.name, self.precision = engine, precision
        command = [python, __file__, str(given.folder / kind), "--threads", str(given.threads)]
        command += ["--worker", engine, "--kind", kind, "--precision", precision]
        quiet = None if given.loud else subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True
        )

    def ask(self, count: int) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError(f"{self.name} {self.precision} ended: run it with --loud")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(kind: str, settings: list[tuple[str, str]], count: int, given: argparse.Namespace) -> None:
    engines = []
    for name, precision in settings:
        engine = Engine(sys.executable if name == "weft" else given.peer_python, name, kind, precision, given)
        try:
            engine.ask(count)  # loads, exports, packs
            engines.append(engine)
        except RuntimeError as error:
            print(f"left out: {error}", file=sys.stderr)
    times: dict[Any, list[float]] = {engine: [] for engine in engines}
    worked: dict[Any, list[float]] = {engine: [] for engine in engines}
    first: dict[Any, list[float]] = {}
    for _ in range(given.rounds):
        for engine in engines:
            found = engine.ask(count)
            times[engine].append(found["s"])
            worked[engine].append(found["cpu_s"])
            first[engine] = found["first"]
    for engine in engines:
        took, best = statistics.median(times[engine]), min(times[engine])
        row = {"shape": kind, "batch": count, "engine": engine.name, "precision": engine.precision}
        row |= {"threads": given.threads, "median_s": round(took, 5), "least_s": round(best, 5)}
        row |= {"cpu_s": round(statistics.median(worked[engine]), 5), "least_cpu_s": round(min(worked[engine]), 5)}
        away = float(np.abs(np.array(first[engine]) - np.array(first[engines[0]])).max())
        print(json.dumps({**row, "pictures_s": round(count / took, 3), "largest_difference": away}), flush=True)
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--shapes", default="siglip,clip")
    parser.add_argument("--engines", default=",".join(f"{name}:{precision}" for name, precision in SETTINGS))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loud", action="store_true", help="show what the engines say")
    for name in ("worker", "kind", "precision"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.kind, given.precision, given.folder, given.threads)
        return
    settings = [(name, precision) for name, _, precision in (one.partition(":") for one in given.engines.split(","))]
    compare("prepare", [("weft", "f32"), ("pillow", "f32")], 1, given)
    for kind in given.shapes.split(","):
        if not (given.folder / kind / "model.safetensors").is_file():
            write(given.folder / kind, kind)
        for count in map(int, given.batches.split(",")):
            compare(kind, settings, count, given)


if __name__ == "__main__":
    main()
