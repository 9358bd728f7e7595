"""Which matrices of a model are adapted: all of its layers, those with certain names, or those that a pattern fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.errors import InputError, UnsupportedError
from weft.graph.passes import cut_rows, dead_code
from weft.graph.passes.learn import LowRank
from weft.graph.passes.trained import trainable
from weft.models import model_module
from weft.nn import Scope, read_config
from weft.nn.scope import EACH
from weft.nn.step import TracedStep
from weft.runtime.adapters.targets import ROLES
from weft.runtime.tracing import CheckedTrace
from weft.weights.adapters import EXPERT_PARAMETERS
from weft.weights.rotation import refuse_rotated

if TYPE_CHECKING:
    from weft.graph import Program
    from weft.runtime.checkpoint import Checkpoint

ALL = "all-linear"
# Modules that peft 0.21 does not adapt, by the model's type: it refuses those of Mamba layers, and takes the names of
# this shared expert's for those of all experts. Who names them gets them, in weft.
NOT_IN_PEFT = {
    "nemotron_h": re.compile(r".*\.out_proj"),
    "qwen3_next": re.compile(r".*\.shared_expert\.\w+_proj"),
}
_ROWS = re.compile(r"(\d+)-(\d+)/(\d+)")
EXPERTS = "experts"
# Parts whose name in a checkpoint is not the one that transformers, and so PEFT, has for them.
RENAMED = {"mixtral": (".block_sparse_moe.", ".mlp.")}


class Part(NamedTuple):
    """Rows `first` to `end` of a module's `total`, or every so many of them: a stored matrix may hold several that the
    model multiplies by."""

    module: str
    first: int
    end: int
    total: int
    step: int = 1

    @property
    def rows(self) -> slice:
        return slice(self.first, self.end, self.step)

    @property
    def whole(self) -> bool:
        return (self.first, self.end, self.step) == (0, self.total, 1)


def products(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """The weights that rows are multiplied by, and their shapes, without the head's and routers. Stacks with the
    matrices of experts have three axes."""
    program = _program(checkpoint)
    found: dict[str, Any] = {}
    routing = {str(instr.inputs[0]) for instr in program.body if instr.op == "route"}
    routing |= {
        str(instr.inputs[0]) for instr in program.body if instr.op == "add" and routing.intersection(instr.outputs)
    }
    for instr in program.body:
        name = str(instr.inputs[1]) if instr.op == "matmul" else ""
        if name and not routing.intersection(instr.outputs):
            found[name] = program.table[name].shape
    return {name: shape for name, shape in found.items() if name != _head(program)}


def _program(checkpoint: Checkpoint) -> Program:
    """What a decoder computes, before ops are fused."""
    refuse_rotated("train", checkpoint.config, "adapters are trained before, and rotated when they are loaded")
    module = model_module(checkpoint.model_type)
    if module.KIND != "decoder":
        what = f"{checkpoint.model_type} does not generate text, so it has no loss of the next token"
        raise UnsupportedError("train", what, advice="choose a model that generates text")
    with checkpoint.naming(), CheckedTrace(checkpoint.model_type, checkpoint) as trace:
        config = read_config(module.Config, checkpoint.config)
        trace.output("logits", module.forward(Scope(trace, checkpoint.stored), config, TracedStep(trace, whole=True)))
    return cut_rows(dead_code(trace.program()))


def _head(program: Program) -> str:
    return [str(instr.inputs[1]) for instr in program.body if instr.op == "matmul"][-1]


def whole_modules(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, list[str]]:
    """The modules that `names` mean (whole names, or the ends of some), which are trained in full, and their tensors:
    matrices and tables, with their biases."""
    program = _program(checkpoint)
    found = {name: shape for name, shape in trainable(program).items() if name != _head(program)}
    modules: dict[str, list[str]] = {}
    for name, shape in found.items():
        module, _, part = name.rpartition(".")
        if part == "weight" and len(shape) == 2:
            bias = f"{module}.bias"
            modules[module] = [name, *([bias] if bias in found else [])]
    chosen: dict[str, list[str]] = {}
    for name in names:
        mine = {module: own for module, own in modules.items() if module == name or module.endswith(f".{name}")}
        if not mine:
            raise _not_whole(program, modules, name)
        chosen |= mine
    return dict(sorted(chosen.items()))


def _not_whole(program: Program, modules: Mapping[str, Any], name: str) -> InputError:
    stored = [value.name for value in program.weights if f".{value.name}".split(":")[0].endswith(f".{name}.weight")]
    if stored and len(program.table[stored[0]].shape) == 1:
        what = "is a norm: adapters with a norm of their own cannot be served"
    elif stored and len(program.readers[stored[0]]) > 1:
        what = "is used twice, as the table of tokens and as the head, and cannot be trained in full"
    elif stored and _head(program) == stored[0]:
        what = "is the head, and cannot be trained in full: all logits are never in memory together"
    else:
        what = "is not a matrix or table that can be trained in full"
    advice = f"this model has {', '.join(sorted({module.rpartition('.')[2] for module in modules}))}"
    return InputError("train", what, field="modules_to_save", given=name, advice=advice)


def part_of(name: str, rows: int) -> Part | None:
    """The part of a module that the weight `name` of `rows` rows is; None for what PEFT has no words for."""
    stored, _, cut = name.partition(":")
    if not stored.endswith(".weight"):
        return None
    module = stored.removesuffix(".weight")
    if not cut:
        return Part(module, 0, rows, rows)
    found = _ROWS.fullmatch(cut)
    return Part(module, *map(int, found.groups())) if found else None


def parts_of(weights: Mapping[str, tuple[int, ...]], model_type: str = "") -> dict[str, Part]:
    """The part of a module that each weight is, without those that PEFT has no words for."""
    plain = {name: part_of(name, shape[0]) for name, shape in weights.items() if len(shape) == 2}
    return {name: part for name, part in plain.items() if part is not None} | expert_parts(weights, model_type)


def modules_of(weights: Mapping[str, tuple[int, ...]], model_type: str = "") -> dict[str, list[str]]:
    """The weights of each module that can be adapted. Those of experts are parameters: mlp.experts.gate_up_proj."""
    found: dict[str, list[str]] = {}
    for name, part in parts_of(weights, model_type).items():
        found.setdefault(part.module, []).append(name)
    return found


def choose(weights: Mapping[str, tuple[int, ...]], targets: str | Sequence[str], *, model_type: str = "") -> list[str]:
    """The modules that `targets` means: "all-linear", names (of a module, or the end of one), or a pattern.

    "all-linear" leaves out what peft cannot load an adapter of, for this `model_type`. Experts are meant by what names
    them only: "experts", or experts.down_proj.
    """
    every = modules_of(weights, model_type)
    modules = {module: own for module, own in every.items() if not is_experts(module)}
    refused = NOT_IN_PEFT.get(model_type)
    linear = [module for module in modules if not (refused and refused.fullmatch(module))]
    if targets == ALL:
        return sorted(linear)
    names = targets.split(",") if isinstance(targets, str) else list(targets)
    names = [name.strip() for name in names]
    if any(EXPERTS in name for name in names):
        modules = every
    if not names or not all(names):
        advice = f"give {ALL}, names such as q_proj,v_proj, or a regular expression"
        raise InputError("train", "must name at least one module", field="targets", given=targets, advice=advice)
    if isinstance(targets, str) and not all(name == ALL or re.fullmatch(r"[\w.]+", name) for name in names):
        return _fitting(modules, targets)
    chosen = set()
    for name in names:
        found = linear if name == ALL else [module for module in modules if _means(name, module)]
        if not found:
            raise _unknown(every, name)
        chosen.update(found)
    return sorted(chosen)


def _means(name: str, module: str) -> bool:
    if is_experts(module) and EXPERTS not in name:
        return False
    return any(own == name or own.endswith(f".{name}") for own in (module, _owner(module)))


def _owner(module: str) -> str:
    """The module that has a parameter of experts; of others the module."""
    return module.rpartition(".")[0] if is_experts(module) else module


def _fitting(modules: Mapping[str, Any], pattern: str) -> list[str]:
    try:
        fits = re.compile(pattern)
    except re.error as error:
        what = f"is not a regular expression: {error}"
        raise InputError("train", what, field="targets", given=pattern) from None
    found = sorted(module for module in modules if fits.fullmatch(module))
    if not found:
        raise _unknown(modules, pattern)
    return found


def _unknown(modules: Mapping[str, Any], name: str) -> InputError:
    short = sorted({_owner(module).rpartition(".")[2] for module in modules})
    near = get_close_matches(name, short, n=1)
    advice = f"did you mean {near[0]}?" if near else f"this model has {', '.join(short)}, or {ALL}"
    return InputError("train", "must fit modules of the model", field="targets", given=name, advice=advice)


def changes_of(
    weights: Mapping[str, tuple[int, ...]], modules: Sequence[str], change: LowRank, model_type: str = ""
) -> dict[str, LowRank]:
    """The same change for every weight of these modules."""
    by_module = modules_of(weights, model_type)
    return {name: change for module in modules for name in by_module[module]}


# Experts: PEFT knows their matrices as rows of a parameter that holds those of all experts of a layer.


def is_experts(module: str) -> bool:
    """Whether a module, as PEFT names it, is a parameter with the matrices of all experts."""
    return module.rpartition(".")[0].endswith(f".{EXPERTS}") and module.rpartition(".")[2] in EXPERT_PARAMETERS


def expert_parts(weights: Mapping[str, tuple[int, ...]], model_type: str) -> dict[str, Part]:
    """The part of each stack of matrices among these weights."""
    stacks = {name: shape[1] for name, shape in weights.items() if len(shape) == 3}
    gated = {_base(name, model_type) for name in stacks if _role(name) == "gate"}
    return {name: _part(name, rows, model_type, _base(name, model_type) in gated) for name, rows in stacks.items()}


def _plain(name: str) -> str:
    return name.partition(":")[0].removesuffix(".weight").replace(f".{EACH}.", ".")


def _base(name: str, model_type: str) -> str:
    return renamed(_plain(name).rpartition(".")[0], model_type)


def renamed(name: str, model_type: str) -> str:
    """The name that PEFT has for a module of a checkpoint of this type."""
    return name.replace(*RENAMED.get(model_type, ("", "")))


def _role(name: str) -> str:
    return ROLES.get(_plain(name).rpartition(".")[2], "")


def _part(name: str, rows: int, model_type: str, gated: bool) -> Part:
    base, role = _base(name, model_type), _role(name)
    cut = name.removesuffix(f":{EACH}").partition(":")[2]
    if cut:  # gate_up_proj:0-8/16:each
        span, _, total = cut.partition("/")
        first, end = map(int, span.split("-"))
        return Part(f"{base}.{_plain(name).rpartition('.')[2]}", first, end, int(total))
    if role == "down" or not gated:
        return Part(f"{base}.{'down_proj' if role == 'down' else 'up_proj'}", 0, rows, rows)
    number = 0 if role == "gate" else 1
    if getattr(model_module(model_type), "GATES_IN_TURNS", False):
        return Part(f"{base}.gate_up_proj", number, 2 * rows, 2 * rows, 2)
    return Part(f"{base}.gate_up_proj", number * rows, (number + 1) * rows, 2 * rows)


def stack_name(weight: str, model_type: str) -> str:
    """The name of a stack by what its matrices are: base.gate, base.up or base.down."""
    part = weight.removesuffix(f":{EACH}").partition(":")[2]
    role = ("gate" if part.startswith("0-") else "up") if part else _role(weight)
    return f"{_base(weight, model_type)}.{role}"


def check_dropout(modules: Sequence[str], dropout: float) -> None:
    """PEFT has no dropout of parameters, and does not load an adapter that says it had."""
    if dropout and any(map(is_experts, modules)):
        what = "must be 0 where experts are adapted: PEFT has no dropout for them"
        raise InputError("train", what, field="dropout", given=dropout)
