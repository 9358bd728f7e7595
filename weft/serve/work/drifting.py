"""Drift of the vectors that a server answers with: each watched model has a detector, which other threads feed.

A request only hands its vectors over. Checks run between requests in another thread; when they fall behind, vectors are
left out and counted, so that a watch never slows answers down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import FormatError, InputError, NotFoundError, WeftError
from weft.serve.work.metrics import Labels, labels

if TYPE_CHECKING:
    import numpy as np

    from weft.serve.models.pool import Entry
    from weft.serve.settings import Settings
    from weft.transport.drift import Detector, Signal

MOST_WAITING = 4096  # vectors that wait for a check
STATES = ("warming", "stable", "drift")

log = logging.getLogger("weft.serve")


class Watched:
    """The detector of one model, and what its last check said."""

    def __init__(self, detector: Detector, dimension: int) -> None:
        self.detector, self.dimension = detector, dimension
        self.state = "warming"
        self.left_out = 0
        self.wrong: int | None = None  # numbers of a vector that the reference does not fit


class DriftWatch:
    """The watched models of a server."""

    def __init__(self, watched: Mapping[str, Watched], webhook: str = "") -> None:
        self._watched, self._webhook = watched, webhook
        self._waiting: list[tuple[str, np.ndarray]] = []
        self._count = 0
        self._arrived = asyncio.Event()

    @classmethod
    def of(cls, settings: Settings, entries: Iterable[Entry]) -> DriftWatch | None:
        """The watch that `settings` ask for; None without references."""
        if not settings.drift_references:
            return None
        from weft.transport.drift import Detector

        embedding = [entry.name for entry in entries if entry.kind == "embed"]
        watched = {}
        for name, path in settings.drift_references:
            if not name and len(embedding) != 1:
                what = f"{len(embedding)} models embed: say which one {path.name} is the reference of"
                raise InputError("serve", what, field="drift_reference", advice="write --drift-reference NAME=FILE")
            chosen = name or embedding[0]
            if chosen not in embedding:
                what = f"no embedding model is called {chosen}; there is {', '.join(embedding) or 'none'}"
                raise InputError("serve", what, field="drift_reference")
            vectors = _reference(path)
            detector = Detector(vectors, false_alarms=settings.drift_false_alarms, threads=1)
            watched[chosen] = Watched(detector, int(vectors.shape[1]))
        return cls(watched, settings.drift_webhook)

    def offer(self, model: str, vectors: np.ndarray) -> None:
        """Hand over vectors [n, d] that were computed for a request."""
        one = self._watched.get(model)
        if one is None:
            return
        room = MOST_WAITING - self._count
        one.left_out += max(0, len(vectors) - room)
        if room > 0:
            self._waiting.append((model, vectors[:room]))
            self._count += len(vectors[:room])
            self._arrived.set()

    async def work(self) -> None:
        """Check what was offered, for as long as the server runs."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            batch, self._waiting, self._count = self._waiting, [], 0
            try:
                await asyncio.to_thread(self._observe, batch)
            except Exception as error:  # a failed check must not end the watch
                log.error("drift was not checked", exc_info=error)

    def _observe(self, batch: list[tuple[str, np.ndarray]]) -> None:
        from weft.transport.drift.gauges import tell

        for model, vectors in batch:
            one = self._watched[model]
            if vectors.shape[1] != one.dimension:
                if one.wrong is None:
                    what = f"the reference has vectors of {one.dimension} numbers, the model gives {vectors.shape[1]}"
                    log.error("drift cannot be watched", extra={"model": model, "error": what})
                one.wrong = int(vectors.shape[1])
                continue
            for vector in vectors:
                try:
                    signal = one.detector.observe(vector)
                except WeftError:  # not finite: the vector is counted and otherwise ignored
                    one.left_out += 1
                    continue
                if self._raised(model, one, signal) and self._webhook:
                    tell(self._webhook, signal, log.warning, model=model)

    def _raised(self, model: str, one: Watched, signal: Signal) -> bool:
        """Whether this signal begins an alarm."""
        if signal.state == "skipped":
            return False
        begins = signal.state == "drift" and one.state != "drift"
        one.state = signal.state
        if begins:
            said = {"model": model, "seen": signal.seen, "evidence": round(signal.evidence, 3)}
            log.warning("the vectors have drifted", extra=said)
        return begins

    def gauges(self) -> dict[tuple[str, Labels], float]:
        """For Prometheus, by model."""
        found: dict[tuple[str, Labels], float] = {}
        for model, one in self._watched.items():
            own, detector = labels(model=model), one.detector
            numbers: dict[str, Any] = {
                "drift_alarm": one.state == "drift",
                "drift_evidence": detector.evidence,
                "drift_alarm_height": detector.height,
                "drift_divergence": detector.last_divergence,
                "drift_last_p": detector.last_p,
                "drift_vectors_seen": detector.seen,
                "drift_vectors_left_out": one.left_out,
            }
            found |= {(name, own): value for name, value in numbers.items() if value is not None}
            for state in STATES:
                found["drift_state", labels(model=model, state=state)] = one.state == state
        return found


def _reference(path: Path) -> np.ndarray:
    import numpy as np

    try:
        vectors: np.ndarray = np.load(path, allow_pickle=False)
    except OSError as error:
        what = f"cannot read the reference {path}: {error.strerror or error}"
        raise NotFoundError("serve", what, advice="write one with `weft embed … -o reference.npy`") from None
    except ValueError as error:
        raise FormatError(path.name, f"is not an array of numpy: {error}") from None
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise FormatError(path.name, "is not a reference: vectors [n, d] of floating-point numbers are expected")
    return vectors
