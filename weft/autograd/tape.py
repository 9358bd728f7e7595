"""The tape: what was computed from what, and the walk back along it.

Nodes are numbered in the order of the calls, so an operand's node always has a smaller number than its results'. The
walk goes by falling numbers; gradients between nodes are float64, and are rounded once, at the variables that get them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from weft.errors import InputError
from weft.ops.registry import Op

_numbers = itertools.count()


class Recorder(Protocol):
    """A trace that calls of ops go to while a function is compiled."""

    def concerns(self, variable: Any) -> bool:
        """Whether a call with this operand belongs into the trace."""

    def record(self, op: Op, operands: list[Any], attrs: dict[str, Any]) -> Any: ...

    def made_anew(self, make: Callable[[], np.ndarray], shape: tuple[int, ...]) -> Any:
        """A variable of this shape whose value `make` gives at every call."""

    def assign(self, target: Any, result: Any) -> None:
        """Give `target` the value of a result after every call."""

    def enter(self, module: Any) -> None:
        """Note that the trace holds for this module in the mode that it is in."""


class _Mode(threading.local):
    """What a thread is doing: whether it keeps a tape, and where a function is being traced."""

    gradients = True
    recorder: Recorder | None = None


MODE = _Mode()


class OnTape:
    """What the tape knows of a variable."""

    requires_grad: bool
    dtype: Any
    grad: np.ndarray | None
    node: Node | None
    place: int  # which of the node's results it is


class Node:
    """One call: `back` turns the gradients of its results into those of its operands."""

    def __init__(self, name: str, operands: Sequence[OnTape | None], results: int, back: Callable[..., Any]) -> None:
        self.name = name
        self.number = next(_numbers)
        self.operands = tuple(operands)
        self.results = results
        self.back: Callable[..., Any] | None = back

    def attach(self, results: Sequence[OnTape]) -> None:
        """Make these variables the node's results."""
        for place, result in enumerate(results):
            result.requires_grad, result.node, result.place = True, self, place

    def release(self) -> None:
        """Forget what was kept for the gradient."""
        self.operands, self.back = (), None


@contextmanager
def no_grad() -> Iterator[None]:
    """Within it, in this thread, results depend on nothing: no tape is kept."""
    before, MODE.gradients = MODE.gradients, False
    try:
        yield
    finally:
        MODE.gradients = before


def walk_back(last: OnTape, grad: np.ndarray, keep: bool) -> None:
    """Add to `grad` of every leaf that `last` depends on its share of `grad`, a float64 gradient of `last`."""
    nodes = _nodes_of(last)
    at_node: dict[int, dict[int, np.ndarray]] = {}
    at_leaf: dict[int, tuple[OnTape, np.ndarray]] = {}

    def give(variable: OnTape, grad: np.ndarray) -> None:
        if variable.node is None:
            known = at_leaf.get(id(variable))
            at_leaf[id(variable)] = (variable, grad if known is None else known[1] + grad)
        else:
            places = at_node.setdefault(variable.node.number, {})
            before = places.get(variable.place)
            places[variable.place] = grad if before is None else before + grad

    give(last, grad)
    for node in nodes:
        found = at_node.pop(node.number, None)
        if found is None:
            continue
        assert node.back is not None
        given = [found.get(place, np.zeros(1)) for place in range(node.results)]  # zeros: nothing reads that result
        for operand, one in zip(node.operands, node.back(*given)):
            if operand is not None and operand.requires_grad and one is not None:
                give(operand, one)
    for variable, total in at_leaf.values():
        new = total.astype(variable.dtype)
        variable.grad = new if variable.grad is None else variable.grad + new
    if not keep:
        for node in nodes:
            node.release()


def _nodes_of(last: OnTape) -> list[Node]:
    """The nodes that a variable depends on, newest first: each comes before those of its operands."""
    found: dict[int, Node] = {}
    waiting = [last.node] if last.node is not None else []
    while waiting:
        node = waiting.pop()
        if node.number in found:
            continue
        if node.back is None:
            what = f"the tape was given up by an earlier backward, at {node.name}"
            raise InputError("backward", what, advice="pass keep=True to the first, or compute the result again")
        found[node.number] = node
        waiting += [one.node for one in node.operands if one is not None and one.node is not None]
    return [found[number] for number in sorted(found, reverse=True)]
