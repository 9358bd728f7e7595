"""The best plan for a size or a loss: a type for every matrix, so that the next byte goes where it helps most.

What a type costs a matrix is the part of its output's square that is lost: errors of weights, each column times what it
is multiplied by. It is estimated from some rows. Matrices begin with the smallest type, and then the step up that wins
most for a byte is taken, again and again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from weft.dtype import DTYPES
from weft.errors import InputError
from weft.frozen import frozen
from weft.quantise.encoding import encode
from weft.quantise.plan import Plan, make_plan
from weft.weights import TensorView

LADDER = ("q2_k", "q3_k", "iq4_xs", "iq4_nl", "q4_0", "q4_k", "q4_1", "q5_0", "q5_k", "q5_1", "q6_k", "q8_0", "f16")
ROWS = 128  # of a matrix, of which its losses are estimated


@frozen
class Step:
    """A type that a matrix may have: its bytes, and the part of its output's square that is lost."""

    type: str
    nbytes: int
    lost: float


def choose_plan(
    tensors: Mapping[str, TensorView],
    *,
    size: int | None = None,
    max_loss: float | None = None,
    importance: Mapping[str, np.ndarray] | None = None,
    widen: bool = False,
    threads: int = 1,
    tell: Callable[[int, int], None] | None = None,
) -> Plan:
    """The plan that loses least in `size` bytes of tensors, or the smallest whose mean loss is at most `max_loss`.

    The loss of a plan is the mean over its matrices. `importance` and `widen` are those of `Quantising` and
    `make_plan`; `tell` hears how many matrices of how many are measured.
    """
    if (size is None) == (max_loss is None):
        raise InputError("quantize", "needs a size or a loss, and not both", field="size", given=size)
    if max_loss is not None and not max_loss > 0:
        raise InputError("quantize", "must be above 0", field="max_loss", given=max_loss)
    types, others = (dict(make_plan(tensors, kind, widen=widen).types) for kind in ("f16", "bf16"))
    matrices = [name for name, kind in types.items() if kind != others[name]]  # whose type a plan decides
    if not matrices:
        raise InputError("quantize", "has no matrix to quantise", field="model")
    ladders = {}
    for number, name in enumerate(matrices):
        ladders[name] = ladder(tensors[name], (importance or {}).get(name), threads)
        if tell is not None:
            tell(number + 1, len(matrices))
    kept = sum(DTYPES[kind].nbytes(tensors[name].size) for name, kind in types.items() if name not in ladders)
    chosen = _climb(ladders, kept, size, max_loss)
    return Plan("auto", {name: chosen[name].type if name in chosen else kind for name, kind in types.items()})


def ladder(view: TensorView, importance: np.ndarray | None, threads: int = 1) -> list[Step]:
    """The types that are worth their bytes, from the smallest on: each step up wins less for a byte than the last."""
    columns = view.shape[-1]
    values = _some_rows(view)
    weights = np.ones(columns) if importance is None else np.atleast_2d(importance).mean(0)
    square = float((weights * values.astype(np.float64) ** 2).sum())
    found: list[Step] = []
    for kind in LADDER:
        if columns % DTYPES[kind].block:
            continue
        made = encode(values, kind, importance=None if importance is None else weights, threads=threads).numpy()
        lost = float((weights * (values.astype(np.float64) - made) ** 2).sum()) / square if square else 0.0
        found.append(Step(kind, DTYPES[kind].nbytes(view.size), lost))
    return _hull(found)


def _some_rows(view: TensorView) -> np.ndarray:
    """Rows from everywhere in the matrix, always the same ones."""
    columns = view.shape[-1]
    count = view.size // columns
    rows = np.unique(np.linspace(0, count - 1, min(count, ROWS)).astype(np.int64))
    data = view.bytes().reshape(count, -1)[rows]
    return np.ascontiguousarray(TensorView(view.dtype, (len(rows), columns), data).numpy(), dtype=np.float32)


def _hull(steps: Sequence[Step]) -> list[Step]:
    found: list[Step] = []
    for step in sorted(steps, key=lambda step: (step.nbytes, step.lost)):
        if found and step.lost >= found[-1].lost:
            continue
        while len(found) > 1 and _gain(found[-1], step) >= _gain(found[-2], found[-1]):
            found.pop()
        if found and found[-1].nbytes == step.nbytes:
            continue
        found.append(step)
    return found


def _gain(low: Step, high: Step) -> float:
    return (low.lost - high.lost) / (high.nbytes - low.nbytes)


def _climb(
    ladders: Mapping[str, Sequence[Step]], kept: int, size: int | None, max_loss: float | None
) -> dict[str, Step]:
    at = dict.fromkeys(ladders, 0)
    total = kept + sum(steps[0].nbytes for steps in ladders.values())
    lost = sum(steps[0].lost for steps in ladders.values())
    if size is not None and total > size:
        what = f"is less than the smallest types need, {total} bytes of tensors"
        raise InputError("quantize", what, field="size", given=size)
    heap = [(-_gain(*steps[:2]), name) for name, steps in ladders.items() if len(steps) > 1]
    heapq.heapify(heap)
    while heap and (max_loss is None or lost > max_loss * len(ladders)):
        _, name = heapq.heappop(heap)
        steps, here = ladders[name], at[name]
        more = steps[here + 1].nbytes - steps[here].nbytes
        if size is not None and total + more > size:
            continue  # a smaller matrix may still fit
        at[name], total, lost = here + 1, total + more, lost + steps[here + 1].lost - steps[here].lost
        if here + 2 < len(steps):
            heapq.heappush(heap, (-_gain(steps[here + 1], steps[here + 2]), name))
    if max_loss is not None and lost > max_loss * len(ladders):
        what = f"is less than f16 loses, {lost / len(ladders):.3g}"
        raise InputError("quantize", what, field="max_loss", given=max_loss)
    return {name: ladders[name][place] for name, place in at.items()}
