"""One op as a whole program, which runs the catalogue's samples on a backend in tests and kernel benchmarks."""

from collections.abc import Sequence
from typing import Any

from weft.frozen import frozen
from weft.graph.plan import plan
from weft.graph.program import Program
from weft.graph.trace import Trace
from weft.graph.verify import BOUND
from weft.ops.registry import Op
from weft.ops.spec import spec_of


@frozen
class Single:
    """A planned program of one instruction and the values to bind to it; its outputs are `out0`, `out1`, …"""

    program: Program
    inputs: dict[str, Any]
    weights: dict[str, Any]
    states: dict[str, Any]


def single(op: Op, operands: Sequence[Any], attrs: dict[str, Any]) -> Single:
    """The op on these operands, all with fixed sizes: weights, states and tables by their role, the rest as inputs.

    `states` holds the tables too.
    """
    given: dict[str, dict[str, Any]] = {"input": {}, "weight": {}, "state": {}}
    trace = Trace(op.name)
    symbols: list[Any] = []
    for operand, value in zip(op.operands, operands):
        if value is None:
            symbols.append(None)
            continue
        kind = operand.role if operand.role in ("weight", *BOUND) else "input"
        spec = spec_of(value)
        symbols.append(getattr(trace, kind)(operand.name, spec.shape, dtype=spec.dtype))
        given["state" if kind in BOUND else kind][operand.name] = value
    results = op(*symbols, **attrs)
    for index, result in enumerate([] if results is None else results if isinstance(results, tuple) else [results]):
        trace.output(f"out{index}", result)
    return Single(plan(trace.program()), given["input"], given["weight"], given["state"])
