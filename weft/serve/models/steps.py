"""Steps of one model, shared by many requests so that none delays the others for long."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from weft.errors import BackendError, BusyError

if TYPE_CHECKING:
    import numpy as np

    from weft.text import Tokenizer

    Make = Callable[[list[Any], str | None], np.ndarray]

T = TypeVar("T")

STEP_TOKENS = 512  # per thread of the model: the most that one step computes
SHORT_TOKENS = 128  # a request with no more than this left counts as short


@dataclass(eq=False)
class _Job:
    """The sequences of one request that are not computed yet, `tokens` in total."""

    adapter: str | None
    left: deque[tuple[int, Any]]
    tokens: int
    rows: np.ndarray
    done: asyncio.Future[None]
    missing: int
    queued: float = field(default_factory=time.monotonic)
    began: float | None = None


_Taken = list[tuple[_Job, int, Any]]


class Steps:
    """`make` computes a row of `width` numbers for each sequence of tokens, independent of the others in its step; so
    steps are filled from all waiting requests.

    While both short and long requests wait, every other step takes only short ones: a query is answered during a bulk
    request, and a bulk request makes progress during many queries.
    """

    def __init__(self, make: Make, *, width: int, threads: int, waiting: int) -> None:
        self._make = make
        self._width = width
        self._most_tokens = STEP_TOKENS * threads
        self._most_waiting = waiting
        self._jobs: deque[_Job] = deque()
        self._short_step = False
        self._worker: asyncio.Task[None] | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "weft-steps")  # the model has threads of its own

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    async def rows(self, sequences: Sequence[Any], adapter: str | None = None) -> tuple[np.ndarray, float]:
        """The rows of `sequences`, float32 [len(sequences), width], and the seconds spent waiting."""
        import numpy as np

        if self._closed:
            raise BackendError("serve", "the model is being unloaded")
        if len(self._jobs) >= self._most_waiting:
            raise BusyError(
                "serve", f"the model's queue is full with {len(self._jobs)} requests", advice="try again later"
            )
        rows = np.empty((len(sequences), self._width), np.float32)
        if not sequences:
            return rows, 0.0
        done = asyncio.get_running_loop().create_future()
        tokens = sum(map(len, sequences))
        job = _Job(adapter, deque(enumerate(sequences)), tokens, rows, done, len(sequences))
        self._jobs.append(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        try:
            await done
        finally:
            job.left.clear()
        return rows, (job.began or job.queued) - job.queued

    async def between(self, work: Callable[[], T]) -> T:
        """Run other work with the model, between two steps."""
        if self._closed:
            raise BackendError("serve", "the model is being unloaded")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._take():
            try:
                found = await loop.run_in_executor(
                    self._thread, self._make, [sequence for _, _, sequence in batch], batch[0][0].adapter
                )
            except Exception as error:
                for job, _, _ in batch:
                    job.left.clear()
                    if not job.done.done():
                        job.done.set_exception(error)
                continue
            for (job, place, _), row in zip(batch, found):
                job.rows[place] = row
                job.missing -= 1
                if not job.missing and not job.done.done():
                    job.done.set_result(None)

    def _take(self) -> _Taken:
        """The sequences of the next step."""
        self._jobs = deque(job for job in self._jobs if job.left)
        short = [job for job in self._jobs if job.tokens <= SHORT_TOKENS]
        self._short_step = 0 < len(short) < len(self._jobs) and not self._short_step
        if self._short_step:
            return self._shared(short)
        taken = self._shared(self._jobs)
        self._jobs.rotate(-1)  # so that the oldest request does not always get the first share and choose the adapter
        return taken

    def _shared(self, jobs: Sequence[_Job]) -> _Taken:
        """A step of requests with the first one's adapter: an equal share for each, then the rest for longer ones."""
        taken: _Taken = []
        sharing = [job for job in jobs if job.adapter == jobs[0].adapter]
        tokens, now = 0, time.monotonic()
        for share in (self._most_tokens // max(1, len(sharing)), self._most_tokens):
            for job in sharing:
                own = 0
                while job.left:
                    place, sequence = job.left[0]
                    size = len(sequence)
                    if (taken and tokens + size > self._most_tokens) or (own and own + size > share):
                        break
                    job.left.popleft()
                    job.began = job.began or now
                    taken.append((job, place, sequence))
                    tokens, own, job.tokens = tokens + size, own + size, job.tokens - size
        return taken

    async def close(self) -> None:
        self._closed = True
        if self._worker is not None:
            await asyncio.wait({self._worker})
        self._thread.shutdown()


class StepRunner:
    """One loaded model whose requests share steps: what embedders, rerankers and classifiers have in common."""

    def __init__(self, model: Any, make: Make, *, width: int, waiting: int) -> None:
        self._model = model
        self._steps = Steps(make, width=width, threads=model.info["threads"], waiting=waiting)
        self._texts = ThreadPoolExecutor(1, "weft-tokens")

    @property
    def info(self) -> dict[str, Any]:
        return dict(self._model.info)

    @property
    def max_tokens(self) -> int:
        return int(self._model.max_tokens)

    @property
    def tokenizer(self) -> Tokenizer:
        found: Tokenizer = self._model.tokenizer
        return found

    @property
    def waiting(self) -> int:
        return self._steps.waiting

    @property
    def failure(self) -> BaseException | None:
        return None

    async def tokenized(self, make: Callable[[], T]) -> T:
        """What `make` returns, computed by the thread that tokenizes."""
        return await asyncio.get_running_loop().run_in_executor(self._texts, make)

    async def close(self) -> None:
        await self._steps.close()
        self._texts.shutdown()
