"""Reverse mode over programs: the program that computes gradients is a program too, and any backend runs it.

A program is differentiated before ops are fused and lowered, so that only the ops that models call need a gradient
(`Op.back`). What is trained are inputs of fixed size: weights stay immutable, and no executable knows of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from weft.errors import InputError, UnsupportedError
from weft.graph.passes.dead_code import dead_code
from weft.graph.program import Instr, Program, Value
from weft.graph.tensor import Tensor
from weft.graph.trace import Trace
from weft.ops.elementwise import add, mul
from weft.ops.registry import catalogue
from weft.ops.spec import B, Dim
from weft.ops.training import row_grad, table_grad, weight_grad

SEED, INTO, GRAD = "seed.", "into.", "grad."

SEQUENCES = "sequences"  # an input: 0 to B, where something has one row for each sequence

# Operands that may be trained: op -> index of the operand. Their gradients are sums over the tokens of a batch.
TRAINED = {"product": 1, "add": 1, "mul": 1, "take_rows": 0}


def parts(program: Program) -> list[tuple[int, int]]:
    """The instructions [first, end) between points where one buffer alone is live: the halves of a decoder's blocks.

    What a part computes can be computed again from that one buffer, so that its own buffers need not be kept.
    """
    last = {name: index for index, instr in enumerate(program.body) for name in instr.operands}
    live: set[str] = set()
    starts = [0]
    for index, instr in enumerate(program.body[:-1]):
        live.update(name for name in instr.outputs if program.table[name].kind == "buffer" and name in last)
        live.difference_update([name for name in live if last[name] <= index])
        if len(live) == 1:
            starts.append(index + 1)
    return list(pairwise([*starts, len(program.body)]))


def differentiate(
    program: Program,
    wrt: Sequence[str],
    *,
    seeds: Mapping[str, str] | None = None,
    segments: str = "segments",
    again: int = 0,
) -> Program:
    """A program with the outputs of `program` and the gradients of its inputs `wrt`.

    What is differentiated is the sum over all seeded values of value * seed. `seeds` names values of the program and
    the values that are their seeds; without it every output gets an input `seed.NAME` of its own shape. An input of
    `wrt` whose size is fixed is trained: `into.NAME`, an input, is what the batch has summed up so far, `grad.NAME`
    that and this step's. Others, of a size that a step decides, have their gradient in `grad.NAME`.

    The first `again` of the program's `parts` are computed again when their gradients are: only what lies between them
    is kept until then. That takes less memory and more time, and changes no bit.
    """
    unknown = [name for name in wrt if name not in {value.name for value in program.inputs}]
    if unknown:
        raise InputError("differentiate", "must be inputs of the program", field="wrt", given=unknown)
    if program.states or program.tables:
        advice = "trace the model without pages, slots and adapters"
        raise UnsupportedError("differentiate", f"{program.name} keeps a state between steps", advice=advice)
    return _Reverse(program, wrt, segments).run(seeds, again)


class _Reverse:
    def __init__(self, program: Program, wrt: Sequence[str], segments: str) -> None:
        catalogue()  # with it comes the gradient of every op
        self.program, self.wrt = program, list(wrt)
        self.trace = Trace(f"{program.name}.grad")
        self.live: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        self.results: dict[str, Tensor] = {}
        self.segments = segments

    def run(self, seeds: Mapping[str, str] | None, again: int) -> Program:
        self._declare()
        self._compute(self.program.body)
        self.results = {value.name: self.live[value.name] for value in self.program.outputs}
        if seeds is None:
            for value in self.program.outputs:
                self.grads[value.name] = self.trace.input(SEED + value.name, value.shape, value.dtype)
        else:
            self.grads.update({name: self.live[seed] for name, seed in seeds.items()})
        moved = self._depending()
        for number, (first, end) in reversed(list(enumerate(parts(self.program)))):
            body = self.program.body[first:end]
            if number < again:
                self._compute(body)
            for instr in reversed(body):
                if any(name in moved for name in instr.operands):
                    self._back(instr, moved)
        self._outputs()
        return dead_code(self.trace.program())

    def _declare(self) -> None:
        for value in (*self.program.inputs, *self.program.weights):
            declare = self.trace.input if value.kind == "input" else self.trace.weight
            self.live[value.name] = declare(value.name, value.shape, value.dtype)

    def _compute(self, body: Sequence[Instr]) -> None:
        """These instructions of the program, in the new trace; later ones read what they give now."""
        for instr in body:
            results = instr.meaning(*(name and self.live[name] for name in instr.inputs), **instr.attrs)
            for name, tensor in zip(instr.outputs, results if isinstance(results, tuple) else (results,)):
                self.live[name] = tensor
                label = self.program.table[name].label
                if label and self.program.table[name].kind == "buffer":
                    self.trace.label(tensor, label)

    def _depending(self) -> set[str]:
        """Values that change with what is differentiated."""
        moved = set(self.wrt)
        for instr in self.program.body:
            if moved.intersection(instr.operands):
                moved.update(instr.outputs)
        return moved

    def _back(self, instr: Instr, moved: set[str]) -> None:
        """Add what this instruction hands back to the gradients of its operands."""
        given = tuple(self.grads.get(name) for name in instr.outputs)
        if all(grad is None for grad in given):
            return
        meaning = instr.meaning
        if meaning.backward is None:
            what = f"{instr.op} has no gradient: {meaning.gradient_refused or 'nobody has written it'}"
            raise UnsupportedError("differentiate", what)
        operands = [name and self.live[name] for name in instr.inputs]
        found = meaning.backward(given if len(given) > 1 else given[0], *operands, **instr.attrs)
        for index, (name, grad) in enumerate(zip(instr.inputs, found)):
            if name is None or name not in moved:
                continue
            if _trained(self.program.table[name]):
                self._sum(instr, index, name, cast(Tensor, given[0]))
            elif grad is not None:
                known = self.grads.get(name)
                self.grads[name] = grad if known is None else add(known, grad)

    def _sum(self, instr: Instr, index: int, name: str, grad: Tensor) -> None:
        """Add this step's gradient of a trained input to that of the batch."""
        known = self.sums.get(name)
        value = self.program.table[name]
        known = self.trace.input(INTO + name, value.shape, value.dtype) if known is None else known
        starts = instr.inputs[2] if instr.op == "product" else None
        rank = 1 if instr.op in ("add", "mul") else 2 if starts is None else 3
        if TRAINED.get(instr.op) != index or len(value.shape) != rank:
            operand = instr.meaning.operands[index].name
            raise UnsupportedError("differentiate", f"{operand} of {instr.op} cannot be trained: it is {name}")
        if instr.op == "take_rows":
            self.sums[name] = table_grad(grad, self.live[cast(str, instr.inputs[1])], known)
            return
        x = self.live[cast(str, instr.inputs[0])]
        if starts is not None:  # `group` made it, and says which token each row is of
            writer = self.program.writer.get(starts)
            if writer is None or self.program.body[writer].op != "group":
                raise UnsupportedError("differentiate", f"{name} is a stack whose rows no `group` has sorted")
            tokens = self.live[self.program.body[writer].outputs[0]]
            self.sums[name] = weight_grad(grad, x, self._segments(), known, tokens, self.live[starts])
            return
        owners, rows, each = self._owners(grad)
        if instr.op == "product":
            if each != 1:
                raise UnsupportedError("differentiate", f"{name} is multiplied by {each} rows of each token")
            self.sums[name] = weight_grad(_flat(grad), _flat(x), owners, known, rows)
        else:
            grad = mul(grad, x) if instr.op == "mul" else grad
            self.sums[name] = row_grad(_flat(grad), owners, known, rows, each=each)

    def _owners(self, grad: Tensor) -> tuple[Tensor, Tensor | None, int]:
        """Where each sequence's rows of a gradient begin, which tokens they belong to, and how many rows each has."""
        size = _flat(grad).shape[0]
        per = size if isinstance(size, Dim) else Dim(T=1)
        if per.B:
            return self.trace.input(SEQUENCES, (B + 1,), "i32"), None, per.B
        return self._segments(), self.live["rows"] if per.L else None, per.L or per.T

    def _segments(self) -> Tensor:
        starts = self.live.get(self.segments)
        if starts is None:
            raise InputError("differentiate", f"{self.program.name} has no input {self.segments!r}", field="segments")
        return starts

    def _outputs(self) -> None:
        for value in self.program.outputs:
            self.trace.output(value.name, self.results[value.name])
        for name in self.wrt:
            found = self.sums.get(name, self.grads.get(name))
            if found is None:
                what = f"nothing that is differentiated depends on {name}"
                raise InputError("differentiate", what, field="wrt", given=name)
            self.trace.output(GRAD + name, found)


def _trained(value: Value) -> bool:
    return value.kind == "input" and all(isinstance(size, int) for size in value.shape)


def _flat(x: Tensor) -> Tensor:
    """[..., D] as [M, D]"""
    rows: Any = x.shape[0]
    for size in x.shape[1:-1]:
        rows = rows * size
    return x if len(x.shape) == 2 else x.reshape(rows, x.shape[-1])
