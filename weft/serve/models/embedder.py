"""An embedding model in a server: many requests share its steps, and none can keep the others waiting for long."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.errors import BackendError, BusyError, InputError, TooLongError

if TYPE_CHECKING:
    import numpy as np

    from weft.embed import Embedder
    from weft.embed.service import TokenIds
    from weft.runtime import Adapters
    from weft.text import Tokenizer

STEP_TOKENS = 4096  # computed before the next request has its turn


@dataclass(eq=False)
class _Job:
    """The texts of one request that have no vectors yet."""

    adapter: str | None
    left: deque[tuple[int, np.ndarray]]
    vectors: np.ndarray
    done: asyncio.Future[None]
    missing: int
    queued: float = field(default_factory=time.monotonic)
    began: float | None = None


class EmbedRunner:
    """One loaded embedder. Vectors do not depend on who shares a step, so steps are filled with whatever waits."""

    kind = "embed"

    def __init__(self, embedder: Embedder, *, waiting: int) -> None:
        self.embedder = embedder
        self._most_waiting = waiting
        self._jobs: deque[_Job] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "weft-embed")  # steps; the encoder has threads of its own
        self._texts = ThreadPoolExecutor(1, "weft-tokens")

    @property
    def info(self) -> dict[str, Any]:
        return self.embedder.info

    @property
    def max_tokens(self) -> int:
        return self.embedder.max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self.embedder.tokenizer

    @property
    def adapters(self) -> Adapters:
        return self.embedder.adapters

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    @property
    def failure(self) -> BaseException | None:
        return None

    async def token_ids(self, texts: Sequence[str], **how: Any) -> TokenIds:
        """The ids of texts, made by another thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._texts, lambda: self.embedder.token_ids(texts, **how)
        )

    def given_ids(self, inputs: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Ids that a client sent, checked: the kernels trust theirs."""
        import numpy as np

        vocabulary = self.embedder.vocab_size
        for i, ids in enumerate(inputs):
            if not ids or min(ids) < 0 or max(ids) >= vocabulary:
                raise InputError(f"[embed] input {i}: token ids are 0 to {vocabulary - 1}, and at least one is needed")
            if len(ids) > self.max_tokens:
                raise TooLongError(
                    f"[embed] input {i} has {len(ids)} tokens, the model takes {self.max_tokens}",
                    length=len(ids),
                    limit=self.max_tokens,
                )
        return [np.asarray(ids, np.int32) for ids in inputs]

    async def vectors(self, ids: Sequence[np.ndarray], adapter: str | None = None) -> tuple[np.ndarray, float]:
        """Vectors of `ids`, float32 [len(ids), dimension], and the seconds that they waited."""
        import numpy as np

        if self._closed:
            raise BackendError("[embed] the model is being unloaded")
        if len(self._jobs) >= self._most_waiting:
            raise BusyError(f"[embed] {len(self._jobs)} requests wait, which is the most; try again later")
        if adapter is not None:
            self.embedder.adapters.get(adapter)
        vectors = np.empty((len(ids), self.embedder.dimension), np.float32)
        if not ids:
            return vectors, 0.0
        done = asyncio.get_running_loop().create_future()
        job = _Job(adapter, deque(enumerate(ids)), vectors, done, len(ids))
        self._jobs.append(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        try:
            await done
        finally:
            job.left.clear()
        return vectors, (job.began or job.queued) - job.queued

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._take():
            adapter, ids = batch[0][0].adapter, [ids for _, _, ids in batch]
            try:
                found = await loop.run_in_executor(
                    self._thread, partial(self.embedder.encode_ids, ids, adapter=adapter)
                )
            except Exception as error:
                for job, _, _ in batch:
                    job.left.clear()
                    if not job.done.done():
                        job.done.set_exception(error)
                continue
            for (job, place, _), vector in zip(batch, found):
                job.vectors[place] = vector
                job.missing -= 1
                if not job.missing and not job.done.done():
                    job.done.set_result(None)

    def _take(self) -> list[tuple[_Job, int, np.ndarray]]:
        """The texts of the next step: of one adapter, a share of each request that waits, oldest first."""
        self._jobs = deque(job for job in self._jobs if job.left)
        if not self._jobs:
            return []
        taken: list[tuple[_Job, int, np.ndarray]] = []
        adapter, tokens, now = self._jobs[0].adapter, 0, time.monotonic()
        sharing = [job for job in self._jobs if job.adapter == adapter]
        share = max(1, STEP_TOKENS // len(sharing))
        for job in sharing:
            own = 0
            while job.left and (not taken or tokens + len(job.left[0][1]) <= STEP_TOKENS) and own < share:
                place, ids = job.left.popleft()
                job.began = job.began or now
                taken.append((job, place, ids))
                tokens, own = tokens + len(ids), own + len(ids)
        self._jobs.rotate(-1)  # who came first does not always choose the adapter
        return taken

    async def close(self) -> None:
        self._closed = True
        if self._worker is not None:
            await asyncio.wait({self._worker})
        self._thread.shutdown()
        self._texts.shutdown()
