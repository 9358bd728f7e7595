"""Adapters of PEFT: written from what was trained, and read to train on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, UnsupportedError, WeightError
from weft.graph.passes.learn import DOWN, UP, LowRank
from weft.models import model_module
from weft.train.targets import Part, modules_of, part_of
from weft.weights.files import replacing
from weft.weights.safetensors import write_safetensors

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime.checkpoint import Checkpoint
    from weft.weights.adapters import AdaptedModule

Arrays = dict[str, "np.ndarray"]
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def write_adapter(
    folder: Path,
    changes: Mapping[str, LowRank],
    parameters: Mapping[str, np.ndarray],
    *,
    base: str = "",
    weights: Mapping[str, tuple[int, int]] | None = None,
    rslora: bool = False,
    dropout: float = 0.0,
    whole: Sequence[str] = (),
    task: str = "CAUSAL_LM",
) -> None:
    """A folder in PEFT's format: adapter_config.json and adapter_model.safetensors, each there at once or not at all.

    `weights` are all that could have been adapted: without them the modules are listed by their last names, which PEFT
    applies to every layer. `whole` names the tensors that were trained in full.
    """
    made = {
        module: _module(module, parts, changes, parameters) for module, parts in _parts(changes, parameters).items()
    }
    ranks = {module: len(down) for module, (down, _, _) in made.items()}
    alphas = {
        module: scale * (math.sqrt(ranks[module]) if rslora else ranks[module])
        for module, (_, _, scale) in made.items()
    }
    rank, alpha = _usual(ranks.values()), _usual(alphas.values())
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {name: value for name, value in ranks.items() if value != rank},
        "alpha_pattern": {name: value for name, value in alphas.items() if value != alpha},
        "target_modules": _listed(made, weights),
        "lora_dropout": dropout,
        "bias": "none",
        "use_rslora": rslora,
        "use_dora": False,
        "init_lora_weights": True,
    }
    tensors = {}
    for module, (down, up, _) in made.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
    if whole:
        config["modules_to_save"] = sorted({name.rpartition(".")[0] for name in whole})
        tensors |= {f"base_model.model.{name}": parameters[name] for name in whole}
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / TENSORS, tensors)
    with replacing(folder / CONFIG) as out:
        out.write((json.dumps(config, indent=1) + "\n").encode())


def _usual(values: Any) -> Any:
    """The most frequent value, the first of several."""
    listed = list(values)
    return max(listed, key=listed.count)


def _listed(modules: Mapping[str, Any], weights: Mapping[str, tuple[int, int]] | None) -> list[str]:
    """The last names of the modules if these mean no others, else their whole names."""
    short = {module.rpartition(".")[2] for module in modules}
    others = set(modules_of(weights or {})) - set(modules)
    return sorted(modules if any(other.rpartition(".")[2] in short for other in others) else short)


def _parts(changes: Mapping[str, LowRank], parameters: Mapping[str, np.ndarray]) -> dict[str, list[tuple[str, Part]]]:
    found: dict[str, list[tuple[str, Part]]] = {}
    for name in changes:
        part = part_of(name, len(parameters[UP + name]))
        if part is None:
            what = f"{name} is a part of a tensor, and PEFT has no words for an adapter of it"
            raise InputError("train", what, field="targets")
        found.setdefault(part.module, []).append((name, part))
    return found


def _module(
    module: str,
    parts: list[tuple[str, Part]],
    changes: Mapping[str, LowRank],
    parameters: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, float]:
    """Both matrices of a module and its scale. Those of its parts are put side by side: `up` has zeros elsewhere."""
    import numpy as np

    name, part = parts[0]
    if len(parts) == 1 and part.end - part.first == part.total:
        return parameters[DOWN + name], parameters[UP + name], changes[name].scale
    scales = {changes[name].scale for name, _ in parts}
    if len(scales) > 1:
        raise InputError("train", f"the parts of {module} have different scales", field="targets", given=scales)
    down = np.concatenate([parameters[DOWN + name] for name, _ in parts])
    up, column = np.zeros((part.total, len(down)), np.float32), 0
    for name, part in parts:
        rank = changes[name].rank
        up[part.first : part.end, column : column + rank] = parameters[UP + name]
        column += rank
    return down, up, scales.pop()


def read_start(
    folder: Path, checkpoint: Checkpoint, weights: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, LowRank], Arrays]:
    """The changes and matrices of an adapter, to train it on."""
    from weft.weights.adapters import open_adapter

    by_module = modules_of(weights)
    changes: dict[str, LowRank] = {}
    parameters: Arrays = {}
    for given, module in open_adapter(folder).modules.items():
        name = next((own for own in spellings(given, checkpoint) if own in by_module), None)
        if name is None:
            raise WeightError("adapter", f"this model ({checkpoint.model_type}) has no matrix {given[:120]} to adapt")
        more = [what for what, _ in module.tensors() if what not in ("down", "up")]
        if more or module.down is None or module.up is None:
            what = f"{given[:120]} has {more[0] if more else 'no matrices'}; only plain LoRA can be trained on"
            raise UnsupportedError("adapter", what)
        for weight in by_module[name]:
            down, up = _cut(given, module, weight, weights[weight])
            changes[weight] = LowRank(len(down), module.scale)
            parameters[DOWN + weight], parameters[UP + weight] = down, up
    return changes, parameters


def spellings(name: str, checkpoint: Checkpoint) -> list[str]:
    """The names that a module may have here: models are saved inside others."""
    names = model_module(checkpoint.model_type).NAMES
    starts = {**dict.fromkeys(names.prefixes, ""), **names.part}
    return [name, *(start + name.removeprefix(prefix) for prefix, start in starts.items() if name.startswith(prefix))]


def _cut(given: str, module: AdaptedModule, weight: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The matrices for one weight of a module; columns of `up` that are zero in its rows belong to other parts."""
    import numpy as np

    assert module.down is not None and module.up is not None
    part = part_of(weight, shape[0])
    assert part is not None
    down, up = (view.numpy().astype(np.float32) for view in (module.down, module.up))
    if up.shape[0] != part.total or down.shape[1] != shape[1]:
        what = (
            f"{given[:120]} is for a matrix [{up.shape[0]}, {down.shape[1]}], the model's is [{part.total}, {shape[1]}]"
        )
        raise WeightError("adapter", what)
    if not (np.isfinite(down).all() and np.isfinite(up).all()):
        raise WeightError("adapter", f"{given[:120]} holds numbers that are not finite")
    own = up[part.first : part.end]
    used = np.flatnonzero(own.any(axis=0)) if part.end - part.first < part.total and own.any() else np.arange(len(down))
    return np.ascontiguousarray(down[used]), np.ascontiguousarray(own[:, used])
