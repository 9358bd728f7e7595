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
from weft.nn.step import TracedStep
from weft.runtime.tracing import CheckedTrace

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


class Part(NamedTuple):
    """Rows `first` to `end` of a module's `total`: a stored matrix may hold several that the model multiplies by."""

    module: str
    first: int
    end: int
    total: int


def products(checkpoint: Checkpoint) -> dict[str, tuple[int, int]]:
    """The weights that rows are multiplied by, and their shapes, without the head's, routers and stacks of experts."""
    program = _program(checkpoint)
    found: dict[str, Any] = {}
    routing = {str(instr.inputs[0]) for instr in program.body if instr.op == "route"}
    routing |= {
        str(instr.inputs[0]) for instr in program.body if instr.op == "add" and routing.intersection(instr.outputs)
    }
    for instr in program.body:
        name = str(instr.inputs[1]) if instr.op == "matmul" else ""
        if name and len(program.table[name].shape) == 2 and not routing.intersection(instr.outputs):
            found[name] = program.table[name].shape
    return {name: shape for name, shape in found.items() if name != _head(program)}


def _program(checkpoint: Checkpoint) -> Program:
    """What a decoder computes, before ops are fused."""
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


def modules_of(weights: Mapping[str, tuple[int, int]]) -> dict[str, list[str]]:
    """The weights of each module that can be adapted."""
    found: dict[str, list[str]] = {}
    for name, (rows, _) in weights.items():
        part = part_of(name, rows)
        if part is not None:
            found.setdefault(part.module, []).append(name)
    return found


def choose(weights: Mapping[str, tuple[int, int]], targets: str | Sequence[str], *, model_type: str = "") -> list[str]:
    """The modules that `targets` means: "all-linear", names (of a module, or the end of one), or a pattern.

    "all-linear" leaves out what peft cannot load an adapter of, for this `model_type`.
    """
    modules = modules_of(weights)
    if targets == ALL:
        refused = NOT_IN_PEFT.get(model_type)
        return sorted(module for module in modules if not (refused and refused.fullmatch(module)))
    names = targets.split(",") if isinstance(targets, str) else list(targets)
    names = [name.strip() for name in names]
    if not names or not all(names):
        advice = f"give {ALL}, names such as q_proj,v_proj, or a regular expression"
        raise InputError("train", "must name at least one module", field="targets", given=targets, advice=advice)
    if isinstance(targets, str) and not all(re.fullmatch(r"[\w.]+", name) for name in names):
        return _fitting(modules, targets)
    chosen = set()
    for name in names:
        found = [module for module in modules if module == name or module.endswith(f".{name}")]
        if not found:
            raise _unknown(modules, name)
        chosen.update(found)
    return sorted(chosen)


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
    short = sorted({module.rpartition(".")[2] for module in modules})
    near = get_close_matches(name, short, n=1)
    advice = f"did you mean {near[0]}?" if near else f"this model has {', '.join(short)}, or {ALL}"
    return InputError("train", "must fit modules of the model", field="targets", given=name, advice=advice)


def changes_of(weights: Mapping[str, tuple[int, int]], modules: Sequence[str], change: LowRank) -> dict[str, LowRank]:
    """The same change for every weight of these modules."""
    by_module = modules_of(weights)
    return {name: change for module in modules for name in by_module[module]}
