"""Steps of a model: filled with whatever waits, small, fair to long requests and quick for short ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from weft.errors import BackendError, BusyError, InputError
from weft.serve.models.steps import SHORT_TOKENS, STEP_TOKENS, Steps

LONG = 250  # tokens of a document


class Recorded:
    """Steps whose rows are the first number of each sequence; what each was made of is kept."""

    def __init__(self, threads: int = 1, waiting: int = 100) -> None:
        self.made: list[tuple[list[int], str | None]] = []
        self.steps = Steps(self._make, width=1, threads=threads, waiting=waiting)

    def _make(self, sequences: list[Any], adapter: str | None) -> np.ndarray:
        self.made.append(([int(sequence[0]) for sequence in sequences], adapter))
        if any(sequence[0] < 0 for sequence in sequences):
            raise InputError("test", "this one fails")
        return np.array([[sequence[0]] for sequence in sequences], np.float32)

    @property
    def order(self) -> list[list[int]]:
        return [owners for owners, _ in self.made]


def run(threads: int, work: Callable[[Recorded], Awaitable[None]]) -> Recorded:
    recorded = Recorded(threads)

    async def main() -> None:
        await work(recorded)
        await recorded.steps.close()

    asyncio.run(main())
    return recorded


def texts(owner: int, count: int, tokens: int) -> list[np.ndarray]:
    return [np.full(tokens, owner, np.int32)] * count


async def ask(recorded: Recorded, owner: int, count: int, tokens: int, adapter: str | None = None) -> None:
    rows, waited = await recorded.steps.rows(texts(owner, count, tokens), adapter)
    assert rows.shape == (count, 1) and (rows == owner).all() and waited >= 0


@pytest.mark.parametrize("threads", [1, 4])
def test_a_step_has_no_more_tokens_than_the_threads_are_worth(threads: int) -> None:
    recorded = run(threads, lambda made: ask(made, 1, 40, LONG))
    assert {len(owners) for owners in recorded.order[:-1]} == {STEP_TOKENS * threads // LONG}
    alone = run(1, lambda made: ask(made, 1, 2, 3 * STEP_TOKENS))  # one that is longer than a step is a step
    assert alone.order == [[1], [1]]


def test_a_query_waits_for_the_step_in_hand_and_no_other() -> None:
    async def work(made: Recorded) -> None:
        await asyncio.gather(*(ask(made, owner, 20, LONG) for owner in (1, 2, 3)), ask(made, 9, 1, 3))

    order = run(1, work).order
    assert order[0] == [9]  # the queue was looked at once all four were there
    assert all(len(owners) <= STEP_TOKENS // LONG for owners in order[1:])


def test_queries_without_end_do_not_keep_a_long_request_from_its_end() -> None:
    async def work(made: Recorded) -> None:
        bulk = asyncio.ensure_future(ask(made, 1, 20, LONG))

        async def queries() -> None:
            while not bulk.done():
                await ask(made, 9, 1, SHORT_TOKENS)

        await asyncio.gather(bulk, *(queries() for _ in range(8)))

    order = run(1, work).order
    steps = [1 in owners for owners in order]
    assert all(steps[i] or steps[i + 1] for i in range(steps.index(True), len(steps) - steps[::-1].index(True) - 1))


def test_long_requests_share_steps_and_none_is_left_behind() -> None:
    async def work(made: Recorded) -> None:
        await asyncio.gather(*(ask(made, owner, 8, LONG) for owner in (1, 2, 3, 4)))

    order = run(1, work).order
    assert len(order) == 16  # each of them full
    for step in range(0, 16, 4):
        counts = [sum(owners.count(owner) for owners in order[: step + 4]) for owner in (1, 2, 3, 4)]
        assert max(counts) - min(counts) <= 2


def test_what_the_shares_leave_is_filled() -> None:
    async def work(made: Recorded) -> None:
        await asyncio.gather(ask(made, 1, 4, 200), ask(made, 2, 40, 10))

    assert run(1, work).order[0].count(2) > STEP_TOKENS // 2 // 10


def test_only_requests_of_one_adapter_share_a_step() -> None:
    async def work(made: Recorded) -> None:
        asked = [(1, 20, LONG, None), (2, 20, LONG, "a"), (3, 1, 3, "a"), (4, 1, 3, None), (5, 1, 3, "a")]
        await asyncio.gather(*(ask(made, *one) for one in asked))

    made = run(1, work).made
    assert all(len({owner in (2, 3, 5) for owner in owners}) == 1 for owners, _ in made)
    assert all((adapter == "a") == (owners[0] in (2, 3, 5)) for owners, adapter in made)
    answered = [next(i for i, (owners, _) in enumerate(made) if owner in owners) for owner in (3, 4, 5)]
    assert max(answered) <= 3


def test_a_step_that_fails_is_told_to_who_was_in_it_and_the_next_goes_on() -> None:
    async def work(made: Recorded) -> None:
        found = await asyncio.gather(
            *(ask(made, owner, 2, STEP_TOKENS // 2 + 1) for owner in (1, -1, 2)), return_exceptions=True
        )
        assert [type(one) for one in found] == [type(None), InputError, type(None)]

    run(1, work)


def test_who_goes_leaves_nothing_to_compute_and_a_full_queue_is_told() -> None:
    async def work(made: Recorded) -> None:
        gone = asyncio.ensure_future(ask(made, 7, 1000, LONG))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await ask(made, 1, 1, 3)
        made.steps._most_waiting = 0
        with pytest.raises(BusyError, match="queue is full"):
            await ask(made, 1, 1, 3)
        rows, waited = await _none(made)
        assert rows.shape == (0, 1) and waited == 0

    async def _none(made: Recorded) -> Sequence[Any]:
        made.steps._most_waiting = 10
        return await made.steps.rows([])

    recorded = run(1, work)
    assert sum(owners.count(7) for owners in recorded.order) <= 2 * STEP_TOKENS // LONG

    async def closed() -> None:
        with pytest.raises(BackendError, match="unloaded"):
            await recorded.steps.rows(texts(1, 1, 1))

    asyncio.run(closed())
