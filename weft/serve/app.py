"""The application: what all routes share, the routes of every API, and the guard around them."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from weft.serve.http.bodies import Receive
from weft.serve.http.door import Door
from weft.serve.http.faults import Fault, unavailable
from weft.serve.http.guard import Guard
from weft.serve.http.routes import STALLED, Endpoint, Route, Scope, Send
from weft.serve.models.pool import Entry, Models, outline_of
from weft.serve.settings import Settings
from weft.serve.work.metrics import Metrics
from weft.serve.work.spans import Spans
from weft.serve.work.tracking import Tracking

SWEEP_S = 0.5
TELLING_S = 10.0  # at most, for clients to be told that the server ends; mostly it takes milliseconds

log = logging.getLogger("weft.serve")


class Serving:
    """What handlers share. Made before the event loop runs; `models` is there from its start on."""

    def __init__(self, settings: Settings, entries: list[Entry]) -> None:
        self.settings = settings
        self.entries = entries
        self.metrics = Metrics()
        self.tracking = Tracking()
        self.spans = Spans.to(settings.collector) if settings.collector else None
        self.started = time.time()
        self.routes = all_routes()
        self.door = Door(self.routes, self._places, self.metrics)
        self.models: Models = None  # type: ignore[assignment]  # made by `lifespan`, inside the loop

    @asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        settings = self.settings
        self.models = Models(
            self.entries, settings.limits, budget_bytes=settings.budget_bytes, keep_alive_s=settings.keep_alive_s
        )
        background = [asyncio.ensure_future(self._sweep()), asyncio.ensure_future(self._preload())]
        try:
            yield
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self.models.close()
            if self.spans is not None:
                await asyncio.to_thread(self.spans.close)

    def _places(self, work: str) -> int:
        """Requests of a kind that may be under way: what all models of the kind can compute and queue."""
        if self.tracking.draining:
            return sys.maxsize  # all of them get to the guard, which says why there is no place
        kinds = ("embed", "rerank") if work == "embed" else (work,)  # both are counted as one
        models = sum(entry.kind in kinds for entry in self.models or self.entries)
        return (self.settings.limits.running + self.settings.limits.waiting) * max(1, models)

    @property
    def preloaded(self) -> bool:
        """Whether the models that are loaded at the start are there."""
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
        """End what takes too long, and unload what has been idle for long enough."""
        limits = self.settings.limits
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            if self.door.refused:
                log.warning("requests refused", extra={"count": self.door.refused})
                self.door.refused = 0
            for call in list(self.tracking.calls):
                stalled = call.sending_since is not None and now - call.sending_since > limits.stall_s
                if stalled or now - call.started > limits.request_s:
                    what = "the client reads nothing" if stalled else f"the request took over {limits.request_s:g} s"
                    call.end(Fault(STALLED if stalled else 504, what, kind="server_error", code="timeout"))
            try:
                await self.models.unload_idle()
            except Exception as error:  # of one model; the sweeping goes on
                log.error("a model could not be unloaded", exc_info=error)

    async def drain(self) -> None:
        """Answer what is under way, nothing new, and end what takes longer than the limit."""
        self.tracking.draining = True
        deadline = time.monotonic() + self.settings.limits.drain_s
        while self.tracking.calls and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self.abort()

    async def abort(self) -> None:
        """End everything that is under way, and wait a moment for the clients to be told."""
        self.tracking.draining = True
        for call in list(self.tracking.calls):
            call.end(unavailable("the server is shutting down", "shutting_down", retry_after_s=10))
        deadline = time.monotonic() + TELLING_S
        while self.tracking.calls and time.monotonic() < deadline:
            await asyncio.sleep(0.02)


class App:
    """The ASGI application of a server; `serving` is its state."""

    def __init__(self, settings: Settings, entries: list[Entry] | None = None) -> None:
        if entries is None:
            entries = [Entry(spec, outline_of(spec)) for spec in settings.models]
        self.serving = Serving(settings, entries)
        served = [
            StarletteRoute(route.path, Endpoint(route, self.serving), methods=[route.method])
            for route in self.serving.routes
        ]
        self._router = Router(_by_path(served), redirect_slashes=False, lifespan=self.serving.lifespan)
        self._guarded = Guard(self._router, self.serving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that the router raises what it cannot serve
        await self._guarded(scope, receive, send)


def _by_path(routes: list[StarletteRoute]) -> Sequence[StarletteRoute]:
    """Routes with the fixed paths first: a path with a parameter would take theirs."""
    return sorted(routes, key=lambda route: "{" in route.path)


def all_routes() -> list[Route]:
    """Every route; a new API is a line here."""
    from weft.serve.admin import routes as admin
    from weft.serve.anthropic import routes as anthropic
    from weft.serve.llama import routes as llama
    from weft.serve.ollama import routes as ollama
    from weft.serve.openai import routes as openai
    from weft.serve.tei import routes as tei

    families = (admin.ROUTES, openai.ROUTES, anthropic.ROUTES, ollama.ROUTES, tei.ROUTES, llama.ROUTES)
    return [route for routes in families for route in routes]
