"""Tiny random adapters for the tiny checkpoints: settings and tensors that come from a seed alone, the same in the
tests and in the script that makes goldens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny

from weft.ops.packed import pack
from weft.weights.files import TensorView
from weft.weights.safetensors import write_safetensors

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BERT_ALL = ["query", "key", "value", "dense"]
PEFT: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ALL,
    "bias": "none",
    "lora_dropout": 0.05,
}
PEFT_BERT = {**PEFT, "task_type": "FEATURE_EXTRACTION"}
PATTERNS = {
    "rank_pattern": {"q_proj": 9, "^model.layers.1.mlp.up_proj": 2, "up_proj": 3},
    "alpha_pattern": {"layers.0.self_attn.v_proj": 3, "v_proj": 17},
}

# name -> (base, settings, element type)
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama-plain": ("llama-grouped", PEFT, "f32"),
    "llama-patterns": ("llama-grouped", {**PEFT, **PATTERNS}, "f32"),
    "llama-rslora": ("llama-grouped", {**PEFT, "use_rslora": True, "r": 17}, "f32"),
    "llama-dora": ("llama-grouped", {**PEFT, "use_dora": True}, "f32"),
    "llama-half": ("llama-grouped", {**PEFT, "target_modules": ["q_proj", "mlp.down_proj"]}, "f16"),
    "llama-brain": ("llama-grouped", {**PEFT, "target_modules": r".*\.1\..*(k|up)_proj"}, "bf16"),
    "llama-layer": ("llama-grouped", {**PEFT, "layers_to_transform": [1], "target_modules": ["v_proj"]}, "f32"),
    "llama-head": ("llama-grouped", {**PEFT, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "f32"),
    "llama-head-lora": ("llama-grouped", {**PEFT, "target_modules": ["lm_head", "o_proj"]}, "f32"),
    "llama-head-base": ("llama-grouped", {**PEFT, "target_modules": ["lm_head"]}, "f32"),
    "llama-head-base-dora": ("llama-grouped", {**PEFT, "target_modules": ["lm_head"], "use_dora": True}, "f32"),
    "llama-embed": ("llama-grouped", {**PEFT, "target_modules": ["embed_tokens", "q_proj"]}, "f16"),
    "llama-embed-base": ("llama-grouped", {**PEFT, "target_modules": ["embed_tokens"]}, "f32"),
    "llama-embed-whole": (
        "llama-full-tied",
        {**PEFT, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        "bf16",
    ),
    "llama-tied-head": (
        "llama-full-tied",
        {**PEFT, "target_modules": ["v_proj"], "modules_to_save": ["lm_head"]},
        "f32",
    ),
    "llama-bias-all": (
        "llama-wide-heads-bias",
        {**PEFT, "target_modules": ["q_proj", "up_proj"], "bias": "all"},
        "f32",
    ),
    "llama-bias-lora": ("llama-wide-heads-bias", {**PEFT, "target_modules": ["q_proj"], "bias": "lora_only"}, "f32"),
    "llama-bias-dora": ("llama-wide-heads-bias", {**PEFT, "use_dora": True, "bias": "all"}, "f32"),
    "llama-lora-bias": ("llama-wide-heads-bias", {**PEFT, "lora_bias": True}, "f32"),
    "qwen3-plain": ("qwen3", {**PEFT, "target_modules": "all-linear"}, "f32"),
    "qwen3-dora-rslora": ("qwen3", {**PEFT, **PATTERNS, "use_dora": True, "use_rslora": True}, "bf16"),
    "bert-plain": ("bert", {**PEFT_BERT, "target_modules": BERT_ALL}, "f32"),
    "bert-dora-bias": (
        "bert",
        {**PEFT_BERT, "target_modules": ["query", "intermediate.dense"], "use_dora": True, "bias": "lora_only"},
        "f16",
    ),
    "phi3-fused": ("phi3", {**PEFT, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj"], "use_dora": True}, "f32"),
}


def _targeted(module: str, settings: dict[str, Any]) -> bool:
    targets, layers = settings["target_modules"], settings.get("layers_to_transform")
    if layers and not any(f".{layer}." in module for layer in layers):
        return False
    if targets == "all-linear":
        return module not in ("lm_head", "model.embed_tokens")
    if isinstance(targets, str):
        return ".1." in module and module.endswith(("k_proj", "up_proj"))
    return any(module == target or module.endswith("." + target) for target in targets)


def _rank(module: str, settings: dict[str, Any]) -> int:
    for name, rank in settings.get("rank_pattern", {}).items():
        if module == name.removeprefix("^") or module.endswith("." + name):
            return int(rank)
    return int(settings["r"])


def tensors(
    cfg: dict[str, Any], settings: dict[str, Any], seed: int = 1, *, base: bool = False
) -> dict[str, np.ndarray]:
    """Everything that PEFT saves for these settings, float32, under its names; with `base` the weights of embedding and
    head too, where they are targets: others than the model's.
    """
    made: dict[str, np.ndarray] = {}

    def draw(name: str, *shape: int, scale: float = 1.0) -> None:
        number = seed * 7_000_003 + len(made)
        made[f"base_model.model.{name}"] = tiny.uniform(number, int(np.prod(shape))).reshape(shape) * np.float32(scale)

    shapes = tiny.shapes(cfg)
    matrices = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if len(shape) == 2}
    if "model.embed_tokens" in matrices:
        matrices.setdefault("lm_head", matrices["model.embed_tokens"])
    matrices = {name: shape for name, shape in matrices.items() if not name.startswith("embeddings.")}
    for module, (rows, cols) in matrices.items():
        if module.rpartition(".")[2] in settings.get("modules_to_save", ()):
            draw(f"{module}.weight", rows, cols, scale=0.3)
        targeted = _targeted(module, settings)
        if targeted and base:
            draw(f"{module}.base_layer.weight", rows, cols, scale=0.3)
        if targeted and module == "model.embed_tokens":
            draw(f"{module}.lora_embedding_A", settings["r"], rows, scale=0.4)
            draw(f"{module}.lora_embedding_B", cols, settings["r"], scale=0.2)
        elif targeted:
            rank = _rank(module, settings)
            draw(f"{module}.lora_A.weight", rank, cols, scale=0.4)
            draw(f"{module}.lora_B.weight", rows, rank, scale=0.2)
            if settings.get("lora_bias"):
                draw(f"{module}.lora_B.bias", rows, scale=0.1)
            if settings.get("use_dora"):
                draw(f"{module}.lora_magnitude_vector", rows, scale=0.2)
                made[f"base_model.model.{module}.lora_magnitude_vector"] += np.float32(1.2)
        if f"{module}.bias" in shapes and (settings["bias"] == "all" or (settings["bias"] == "lora_only" and targeted)):
            draw(f"{module}.base_layer.bias" if targeted else f"{module}.bias", rows, scale=0.2)
    return made


def write_case(folder: Path, name: str, seed: int = 1) -> Path:
    """The adapter folder of a case."""
    model, settings, dtype = CASES[name]
    return write_adapter(folder, tiny.CONFIGS[model], settings, dtype, seed, base="-base" in name)


def write_adapter(
    folder: Path,
    cfg: dict[str, Any],
    settings: dict[str, Any] = PEFT,
    dtype: str = "f32",
    seed: int = 1,
    *,
    base: bool = False,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    packed = {name: pack(values, dtype) for name, values in tensors(cfg, settings, seed, base=base).items()}
    views = {name: TensorView(p.dtype, p.shape, p.data) for name, p in packed.items()}
    write_safetensors(folder / "adapter_model.safetensors", views)
    return folder
