"""Tiny random adapters on mixtures of experts, as PEFT writes them: on each expert's own modules, as for older
checkpoints, or on parameters that hold all experts. The same in the tests and in the script that makes goldens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny

from weft.weights.safetensors import write_safetensors

BASE: dict[str, Any] = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 6, "bias": "none"}
BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# As PEFT saves an adapter whose gates and ups were apart: together they have twice the rank.
TWICE = {"rank_pattern": {".*\\.gate_up_proj": 6}, "alpha_pattern": {".*\\.gate_up_proj": 12}}
EACH = ["gate_proj", "up_proj", "down_proj"]

# name -> (base, settings)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe-parameters": ("qwen3_moe", {**BASE, "target_modules": ["q_proj"], "target_parameters": BOTH}),
    "qwen3_moe-gate-up": ("qwen3_moe", {**BASE, **TWICE, "target_modules": [], "target_parameters": ["gate_up_proj"]}),
    "qwen3_moe-down-router": (
        "qwen3_moe",
        {**BASE, "target_modules": [], "target_parameters": ["experts.down_proj", "mlp.gate.weight"]},
    ),
    "qwen3_moe-each": ("qwen3_moe", {**BASE, "target_modules": [*EACH, "o_proj"]}),
    "mixtral-parameters": ("mixtral", {**BASE, **TWICE, "target_modules": ["v_proj"], "target_parameters": BOTH}),
    "mixtral-each": ("mixtral", {**BASE, "target_modules": ["w1", "w2", "w3"]}),
    "qwen2_moe-shared": (
        "qwen2_moe",
        {**BASE, "target_modules": [*EACH, "shared_expert_gate"], "target_parameters": BOTH},
    ),
    "gpt_oss-parameters": ("gpt_oss", {**BASE, "target_modules": ["q_proj"], "target_parameters": BOTH}),
}


def tensors(name: str, seed: int = 1) -> dict[str, np.ndarray]:
    """Everything that PEFT saves for a case, float32, under its names."""
    model, settings = CASES[name]
    cfg = tiny.CONFIGS[model]
    hidden, inner = cfg["hidden_size"], cfg.get("moe_intermediate_size", cfg["intermediate_size"])
    count = cfg.get("num_experts") or cfg["num_local_experts"]
    made: dict[str, np.ndarray] = {}

    def draw(module: str, rows: int, cols: int, rank: int, matrices: int = 1) -> None:
        for end, shape, scale in (("A", (rank * matrices, cols), 0.4), ("B", (rows, rank * matrices), 0.3)):
            values = tiny.uniform(seed * 7_000_003 + len(made), int(np.prod(shape))).reshape(shape)
            made[f"base_model.model.{module}.lora_{end}.weight"] = values * np.float32(scale)

    named = settings.get("target_parameters", [])
    wanted = [one for one in ("gate_up_proj", "down_proj") if any(key.endswith(one) for key in named)]
    for layer in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for place, one in enumerate(reversed(wanted)):
            shape = (2 * inner, hidden) if one == "gate_up_proj" else (hidden, inner)
            rank = settings.get("rank_pattern", {}).get(rf".*\.{one}", settings["r"])
            draw(f"{at}mlp.experts{'.base_layer' * place}", *shape, rank, count)
        if "mlp.gate.weight" in named:
            draw(f"{at}mlp.gate", count, hidden, settings["r"])
        for key, shape in tiny.shapes(cfg).items():
            module = key.removesuffix(".weight")
            apart = not (named and ".experts." in module)
            if module.startswith(at) and apart and module.rpartition(".")[2] in settings["target_modules"]:
                draw(module, *shape, settings["r"])
    return made


def write_case(folder: Path, name: str, seed: int = 1) -> Path:
    """The adapter folder of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CASES[name][1]))
    write_safetensors(folder / "adapter_model.safetensors", tensors(name, seed))
    return folder


def each(folder: Path, cfg: dict[str, Any], seed: int, experts: Any, **more: Any) -> Path:
    """An adapter on the matrices of these experts, as modules of their own."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({**BASE, "target_modules": EACH, **more}))
    tensors = {}
    for key, (rows, cols) in ((k, s) for k, s in tiny.shapes(cfg).items() if ".experts." in k):
        if int(key.split(".experts.")[1].split(".")[0]) in experts:
            at, number = f"base_model.model.{key.removesuffix('.weight')}", seed * 10_007 + 3 * len(tensors)
            tensors[f"{at}.lora_A.weight"] = 0.5 * tiny.uniform(number, 3 * cols).reshape(3, cols)
            tensors[f"{at}.lora_B.weight"] = 0.5 * tiny.uniform(number + 1, 3 * rows).reshape(rows, 3)
            if more.get("use_dora"):
                tensors[f"{at}.lora_magnitude_vector"] = 1 + 0.2 * tiny.uniform(number + 2, rows)
    write_safetensors(folder / "adapter_model.safetensors", {k: v.astype(np.float32) for k, v in tensors.items()})
    return folder
