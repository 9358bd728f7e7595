"""The engine for asyncio: one thread runs the steps, coroutines wait for pieces. No other module here has `async`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

from weft.errors import BackendError
from weft.generate.engine import Engine
from weft.generate.grammar.turns import COMPILING
from weft.generate.handle import Handle
from weft.generate.request import Request
from weft.generate.result import Generation, Piece


class AsyncHandle:
    """One submitted request: `async with` it, iterate over `batches` or wait for `results`. Leaving cancels it."""

    def __init__(self, engine: AsyncEngine, handle: Handle) -> None:
        self._engine = engine
        self._handle = handle
        self._news = asyncio.Event()
        self._lost = False
        self.loop = asyncio.get_running_loop()

    async def __aenter__(self) -> AsyncHandle:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    @property
    def key(self) -> int:
        return self._handle.key

    @property
    def has_news(self) -> bool:
        """Whether there is something to fetch."""
        return self._handle.finished or self._handle.has_pieces

    async def batches(self) -> AsyncIterator[list[Piece]]:
        """Lists of the pieces that are ready, as they are made; raises the error that ended the request."""
        while True:
            finished = self._handle.finished  # read before draining, so that no last piece is missed
            pieces = list(self._handle.drain())
            if self._lost:
                self._engine.check()
            if pieces:
                yield pieces
            if finished:
                break
            if not pieces:
                await self._wait()
        self._handle.check()

    async def results(self) -> list[Generation]:
        """The results of all `n` answers, once they have ended."""
        while not self._handle.finished:
            await self._wait()
        if self._lost:
            self._engine.check()
        return self._handle.results()

    async def _wait(self) -> None:
        self._engine.check()
        await self._news.wait()
        self._news.clear()
        self._engine.check()

    def lose(self) -> None:
        """Mark the request as lost because the engine failed; called by the engine's thread."""
        self._lost = True
        self._handle.cancel()

    def wake(self) -> None:
        """Wake the waiting coroutine; called in the request's event loop."""
        self._news.set()

    def cancel(self) -> None:
        """End the request with the text so far, when the running step ends. Never waits."""
        self._handle.cancel()

    def close(self) -> None:
        """Cancel the request if it still runs, and stop waiting for it. Never waits."""
        self._engine.leave(self)
        self._handle.cancel()


class AsyncEngine:
    """`async with AsyncEngine(engine) as running:`, then `await running.generate(request)` or `async for piece in
    running.stream(request)`; `await running.submit(request)` for both from one request.

    Coroutines of any number of event loops may use it. A coroutine that is cancelled, or leaves its loop, cancels its
    request. Leaving the block cancels all requests and ends the thread.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._waiting: dict[int, AsyncHandle] = {}
        self._wake = threading.Event()
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._drive, name="weft-engine", daemon=True)

    async def __aenter__(self) -> AsyncEngine:
        self._thread.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._closed = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the thread, or None; after it nothing can be submitted."""
        return self._failure

    async def stream(self, request: Request) -> AsyncIterator[Piece]:
        """The pieces of a request as they are made."""
        async with await self.submit(request) as handle:
            async for pieces in handle.batches():
                for piece in pieces:
                    yield piece

    async def generate(self, request: Request) -> Generation:
        """The whole result of a request, or the first of its `n`."""
        return (await self.generate_all(request))[0]

    async def generate_all(self, request: Request) -> list[Generation]:
        """The results of all `n` answers."""
        async with await self.submit(request) as handle:
            return await handle.results()

    async def submit(self, request: Request) -> AsyncHandle:
        """Queue a request. A grammar is compiled in another thread, one of a tenant at a time: neither the event loop
        nor other tenants wait for it."""
        self.check()
        if request.grammar is None:
            return self._entered(self.engine.submit(request))
        submitting = asyncio.wrap_future(COMPILING.submit(request.tenant, partial(self.engine.submit, request)))
        try:
            return self._entered(await asyncio.shield(submitting))
        except asyncio.CancelledError:
            submitting.add_done_callback(_forget)
            raise

    def check(self) -> None:
        """Raise BackendError if the thread has ended."""
        if self._failure is not None:
            raise BackendError("engine", f"the engine's thread failed: {self._failure}")
        if self._closed or not self._thread.is_alive():
            raise BackendError("engine", "the asynchronous engine is closed", advice="use it inside `async with`")

    def leave(self, handle: AsyncHandle) -> None:
        """Stop waking this handle."""
        self._waiting.pop(handle.key, None)

    def _entered(self, submitted: Handle) -> AsyncHandle:
        handle = AsyncHandle(self, submitted)
        self._waiting[handle.key] = handle
        self._wake.set()
        return handle

    def _drive(self) -> None:
        """Run steps while there is work; after each, wake the handles that have something to fetch."""
        try:
            while not self._closed:
                worked = self.engine.step()
                # before waiting: a step without work may have concluded a request whose tokens had been chosen
                self._wake_up([handle for handle in list(self._waiting.values()) if handle.has_news])
                if not worked:
                    self._wake.wait()
                    self._wake.clear()
        except BaseException as failure:
            self._failure = failure
        finally:
            waiting = list(self._waiting.values())
            for handle in waiting:
                handle.cancel() if self._failure is None else handle.lose()
            self._wake_up(waiting)

    def _wake_up(self, handles: list[AsyncHandle]) -> None:
        """Wake the handles, with one call per event loop."""
        loops: dict[asyncio.AbstractEventLoop, list[AsyncHandle]] = {}
        for handle in handles:
            loops.setdefault(handle.loop, []).append(handle)
        for loop, some in loops.items():
            try:
                loop.call_soon_threadsafe(_wake_all, some)
            except RuntimeError:  # the event loop is closed
                for handle in some:
                    handle.cancel()


def _wake_all(handles: list[AsyncHandle]) -> None:
    for handle in handles:
        handle.wake()


def _forget(submitting: asyncio.Future[Handle]) -> None:
    """Cancel a request that was submitted for a coroutine that has been cancelled."""
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()
