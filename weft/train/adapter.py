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
from weft.runtime.adapters.targets import OF_EXPERTS, ROLES
from weft.train.targets import Part, check_dropout, is_experts, modules_of, parts_of, renamed, stack_name
from weft.weights.adapters import EXPERT_PARAMETERS, INSIDE
from weft.weights.files import replacing
from weft.weights.safetensors import write_safetensors

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime.checkpoint import Checkpoint
    from weft.weights.adapters import AdaptedModule
    from weft.weights.files import TensorView

Arrays = dict[str, "np.ndarray"]
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def write_adapter(
    folder: Path,
    changes: Mapping[str, LowRank],
    parameters: Mapping[str, np.ndarray],
    *,
    base: str = "",
    weights: Mapping[str, tuple[int, ...]] | None = None,
    model_type: str = "",
    rslora: bool = False,
    dropout: float = 0.0,
    whole: Sequence[str] = (),
    task: str = "CAUSAL_LM",
) -> None:
    """A folder in PEFT's format: adapter_config.json and adapter_model.safetensors, each there at once or not at all.

    `weights` are all that could have been adapted: without them the modules are listed by their last names, which PEFT
    applies to every layer. `whole` names the tensors that were trained in full.
    """
    parts = _parts(changes, parameters, model_type)
    check_dropout(list(parts), dropout)
    made = {module: _module(module, own, changes, parameters) for module, own in parts.items()}
    ranks = {module: sum(changes[name].rank for name, _ in own) for module, own in parts.items()}
    alphas = {
        module: scale * (math.sqrt(ranks[module]) if rslora else ranks[module])
        for module, (_, _, scale) in made.items()
    }
    every = list(modules_of(weights or {}, model_type))
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
        "target_modules": _listed([module for module in made if not is_experts(module)], every),
        "lora_dropout": dropout,
        "bias": "none",
        "use_rslora": rslora,
        "use_dora": False,
        "init_lora_weights": True,
    }
    experts = [module for module in made if is_experts(module)]
    if experts:
        config["target_parameters"] = _listed(experts, every, words=2)
    places, tensors = tensor_names(experts), {}
    for module, (down, up, _) in made.items():
        tensors[f"base_model.model.{places.get(module, module)}.lora_A.weight"] = down
        tensors[f"base_model.model.{places.get(module, module)}.lora_B.weight"] = up
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


def _listed(modules: Sequence[str], every: Sequence[str], words: int = 1) -> list[str]:
    """The last names of the modules, of so many words, if these mean no others of their kind, else their whole
    names."""

    def short(module: str) -> str:
        return ".".join(module.split(".")[-words:])

    others = {short(one) for one in every if one not in modules and is_experts(one) == (words > 1)}
    names = set(map(short, modules))
    return sorted(modules if others & names else names)


def _parts(
    changes: Mapping[str, LowRank], parameters: Mapping[str, np.ndarray], model_type: str
) -> dict[str, list[tuple[str, Part]]]:
    shapes: dict[str, tuple[int, ...]] = {
        name: (*parameters[UP + name].shape[:-1], parameters[DOWN + name].shape[-1]) for name in changes
    }
    found: dict[str, list[tuple[str, Part]]] = {}
    known = parts_of(shapes, model_type)
    for name in changes:
        if name not in known:
            what = f"{name} is a part of a tensor, and PEFT has no words for an adapter of it"
            raise InputError("train", what, field="targets")
        found.setdefault(known[name].module, []).append((name, known[name]))
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
    scales = {changes[name].scale for name, _ in parts}
    if len(scales) > 1:
        raise InputError("train", f"the parts of {module} have different scales", field="targets", given=scales)
    if is_experts(module):
        return *joined_parts(parts, changes, parameters), scales.pop()
    if len(parts) == 1 and part.whole:
        return parameters[DOWN + name], parameters[UP + name], changes[name].scale
    down = np.concatenate([parameters[DOWN + name] for name, _ in parts])
    up, column = np.zeros((part.total, len(down)), np.float32), 0
    for name, part in parts:
        rank = changes[name].rank
        up[part.first : part.end, column : column + rank] = parameters[UP + name]
        column += rank
    return down, up, scales.pop()


def read_start(
    folder: Path, checkpoint: Checkpoint, weights: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, LowRank], Arrays]:
    """The changes and matrices of an adapter, to train it on."""
    from weft.weights.adapters import open_adapter

    parts, by_module = parts_of(weights, checkpoint.model_type), modules_of(weights, checkpoint.model_type)
    changes: dict[str, LowRank] = {}
    parameters: Arrays = {}
    modules = open_adapter(folder).modules
    for given, module in modules.items():
        more = [what for what, _ in module.tensors() if what not in ("down", "up")]
        if more or module.down is None or module.up is None:
            kind = f"{given[:120]} has {more[0] if more else 'no matrices'}"
            kind += " (DoRA)" if "magnitude" in more else ""
            advice = "serve it as it is, or train a new adapter"
            raise UnsupportedError("adapter", f"{kind}; only plain LoRA can be trained on", advice=advice)
        if not all(_finite(view) for view in (module.down, module.up)):
            raise WeightError("adapter", f"{given[:120]} holds numbers that are not finite")
    experts, others = by_experts(modules)
    for given in others:
        name = next((own for own in spellings(given, checkpoint) if own in by_module), None)
        if name is None:
            raise WeightError("adapter", f"this model ({checkpoint.model_type}) has no matrix {given[:120]} to adapt")
        for weight in by_module[name]:
            cut = cut_part if is_experts(name) else _cut
            down, up = cut(given, modules[given], parts[weight], weights[weight])
            changes[weight] = LowRank(down.shape[-2], modules[given].scale)
            parameters[DOWN + weight], parameters[UP + weight] = down, up
    for given, each in experts.items():
        known = {stack_name(weight, checkpoint.model_type): weight for weight in weights if len(weights[weight]) == 3}
        own_names = [renamed(own, checkpoint.model_type) for own in spellings(given, checkpoint)]
        weight = next((known[own] for own in own_names if own in known), "")
        if not weight:
            raise WeightError("adapter", f"this model ({checkpoint.model_type}) has no matrices {given[:120]} to adapt")
        changes[weight], (down, up) = stacked(given, each, weights[weight])
        parameters[DOWN + weight], parameters[UP + weight] = down, up
    return changes, parameters


def _finite(view: TensorView) -> bool:
    import numpy as np

    return bool(np.isfinite(view.numpy()).all())


def spellings(name: str, checkpoint: Checkpoint) -> list[str]:
    """The names that a module may have here: models are saved inside others."""
    names = model_module(checkpoint.model_type).NAMES
    starts = {**dict.fromkeys(names.prefixes, ""), **names.part}
    return [name, *(start + name.removeprefix(prefix) for prefix, start in starts.items() if name.startswith(prefix))]


def _cut(given: str, module: AdaptedModule, part: Part, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The matrices for one weight of a module; columns of `up` that are zero in its rows belong to other parts."""
    import numpy as np

    assert module.down is not None and module.up is not None
    down, up = (view.numpy().astype(np.float32) for view in (module.down, module.up))
    if up.shape[0] != part.total or down.shape[1] != shape[1]:
        what = (
            f"{given[:120]} is for a matrix [{up.shape[0]}, {down.shape[1]}], the model's is [{part.total}, {shape[1]}]"
        )
        raise WeightError("adapter", what)
    own = up[part.rows]
    used = np.flatnonzero(own.any(axis=0)) if not part.whole and own.any() else np.arange(len(down))
    return np.ascontiguousarray(down[used]), np.ascontiguousarray(own[:, used])


# Experts.


def joined_parts(
    parts: Sequence[tuple[str, Part]], changes: Mapping[str, LowRank], parameters: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Both matrices of a parameter as PEFT stores them: `down` has the rows of the first
    expert, then those of the second; `up` a column of each expert for the first rank, then for the second. The parts'
    own are side by side, and `up` has zeros elsewhere."""
    import numpy as np

    down = np.concatenate([parameters[DOWN + name] for name, _ in parts], axis=1)
    count, rank, cols = down.shape
    total = parts[0][1].total
    up, column = np.zeros((count, total, rank), np.float32), 0
    for name, part in parts:
        end = column + changes[name].rank
        up[:, part.rows, column:end] = parameters[UP + name]
        column = end
    flat = np.ascontiguousarray(up.transpose(1, 2, 0)).reshape(total, rank * count)
    return np.ascontiguousarray(down.reshape(count * rank, cols)), flat


def tensor_names(modules: Sequence[str]) -> dict[str, str]:
    """Where PEFT keeps the matrices of each of these parameters: it wraps the module of the experts once for each, the
    first one innermost."""
    found = {}
    for base in sorted({module.rpartition(".")[0] for module in modules}):
        own = [f"{base}.{name}" for name in EXPERT_PARAMETERS if f"{base}.{name}" in modules]
        found.update({module: base + INSIDE * depth for depth, module in enumerate(reversed(own))})
    return found


def cut_part(given: str, module: AdaptedModule, part: Part, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The matrices [E, rank, K] and [E, N, rank] for one stack of a parameter that an adapter changes; columns of `up`
    that are zero in its rows belong to other parts."""
    import numpy as np

    assert module.down is not None and module.up is not None
    count, _, cols = shape
    if (module.matrices, module.down.shape[1], module.up.shape[0]) != (count, cols, part.total):
        what = f"{given[:120]} is for {module.matrices} matrices [{module.up.shape[0]}, {module.down.shape[1]}]"
        raise WeightError("adapter", f"{what}, the model has {count} of [{part.total}, {cols}]")
    own = module.each()
    down = np.stack([one.down.numpy().astype(np.float32) for one in own if one.down is not None])
    up = np.stack([one.up.numpy().astype(np.float32)[part.rows] for one in own if one.up is not None])
    if not part.whole and up.any():
        used = np.flatnonzero(up.any(axis=(0, 1)))
        down, up = down[:, used], up[:, :, used]
    return np.ascontiguousarray(down), np.ascontiguousarray(up)


def by_experts(modules: Mapping[str, AdaptedModule]) -> tuple[dict[str, dict[int, AdaptedModule]], list[str]]:
    """Modules of single experts as base.ROLE -> number -> module, and the names of all others."""
    found: dict[str, dict[int, AdaptedModule]] = {}
    others = []
    for name, module in modules.items():
        match = OF_EXPERTS.fullmatch(name)
        if match and match["number"] and match["name"] in ROLES:
            found.setdefault(f"{match['base']}.{ROLES[match['name']]}", {})[int(match["number"])] = module
        else:
            others.append(name)
    return found, others


def stacked(given: str, each: Mapping[int, AdaptedModule], shape: tuple[int, ...]) -> tuple[LowRank, list[np.ndarray]]:
    """The change of a stack, and its matrices, from the modules of single experts."""
    import numpy as np

    count, rows, cols = shape
    if sorted(each) != list(range(count)):
        what = (
            f"{given[:120]}: {len(each)} experts have matrices, and the model has {count}; all or none can be trained"
        )
        raise UnsupportedError("adapter", what)
    kinds = {(module.rank, module.scale) for module in each.values()}
    if len(kinds) > 1:
        raise UnsupportedError("adapter", f"{given[:120]}: experts have different ranks or scales")
    rank, scale = kinds.pop()
    views = [[getattr(each[number], what) for number in range(count)] for what in ("down", "up")]
    for view, wanted in zip(views, ((rank, cols), (rows, rank))):
        if any(one is None or one.shape != wanted for one in view):
            raise WeightError("adapter", f"{given[:120]} does not fit the model's matrices [{rows}, {cols}]")
    return LowRank(rank, scale), [np.stack([one.numpy().astype(np.float32) for one in view]) for view in views]
