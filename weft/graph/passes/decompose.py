"""Replace ops that a backend lacks by ops that it has."""

from collections.abc import Callable, Sequence
from typing import cast

from weft.dtype import DType
from weft.graph.program import Instr, Program, Value, arrange
from weft.graph.tensor import Tensor
from weft.graph.trace import Trace
from weft.graph.verify import BOUND

Supports = Callable[[str, Sequence[DType]], bool]  # Backend.supports


def decompose(program: Program, supports: Supports) -> Program:
    """Replace every op that `supports` refuses by its decomposition, until nothing changes.

    An op without a decomposition stays; compiling then reports that the backend lacks it.
    """
    after = _once(program, supports)
    while after != program:
        program, after = after, _once(after, supports)
    return program


def _once(program: Program, supports: Supports) -> Program:
    values, body = list(program.values), []
    for number, instr in enumerate(program.body):
        dtypes = [program.table[name].dtype for name in instr.operands]
        if instr.meaning.decomposition is None or supports(instr.op, dtypes):
            body.append(instr)
        else:
            new_values, new_body = _expanded(program, instr, f"%new{number}_")
            values += new_values
            body += new_body
    return arrange(program.name, values, body)


def _expanded(program: Program, instr: Instr, prefix: str) -> tuple[list[Value], list[Instr]]:
    """The values and instructions of the decomposition, traced on its own and renamed to fit the program."""
    trace = Trace(instr.op)
    operands: list[Tensor | None] = []
    names: dict[str | None, str] = {}
    for index, name in enumerate(instr.inputs):
        if name is None:
            operands.append(None)
            continue
        operands.append(_declared(trace, f"in{index}", program.table[name]))
        names[f"in{index}"] = name
    assert instr.meaning.decomposition is not None
    results = instr.meaning.decomposition(*operands, **instr.attrs)
    for index, result in enumerate(results if isinstance(results, tuple) else (results,)):
        trace.output(f"out{index}", result)
        names[f"out{index}"] = instr.outputs[index]
    inner = trace.program()
    buffers = inner.of_kind("buffer")
    names.update({value.name: prefix + value.name[1:] for value in buffers})
    body = [
        Instr(step.op, tuple(names.get(n) for n in step.inputs), tuple(names[n] for n in step.outputs), step.attrs)
        for step in inner.body
    ]
    return [Value(names[value.name], "buffer", value.dtype, value.shape) for value in buffers], body


def _declared(trace: Trace, name: str, value: Value) -> Tensor:
    kind = value.kind if value.kind in ("weight", *BOUND) else "input"
    return cast(Tensor, getattr(trace, kind)(name, value.shape, value.dtype))
