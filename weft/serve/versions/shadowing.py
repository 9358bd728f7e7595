"""Shadow runs in a server: a candidate answers a share of the requests, too, off the reply's path.

A sample is computed after its reply: by the version that is served, whose result and time count as the baseline, and by
the candidate. One sample is computed at a time; those that come meanwhile wait in a short queue, or are skipped.
Counts go to the registry, which judges.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.frozen import frozen
from weft.registry import shadow
from weft.registry.reference import parse
from weft.registry.shadow import Shadow, ShadowCounts
from weft.serve.http.faults import Fault
from weft.serve.versions.following import entry_at

if TYPE_CHECKING:
    import numpy as np

    from weft.serve.models.pool import Entry, Models
    from weft.serve.versions.following import Following

WAITING = 16  # samples
POLL_S = 0.5  # between two looks at the registry

log = logging.getLogger("weft.serve")

Compute = Callable[[Any], "Awaitable[tuple[np.ndarray, np.ndarray]]"]


@frozen
class Sample:
    """One request. `compute` has a runner answer it: what agrees (tokens, labels, an order), and numbers to compare."""

    entry: Entry
    compute: Compute
    by_angle: bool = False  # the numbers are vectors, compared by cosine; none of them has to agree


class Shadowing:
    """The shadow runs that a server takes part in."""

    def __init__(self, following: Following, models: Models) -> None:
        self._following = following
        self._models = models
        self._runs: dict[str, Shadow] = {}
        self._queue: asyncio.Queue[Sample] = asyncio.Queue(WAITING)
        self._candidates: dict[str, Entry] = {}
        self._skipped: dict[int, int] = {}
        self._random = random.Random(0)

    def offer(self, entry: Entry | None, compute: Compute, *, by_angle: bool = False) -> None:
        """Sample a request that has been answered, if there is a run for its version. Never raises, never waits."""
        run = self._run_for(entry) if entry is not None else None
        if entry is None or run is None or self._random.random() >= run.limits.share:
            return
        try:
            self._queue.put_nowait(Sample(entry, compute, by_angle))
        except asyncio.QueueFull:
            self._skipped[run.id] = self._skipped.get(run.id, 0) + 1

    def _run_for(self, entry: Entry) -> Shadow | None:
        if not entry.version or not self._runs:
            return None
        asked = parse(entry.spec.source)
        run = self._runs.get(asked.name)
        return run if run is not None and (run.alias, run.baseline) == (asked.which, entry.version) else None

    async def watch(self) -> None:
        """Learn of runs that begin and end, for ever."""
        while True:
            try:
                await self._refresh()
            except Exception as error:
                log.error("registry not read", extra={"error": str(error)})
            await asyncio.sleep(POLL_S)

    async def _refresh(self) -> None:
        self._runs = await asyncio.to_thread(shadow.running, self._following.registry.database)
        for name, entry in list(self._candidates.items()):
            if name not in self._runs or self._runs[name].candidate != entry.version:
                del self._candidates[name]
                self._models.retire(entry)

    async def work(self) -> None:
        """Compare samples one after another, for ever."""
        while True:
            sample = await self._queue.get()
            run = self._run_for(sample.entry)
            if run is None:
                continue
            try:
                counts = await self._compared(run, sample)
                counts = replace(counts, skipped=counts.skipped + self._skipped.pop(run.id, 0))
                await asyncio.to_thread(shadow.add, self._following.registry.database, run.id, counts)
            except Exception as error:  # the registry is out of reach: this sample is lost
                log.error("shadow sample not counted", extra={"run": run.name, "error": str(error)})

    async def _compared(self, run: Shadow, sample: Sample) -> ShadowCounts:
        try:
            baseline, baseline_ms = await self._timed(run, sample.entry, sample)
        except Exception as error:  # not the candidate's fault
            log.warning("shadow baseline failed", extra={"run": run.name, "error": str(error)})
            return ShadowCounts(skipped=1)
        try:
            candidate = await self._candidate(run, sample.entry)
            found, candidate_ms = await self._timed(run, candidate, sample)
            measured = difference(baseline, found, sample.by_angle, run.limits.max_difference)
        except Exception as error:
            if isinstance(error, Fault) and error.code in ("no_room", "model_too_large"):
                log.warning("no memory for the candidate", extra={"run": run.name, "error": error.message})
                return ShadowCounts(skipped=1)
            said = error.message if isinstance(error, Fault) else str(error) or type(error).__name__
            log.warning("shadow candidate failed", extra={"run": run.name, "version": run.candidate, "error": said})
            return ShadowCounts(samples=1, errors=1)
        if measured is None:
            return ShadowCounts(samples=1, errors=1, not_finite=1)
        agreement, apart = measured
        return ShadowCounts(
            samples=1,
            agreement=agreement,
            difference=apart,
            largest_difference=apart,
            baseline_ms=baseline_ms,
            candidate_ms=candidate_ms,
        )

    async def _candidate(self, run: Shadow, entry: Entry) -> Entry:
        found = self._candidates.get(run.name)
        if found is None or found.version != run.candidate:
            found = await asyncio.to_thread(entry_at, entry.spec, run.candidate, self._following.folder)
            if found.kind != entry.kind:
                raise WeftError("shadow", f"{found.reference} is of another kind than {entry.reference}")
            self._models.hide(found)
            self._candidates[run.name] = found
        return found

    async def _timed(self, run: Shadow, entry: Entry, sample: Sample) -> tuple[Any, float]:
        """What a version computes, and the milliseconds it takes once it is loaded."""
        async with self._models.lease(entry) as runner:
            started = time.monotonic()
            found = await asyncio.wait_for(sample.compute(runner), run.limits.timeout_s)
            return found, 1000 * (time.monotonic() - started)


def difference(
    baseline: tuple[np.ndarray, np.ndarray], candidate: tuple[np.ndarray, np.ndarray], by_angle: bool, most: float
) -> tuple[float, float] | None:
    """The agreement of two answers, 0 to 1, and how far apart their numbers are; None if some are not finite.

    Vectors are compared by angle: 1 - cosine, and those agree that are at most `most` apart. Other numbers are compared
    one by one, by the mean of the absolute differences.
    """
    import numpy as np

    (chosen, numbers), (others, found) = baseline, candidate
    if not np.isfinite(found).all():
        return None
    if numbers.shape != found.shape or chosen.shape != others.shape:
        raise WeftError("shadow", f"the answers have shapes {numbers.shape} and {found.shape}")
    if not by_angle:
        apart = np.abs(numbers.astype(np.float64) - found)
        return float(np.mean(chosen == others)) if chosen.size else 1.0, float(apart.mean()) if apart.size else 0.0
    wide, other = numbers.astype(np.float64), found.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1) * np.linalg.norm(other, axis=1)
    apart = 1 - np.einsum("ij,ij->i", wide, other) / np.maximum(norms, 1e-30)
    return float(np.mean(apart <= most)), float(apart.mean())
