"""Building steps: the one place that turns sequences of tokens into a ragged batch, for decoders and encoders alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from weft import _core
from weft.errors import InputError
from weft.nn.step import Step

if TYPE_CHECKING:
    import numpy as np

    Ids = Sequence[int] | np.ndarray


def build_step(
    sequences: Sequence[Ids],
    *,
    starts: Sequence[int] | None = None,
    asked: Sequence[int] | None = None,
    pages: Sequence[np.ndarray] | None = None,
    slots: Sequence[tuple[int, int]] | None = None,
    adapters: Sequence[int] | None = None,
    **given: Any,
) -> Step:
    """The step of these tokens. Everything is per sequence; all arrays of the step are int32.

    sequences  the tokens of each that this step computes: lists, or int32 arrays, all of one kind
    starts     the position of each sequence's first token here; 0 by default
    asked      for how many of its last tokens rows are wanted; or give `rows` itself, as an array
    pages      its row of the page table
    slots      the slot that its recurrent state is read from, and the one that it is written to
    adapters   the index of its adapter; 0 is none
    given      further fields of the step as arrays: rows, spans, types
    """
    import numpy as np

    lengths = list(map(len, sequences))
    segments = offsets(lengths)
    ids = joined(sequences)
    positions = np.arange(len(ids), dtype=np.int32)
    if len(lengths) > 1 or starts is not None:
        first = segments[:-1] if starts is None else segments[:-1] - np.array(starts, np.int32)
        positions -= first[0] if len(lengths) == 1 else np.repeat(first, lengths)
    if asked is not None:
        given["rows"] = _last(segments, asked)
    if pages is not None:
        given["pages"] = np.stack(pages) if len(pages) > 1 else pages[0][None]
    if slots is not None:
        given["slots"] = np.array(slots, np.int32)
    if adapters is not None:
        given["adapters"] = np.array(adapters, np.int32)
    return Step(ids, positions, segments, **given)


def offsets(lengths: Sequence[int]) -> np.ndarray:
    """Where things of these lengths start one after another, and where the last one ends, int32."""
    import numpy as np

    return np.fromiter(accumulate(lengths, initial=0), np.int32, len(lengths) + 1)


def joined(parts: Sequence[Ids]) -> np.ndarray:
    """Ids one after another, int32."""
    import numpy as np

    if isinstance(parts[0], np.ndarray):
        whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return whole.astype(np.int32, copy=False)
    return np.array([id for part in parts for id in part] if len(parts) > 1 else parts[0], np.int32)


def _last(segments: np.ndarray, asked: Sequence[int]) -> np.ndarray:
    """The last `asked` tokens of each sequence."""
    import numpy as np

    ends = segments[1:].tolist()
    return np.array([row for end, count in zip(ends, asked) for row in range(end - count, end)], np.int32)


def filled(step: Step, inputs: Sequence[str], size: int) -> Step:
    """The step with what a program for pictures reads (`inputs`) and it lacks: tokens that are their ids, and not
    vectors of `size` numbers, that are turned by their positions and see nothing after them."""
    import numpy as np

    tokens, given = len(step.ids), dict[str, Any]()
    if step.vectors is None:
        given |= {"vectors": np.zeros((tokens, size), np.float32), "types": np.zeros(tokens, np.int32)}
    if step.deep is None:
        given["deep"] = tuple(np.zeros((tokens, size), np.float32) for name in inputs if name.startswith("deep."))
    if "turns" in inputs and step.turns is None:
        given["turns"] = np.broadcast_to(step.positions, (3, tokens)).copy()
    if "reach" in inputs and step.reach is None:
        given["reach"] = step.positions
    return replace(step, **given)


def check_step(where: str, step: Step, *, vocab: int, context: int, pages: int = 0, slots: int = 0) -> None:
    """InputError unless every index of the step is in range: the kernels trust them."""
    limits = [
        ("token ids", step.ids, vocab),
        ("positions", step.positions, context),
        ("rows", step.rows, len(step.ids)),
    ]
    limits += [("pages", step.pages, pages)] if step.pages is not None else []
    for name, values, limit in limits:
        if not _core.within(values, limit):
            raise InputError(where, f"must be 0 to {limit - 1}: got {values.min()} to {values.max()}", field=name)
    if step.turns is not None and not _core.within(step.turns.reshape(-1), context):
        what = f"must be 0 to {context - 1}: got {step.turns.min()} to {step.turns.max()}"
        raise InputError(where, what, field="turns")
    if step.reach is not None:
        _check_reach(where, step)
    if step.slots is not None:
        _check_slots(where, step.slots, slots)


def _check_reach(where: str, step: Step) -> None:
    """A token sees no position after the last one that this step writes for its sequence."""
    import numpy as np

    ends = step.segments[1:]
    last = np.repeat(step.positions[np.maximum(ends - 1, 0)], np.diff(step.segments))
    if step.reach.shape != step.positions.shape or (step.reach < step.positions).any() or (step.reach > last).any():
        what = "must be positions from a token's own to the last one of its sequence in this step"
        raise InputError(where, what, field="reach")


def _check_slots(where: str, table: Any, slots: int) -> None:
    import numpy as np

    sources, targets = np.ascontiguousarray(table[:, 0] + 1), np.ascontiguousarray(table[:, 1])
    if not (_core.within(sources, slots + 1) and _core.within(targets, slots)):
        raise InputError(
            where, f"must be 0 to {slots - 1}, or -1 to read none: got {table.tolist()!r:.200}", field="slots"
        )
    if len(set(targets.tolist())) < len(targets) or set(targets.tolist()) & set((sources - 1).tolist()):
        raise InputError(where, "that are written must be of one sequence each, and not read", field="slots")
