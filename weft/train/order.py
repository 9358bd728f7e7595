"""Which lessons come when, and what dropout leaves out: pure functions of seeds and numbers, so that a run can be taken
up anywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np


def shuffled(count: int, seed: int, epoch: int) -> list[int]:
    """The numbers 0 to count - 1 in the order of this epoch, the same on every machine."""
    return sorted(range(count), key=lambda number: sha256(f"{seed} {epoch} {number}".encode()).digest())


def held_out(rows: Sequence[int], part: float, seed: int) -> set[int]:
    """A part of these rows, chosen by the seed: at least one, and not all."""
    held = min(len(rows) - 1, max(1, round(part * len(rows))))
    if held < 1:
        what = f"must leave rows on both sides, and there is {len(rows)}"
        raise InputError("train", what, field="valid", given=part, advice="give more rows, or a file")
    return {rows[number] for number in shuffled(len(rows), seed, -1)[:held]}


def distinct_batches(texts: Sequence[Collection[Any]], order: Sequence[int], size: int) -> Iterator[list[int]]:
    """`size` examples at a time in this order, none of which has a text of another one: where all others count as
    wrong answers, the same text must not. An example that has to wait comes first in the next batch."""
    waiting = deque(order)
    while waiting:
        held: list[int] = []
        later: list[int] = []
        seen: set[Any] = set()
        while waiting and len(held) < size:
            number = waiting.popleft()
            if seen.isdisjoint(texts[number]):
                held.append(number)
                seen.update(texts[number])
            else:
                later.append(number)
        yield held
        waiting.extendleft(reversed(later))


def batches(lengths: Sequence[int], order: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The lessons in this order, together as long as they have at most `tokens` tokens. A longer one is alone.

    An epoch is cut into batches so, and a batch into steps, by what memory allows.
    """
    if tokens < 1:
        raise InputError("train", "must be at least 1", field="batch_tokens", given=tokens)
    held: list[int] = []
    size = 0
    for number in order:
        if held and size + lengths[number] > tokens:
            yield held
            held, size = [], 0
        held.append(number)
        size += lengths[number]
    if held:
        yield held


def mask(draw: str, rows: int, cols: int, part: float) -> np.ndarray:
    """What rows are multiplied by to leave out a part of their numbers and keep their mean, f32 [rows, cols]."""
    import numpy as np

    key = int.from_bytes(sha256(draw.encode()).digest()[:16], "little")
    kept = np.random.Generator(np.random.Philox(key=key)).random((rows, cols), np.float32) >= part
    return kept.astype(np.float32) / np.float32(1 - part)
