"""Make gradients.npz: what PyTorch computes in float64 for the cases of tests/train/gradient_cases.py.

python tests/golden/train/make_gradients.py [NAME ...]    (needs torch, transformers and gguf; the package needs none)

Every case's array has in its first row the loss, and then a row for each trained matrix.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), *(str(HERE.parents[1] / part) for part in ("train", "models")), str(HERE.parents[2])]
import gradient_cases  # noqa: E402
import tiny  # noqa: E402
from made_with import note_versions  # noqa: E402

from weft.dtype import bf16_to_f32  # noqa: E402
from weft.train import Learner  # noqa: E402

# The angles of rotations are products in float32, as the models were trained with: here they are rounded to it.
SHORT, COSINE, SINE = torch.float32, torch.Tensor.cos, torch.Tensor.sin
torch.Tensor.cos = lambda angle: COSINE(angle.to(SHORT).double())  # type: ignore[method-assign]
torch.Tensor.sin = lambda angle: SINE(angle.to(SHORT).double())  # type: ignore[method-assign]
# transformers computes norms, softmax and rotations in float32 on purpose; here all of it is to be float64.
torch.float32 = torch.float = torch.float64  # type: ignore[misc]
torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]


def round_unit_norms() -> None:
    """weft divides by a row's length with a norm whose weight, 1 / sqrt(channels), is a float32."""
    for module in [module for name, module in sys.modules.items() if name.startswith("transformers.models.")]:
        plain = getattr(module, "l2norm", None)
        if plain is not None and not hasattr(plain, "rounded"):

            def rounded(x: torch.Tensor, *given: Any, plain: Any = plain, **named: Any) -> torch.Tensor:
                exact = x.shape[-1] ** -0.5
                return plain(x, *given, **named) * (float(np.float32(exact)) / exact)

            rounded.rounded = True  # type: ignore[attr-defined]
            module.l2norm = rounded  # type: ignore[attr-defined]


def values(cfg: dict[str, Any], dtype: str) -> dict[str, np.ndarray]:
    """Every tensor's values in float64, as weft has them: what it adds to a vector, it rounds to float32."""
    found = {}
    for name, view in gradient_cases.stored(cfg, dtype).items():
        if view.dtype.quantised:
            kind = GGMLQuantizationType[view.dtype.name.upper()]
            value = dequantize(view.bytes().reshape(-1), kind).reshape(view.shape)
        elif view.dtype.name == "bf16":
            value = bf16_to_f32(view.bytes().view(np.uint16)).reshape(view.shape)
        else:
            value = view.numpy()
        if value.ndim == 1 and tiny._less_one(cfg, name) and "norm" in name:
            found[name] = (value + np.float32(1)).astype(np.float64) - 1.0
        elif name.endswith("A_log"):
            found[name] = np.log(np.exp(value.astype(np.float64)).astype(np.float32).astype(np.float64))
        else:
            found[name] = value.astype(np.float64)
    return found


def model_of(cfg: dict[str, Any], dtype: str) -> Any:
    made = getattr(transformers, cfg["architectures"][0])
    tensors = values(cfg, dtype)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(cfg))
        save_file(tensors, Path(folder) / "model.safetensors")
        model = made.from_pretrained(
            folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float64
        ).eval()
    model.requires_grad_(False)
    round_unit_norms()
    for name, buffer in model.named_buffers():
        if "inv_freq" in name:
            buffer.copy_(torch.from_numpy(buffer.numpy().astype(np.float32).astype(np.float64)))
    return model


# What the matrices of experts are called in files, and the parameter of transformers that has them all.
ROLES = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": 2, "w2": 2}


def with_experts(model: Any, kind: str, trained: dict[str, torch.Tensor]) -> None:
    """Add the low-rank products to the matrices of all experts."""
    for name in sorted({name.partition(".")[2] for name in trained}):
        stored, _, part = name.removesuffix(":each").partition(":")
        base, _, own = stored.removesuffix(".weight").replace(".each.", ".").rpartition(".")
        role = (0 if part.startswith("0-") else 1) if part else ROLES[own]
        module = model.get_submodule(base.replace(".block_sparse_moe.", ".mlp.") if kind == "mixtral" else base)
        parameter = "down_proj" if role == 2 else "gate_up_proj" if hasattr(module, "gate_up_proj") else "up_proj"
        change = gradient_cases.SCALE * trained["up." + name] @ trained["down." + name]  # [E, outputs, inputs]
        known = getattr(module, parameter)
        more = torch.zeros(known.shape, dtype=torch.float64)
        half = change.shape[1]
        if kind == "gpt_oss":  # [E, inputs, outputs], of gates and ups in turns
            more[:, :, slice(role, None, 2) if role < 2 else slice(None)] = change.transpose(1, 2)
        elif parameter == "gate_up_proj":
            more[:, role * half : (role + 1) * half] = change
        else:
            more[:] = change
        module._parameters.pop(parameter, None)
        setattr(module, parameter, known + more)


def changed(model: Any, kind: str, trained: dict[str, torch.Tensor]) -> None:
    """Add the low-rank products: of a part of a matrix, to its rows alone."""
    if any(".experts." in name for name in trained):
        with_experts(model, kind, trained)
        return
    for name in sorted({name.partition(".")[2] for name in trained}):
        module, _, part = name.partition(":")
        first, end, *period, total = map(int, part.replace("/", "-").split("-")) if part else (0, 0, 0)
        rows = None
        if part:
            every = range(0, total, period[0]) if period else (0,)
            rows = torch.tensor([start + row for start in every for row in range(first, end)])
        down, up = trained["down." + name], trained["up." + name]

        def add(_: Any, given: Any, result: torch.Tensor, down: Any = down, up: Any = up, rows: Any = rows) -> Any:
            more = gradient_cases.SCALE * (given[0] @ down.T) @ up.T
            return result + more if rows is None else result.index_add(-1, rows, more)

        model.get_submodule(module.removesuffix(".weight")).register_forward_hook(add)


def run(name: str, cfg: dict[str, Any], dtype: str) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = gradient_cases.checkpoint_of(Path(folder), cfg, dtype)
        learner = Learner(checkpoint, gradient_cases.changes(checkpoint, name), context=256, backend="reference")
        given, lessons = gradient_cases.parameters(learner.shapes), gradient_cases.lessons(cfg)
        loss, found = learner.gradients(lessons, given, learner.no_gradient())
    trained = {key: torch.from_numpy(value).double().requires_grad_() for key, value in given.items()}
    model = model_of(cfg, dtype)
    changed(model, cfg["model_type"], trained)
    total = torch.zeros((), dtype=torch.float64)
    for lesson in lessons:
        ids = torch.from_numpy(lesson.ids.astype(np.int64))
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        assert logits.dtype == torch.float64
        each = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
        total = total + (each * torch.from_numpy(lesson.shares[1:]).double()).sum()
    total.backward()
    wanted = {key: value.grad.numpy() for key, value in trained.items()}
    kept = gradient_cases.kept(wanted)
    off = gradient_cases.distance(gradient_cases.kept(found), kept)
    exact = float(total.detach())
    print(f"{name}: loss {exact:.6f} off {abs(loss / exact - 1):.1e}, gradient off {off:.1e}", flush=True)
    return np.concatenate([np.full((1, kept.shape[1]), exact), kept])


def main() -> None:
    """Without names, those that are missing."""
    torch.set_num_threads(1)
    path = HERE / "gradients.npz"
    arrays = dict(np.load(path)) if path.exists() else {}
    for name, (cfg, dtype) in gradient_cases.cases().items():
        wanted = any(name.startswith(start) for start in sys.argv[1:]) if sys.argv[1:] else name not in arrays
        if wanted:
            arrays[name] = run(name, cfg, dtype)
            kept = {name: arrays[name] for name in gradient_cases.cases() if name in arrays}
            np.savez_compressed(path, **kept)  # type: ignore[arg-type]
    note_versions(path, "gguf", "numpy", "torch", "transformers")


if __name__ == "__main__":
    main()
