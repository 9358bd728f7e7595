"""The state that all handlers share: settings, models, requests under way, metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from weft.errors import InputError
from weft.serve.certificate import Certificate
from weft.serve.http.faults import STALLED, Fault, unavailable
from weft.serve.models.pool import Entry, Models
from weft.serve.pictures.fetching import Fetcher
from weft.serve.responses.store import StoredResponses
from weft.serve.settings import Settings
from weft.serve.training.runs import Runs
from weft.serve.versions.following import Following, registry_folder
from weft.serve.versions.shadowing import Shadowing
from weft.serve.work.drifting import DriftWatch
from weft.serve.work.kept import KeptStreams
from weft.serve.work.metrics import Metrics
from weft.serve.work.spans import Spans
from weft.serve.work.tracking import Arrivals, Places, Tracking, tenant_of

SWEEP_S = 0.5
ABORT_S = 10.0  # at most, for the error to reach clients whose requests are ended; usually milliseconds

log = logging.getLogger("weft.serve")


class Serving:
    """What handlers share. Created before the event loop runs; `lifespan` creates `models` inside it."""

    def __init__(self, settings: Settings, entries: list[Entry]) -> None:
        self.settings = settings
        self.entries = entries
        self.metrics = Metrics()
        self.tracking = Tracking()
        self.places = Places(self._capacity, max(1, len(settings.keys)))
        each = settings.limits.running + settings.limits.waiting
        self.queues = Places(
            lambda model: each, max(1, len(settings.keys))
        )  # by model, each answer of a request counted
        self.arrivals = Arrivals(settings.limits.bodies, settings.limits.bodies_bytes)
        self.certificate: Certificate | None = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            self.certificate = Certificate(settings.tls_cert, settings.tls_key)
        self.fetcher = Fetcher(settings)
        self.kept = KeptStreams(settings.limits, self.tracking)
        self.responses = StoredResponses(settings.limits)
        self.training = None if settings.training_dir is None else Runs(settings.training_dir)
        self.drift = DriftWatch.of(settings, entries)
        self.spans = Spans.to(settings.collector) if settings.collector else None
        self.started = time.time()
        self._prefixes = _prefixes(settings)
        # What keeps the KV pages of one key from requests of another. A key's number changes when the file of keys is
        # edited, and pages on disk outlive that, so the key itself is the salt.
        self.salts = {tenant_of(i): sha256(key.encode()).hexdigest() for i, key in enumerate(settings.keys)}
        self.shadowing: Shadowing | None = None  # this and the next
        self.following: Following | None = None  # created by `lifespan`, for a server with a registry
        self.models: Models = None  # type: ignore[assignment]  # created by `lifespan`, inside the loop

    @asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        settings = self.settings
        self.models = Models(
            self.entries,
            settings.limits,
            budget_bytes=settings.budget_bytes,
            keep_alive_s=settings.keep_alive_s,
            prefixes=self._prefixes,
        )
        background = [asyncio.ensure_future(self._sweep()), asyncio.ensure_future(self._preload())]
        if (folder := registry_folder(settings)) is not None:
            self.following = Following(folder, self.models)
            self.shadowing = Shadowing(self.following, self.models)
            for work in (self.following.watch(), self.shadowing.watch(), self.shadowing.work()):
                background.append(asyncio.ensure_future(work))
        if self.drift is not None:
            background.append(asyncio.ensure_future(self.drift.work()))
        try:
            yield
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            self.fetcher.close()
            if self.training is not None:
                await self.training.close()
            await self.models.close()
            if self.following is not None:
                self.following.close()
            if self.spans is not None:
                await asyncio.to_thread(self.spans.close)

    def _capacity(self, work: str) -> int:
        """Requests of a kind that may be under way: all that models of the kind can run and queue."""
        kinds = ("embed", "rerank", "classify") if work == "embed" else (work,)  # these are counted together
        models = sum(entry.kind in kinds for entry in self.models or self.entries)
        return (self.settings.limits.running + self.settings.limits.waiting) * max(1, models)

    @property
    def preloaded(self) -> bool:
        """Whether the models that load at the start are loaded."""
        return all(entry.loaded_once for entry in self._preloading)

    @property
    def _preloading(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.spec.preload]

    async def _preload(self) -> None:
        for entry in self._preloading:
            try:
                async with self.models.lease(entry):
                    pass
            except Fault as fault:
                log.error("model not loaded", extra={"model": entry.name, "error": fault.message})

    async def _sweep(self) -> None:
        """End requests that take too long, unload models that have been idle for long enough, renew the certificate."""
        limits = self.settings.limits
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for call in list(self.tracking.calls):
                stalled = call.sending_since is not None and now - call.sending_since > limits.stall_s
                if stalled or now - call.started > limits.request_s:
                    what = "the client stopped reading" if stalled else f"the request took over {limits.request_s:g} s"
                    call.end(
                        Fault(STALLED if stalled else 504, what, kind="server_error", code="timeout", closes=stalled)
                    )
            self.kept.sweep()
            try:
                await self.models.unload_idle()
            except Exception as error:  # one model's failure must not end the sweep
                log.error("model not unloaded", exc_info=error)
            self.forget_unloaded()
            if self.certificate is not None:
                self.certificate.refresh()

    def forget_unloaded(self) -> None:
        """Drop the metrics of models and adapters that are not loaded; a client chooses the names of adapters."""
        loaded = [entry for entry in self.models if entry.runner is not None]
        self.metrics.keep_models({name for entry in loaded for name in (entry.name, *entry.adapters)})

    async def drain(self) -> None:
        """Refuse new requests, finish those under way, and end those that take longer than `limits.drain_s`."""
        self.tracking.draining = True
        deadline = time.monotonic() + self.settings.limits.drain_s
        while self.tracking.calls and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self.abort()

    async def abort(self) -> None:
        """End all requests under way, and wait briefly for the error to reach their clients."""
        self.tracking.draining = True
        for call in list(self.tracking.calls):
            call.end(unavailable("the server is shutting down", "shutting_down", retry_after_s=10))
        deadline = time.monotonic() + ABORT_S
        while self.tracking.calls and time.monotonic() < deadline:
            await asyncio.sleep(0.02)


def _prefixes(settings: Settings) -> dict[str, Any] | None:
    """The options of engines for a prefix cache on disk; its folder holds prompts, so only its owner may read it."""
    if settings.prefix_dir is None:
        return None
    try:
        settings.prefix_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = f"{settings.prefix_dir} cannot be used: {error.strerror or error}"
        raise InputError("serve", reason, field="prefix_dir", advice="give a folder that can be written to") from None
    return {"prefix_dir": settings.prefix_dir, "prefix_bytes": settings.prefix_bytes}
