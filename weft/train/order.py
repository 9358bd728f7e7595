"""Which lessons come when: pure functions of the seed and the epoch, so that a run can be taken up anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

from weft.errors import InputError


def shuffled(count: int, seed: int, epoch: int) -> list[int]:
    """The numbers 0 to count - 1 in the order of this epoch, the same on every machine."""
    return sorted(range(count), key=lambda number: sha256(f"{seed} {epoch} {number}".encode()).digest())


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
