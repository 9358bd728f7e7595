"""What gradients are compared on: tiny bases of several types, changes, lessons, and what is kept of a gradient.

A golden keeps of each trained matrix's gradient its norm and the sums of its elements with random signs. The mean
square of the differences of such sums is, on average, the square of the norm of the gradients' difference.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tiny

from weft.dtype import DTYPES, f32_to_bf16
from weft.graph import Trace
from weft.graph.passes.learn import LowRank
from weft.models import model_module
from weft.nn import Scope, read_config
from weft.nn.step import TracedStep
from weft.runtime import open_checkpoint
from weft.runtime.checkpoint import Checkpoint, Tensor
from weft.train import Lesson
from weft.weights import quantise
from weft.weights.files import TensorView

RANK, SCALE, SIGNS = 2, 0.5, 6
LENGTHS = (9, 2, 45)  # beyond the windows of 37
TYPES = ("bf16", "q8_0", "q4_1", "q4_k")
BLOCK = 256  # columns of whole blocks of every type

# Wide random layers of these multiply what rounding does by thousands, unless their matrices are smaller.
CALMED = ("granitemoehybrid", "qwen3_5_moe_text", "qwen3_next")
OWN_EXPERTS = ("gpt_oss",)  # in forms of their own, which opening a file changes: they stay in f32

# A config of each type with experts; their matrices are trained in cases of their own.
MIXTURES = (
    *("gpt_oss", "granitemoehybrid-experts", "lfm2_moe", "mixtral", "nemotron_h-experts"),
    *("qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next"),
)
OF_EXPERTS = "+experts"  # ends the name of such a case

DECODERS = [name for name, cfg in tiny.CONFIGS.items() if tiny.decodes(cfg)]


def wide(cfg: dict[str, Any]) -> dict[str, Any]:
    """The same model with matrices of 256 columns, in two layers unless the config lists more."""
    sizes = {"hidden_size": BLOCK, "intermediate_size": BLOCK, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {key: BLOCK for key in ("moe_intermediate_size", "shared_expert_intermediate_size") if cfg.get(key)}
    sizes |= {"head_dim": 64} if cfg.get("head_dim") else {}
    sizes |= {"mamba_n_heads": 8, "mamba_d_head": 64} if cfg.get("mamba_n_heads") else {}
    return {**cfg, **sizes}


def cases() -> dict[str, tuple[dict[str, Any], str]]:
    """Every config in f32, and the first of each model_type, made wide, in the other types: name -> config, type."""
    found: dict[str, tuple[dict[str, Any], str]] = {name: (tiny.CONFIGS[name], "f32") for name in DECODERS}
    first: dict[str, str] = {}
    for name in DECODERS:
        first.setdefault(tiny.CONFIGS[name]["model_type"], name)
    for kind, name in first.items():
        found |= {f"{kind}/{dtype}": (wide(tiny.CONFIGS[name]), dtype) for dtype in TYPES}
    found |= {name + OF_EXPERTS: (tiny.CONFIGS[name], "f32") for name in MIXTURES}
    return found | {f"qwen3_moe/{dtype}{OF_EXPERTS}": (wide(tiny.CONFIGS["qwen3_moe"]), dtype) for dtype in TYPES}


def blocks(name: str, shape: tuple[int, ...], seed: int, dtype: str) -> TensorView:
    """Random blocks of q4_k around zero, which no quantiser of weft makes."""
    count = int(np.prod(shape)) // BLOCK
    made = ((tiny.uniform(seed, count * DTYPES[dtype].size_bytes) + 1) * 127.99).astype(np.uint8).reshape(count, -1)
    scales = np.array([1.2e-4, 9e-4], "<f2") * np.float16(8.0 if "embed" in name else 1.0)
    made[:, :4] = scales.view(np.uint8)  # of values, and of minima
    return TensorView(DTYPES[dtype], shape, made)


def stored(cfg: dict[str, Any], dtype: str) -> dict[str, TensorView]:
    """The tensors of the tiny checkpoint; matrices whose rows are whole blocks, in `dtype`."""
    found = {}
    for seed, (name, values) in enumerate(sorted(tiny.weights(cfg).items()), 1):
        if dtype != "f32" and values.ndim == 2 and cfg["model_type"] in CALMED:
            values = values * np.float32(0.5)
        own = ".experts." in name and cfg["model_type"] in OWN_EXPERTS
        if dtype == "f32" or values.ndim < 2 or values.shape[-1] % BLOCK or own:
            found[name] = TensorView.of(values)
        elif dtype == "bf16":
            found[name] = TensorView(DTYPES["bf16"], values.shape, f32_to_bf16(values))
        else:
            found[name] = blocks(name, values.shape, seed, dtype) if dtype == "q4_k" else quantise(values, dtype)
    return found


def checkpoint_of(folder: Path, cfg: dict[str, Any], dtype: str) -> Checkpoint:
    opened = open_checkpoint(tiny.write_folder(folder, cfg))
    if dtype == "f32":
        return opened
    made = {name: Tensor(view) for name, view in stored(cfg, dtype).items()}
    if cfg["model_type"] in OWN_EXPERTS:
        made = {
            name: made[name] if name in made and ".experts." not in name else own
            for name, own in opened.tensors.items()
        }
    return replace(opened, tensors=made)


ROUTERS = (".gate.weight", ".router.weight", ".router.layer.weight")  # of transformers, which are no linear layers


def changes(checkpoint: Checkpoint, name: str = "") -> dict[str, LowRank]:
    """A change of every matrix that rows are multiplied by in the layers, but routers and experts; or of experts only,
    where the name of the case says so."""
    module = model_module(checkpoint.model_type)
    with Trace("products") as trace:
        config = read_config(module.Config, checkpoint.config)
        step = TracedStep(trace, context=256, whole=True)
        trace.output("logits", module.forward(Scope(trace, checkpoint.stored), config, step))
    names = {
        str(instr.inputs[1]): trace.program().table[str(instr.inputs[1])].shape
        for instr in trace.program().body
        if instr.op == "matmul"
    }
    axes = 3 if name.endswith(OF_EXPERTS) else 2
    kept = [name for name, shape in sorted(names.items()) if len(shape) == axes and not name.endswith(ROUTERS)]
    return {name: LowRank(RANK, SCALE) for name in kept if ".layers." in name}


def lessons(cfg: dict[str, Any]) -> list[Lesson]:
    made = []
    for number, length in enumerate(LENGTHS):
        draws = (tiny.uniform(100 + number, length) + 1) / 2
        shares = np.where(draws < 0.6, draws + np.float32(0.1), np.float32(0)).astype(np.float32)
        shares[-1] = 0.5
        made.append(Lesson(tiny.token_ids(cfg, length, seed=11 + number), shares))
    return made


def parameters(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {
        name: tiny.uniform(7919 * seed, int(np.prod(shape))).reshape(shape) * np.float32(0.3)
        for seed, (name, shape) in enumerate(sorted(shapes.items()), 1)
    }


def kept(gradients: dict[str, np.ndarray]) -> np.ndarray:
    """Of each gradient, in the order of names, the norm and sums with random signs: float64 [matrices, 1 + SIGNS]"""
    rows = []
    for seed, (_, value) in enumerate(sorted(gradients.items()), 1):
        flat = np.asarray(value, np.float64).reshape(-1)
        signs = np.sign(tiny.uniform(104729 * seed, SIGNS * flat.size).reshape(SIGNS, -1) + np.float32(1e-9))
        rows.append([np.linalg.norm(flat), *(signs.astype(np.float64) @ flat)])
    return np.asarray(rows)


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """The norm of the difference of the gradients over the wanted one's, from what is kept of them."""
    off = np.mean((found[:, 1:] - wanted[:, 1:]) ** 2, axis=1).sum()
    return float(np.sqrt(off / np.sum(wanted[:, 0] ** 2)))
