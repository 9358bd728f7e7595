"""A model of random weights with the shapes of Llama 2 7B: quantised, killed and taken up again, and computed.

    python benchmarks/large_quantise.py FOLDER --type q4_0 --layers 32 --kills 2

FOLDER takes the source, f16 in a file for each layer (13.5 GB with 32 layers), and what is made of it. Prints
lines of JSON: the peak memory of the processes that quantise, also of those that were killed, and of one that computes.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from weft.weights import TensorView, write_safetensors

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
COMPUTE = """
import resource, sys, time
from pathlib import Path
import numpy as np
from weft.runtime import Decoder, open_checkpoint
decoder = Decoder(open_checkpoint(Path(sys.argv[1])), context=256, threads=int(sys.argv[2]))
logits = decoder.logits(np.arange(1, 17, dtype=np.int32))
assert np.isfinite(logits).all()
began = time.perf_counter()
decoder.logits(np.arange(1, 3, dtype=np.int32))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def shapes(layer: int | None) -> dict[str, tuple[int, ...]]:
    hidden, inner, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    if layer is None:
        ends = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden)}
        return {**ends, "model.norm.weight": (hidden,)}
    at = f"model.layers.{layer}."
    square = {f"{at}self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
    wide = {f"{at}mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    norms = {f"{at}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    return {**square, **wide, f"{at}mlp.down_proj.weight": (hidden, inner), **norms}


def write_source(folder: Path, layers: int) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    random = (0.02 * np.random.default_rng(0).standard_normal(1 << 24)).astype(np.float16)
    where = {}
    for number in range(layers + 1):
        file, tensors = f"model-{number + 1:05}-of-{layers + 1:05}.safetensors", {}
        for place, (name, shape) in enumerate(shapes(number if number < layers else None).items()):
            count = int(np.prod(shape))
            values = np.resize(np.roll(random, 997 * (7 * number + place)), count).reshape(shape)
            tensors[name] = TensorView.of(values if len(shape) > 1 else np.ones(shape, np.float16))
            where[name] = file
        write_safetensors(folder / file, tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def peak_of(process: subprocess.Popen[bytes], seconds: float | None) -> tuple[int, int]:
    """Wait, and after `seconds` kill -9; the highest memory that was seen, and the exit code."""
    began, highest = time.monotonic(), 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            highest = max([highest, *(1024 * int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)])
        except OSError:
            break
        if seconds is not None and time.monotonic() - began > seconds:
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.2)
    return highest, process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--type", default="q4_0")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--after", type=float, default=60.0, help="seconds before each kill")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    source, output = given.folder / "source", given.folder / f"{given.type}.gguf"
    if not source.exists():
        write_source(source, given.layers)
    run = [sys.executable, "-m", "weft", "quantize", str(source), "-o", str(output), "--type", given.type]
    run += ["--threads", str(given.threads), "--force"]
    for number in range(given.kills + 1):
        began = time.monotonic()
        last = number == given.kills
        with subprocess.Popen(run, stdout=subprocess.DEVNULL) as process:
            peak, code = peak_of(process, None if last else given.after)
        journal = given.folder / f".{output.name}.partial.json"
        done = len(json.loads(journal.read_text())["lost"]) if journal.is_file() else None
        took = round(time.monotonic() - began, 1)
        print(json.dumps({"run": number, "code": code, "peak_bytes": peak, "noted": done, "seconds": took}), flush=True)
    made = subprocess.run(
        [sys.executable, "-c", COMPUTE, str(output), str(given.threads)], check=True, capture_output=True, text=True
    )
    sizes = {"source_bytes": sum(file.stat().st_size for file in source.iterdir()), "bytes": output.stat().st_size}
    print(json.dumps({"computes_in_bytes": int(made.stdout), **sizes}), flush=True)


if __name__ == "__main__":
    main()
