"""The engine for asyncio: one thread takes the steps, coroutines wait for their pieces. The only place with `async`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import NamedTuple

from weft.errors import BackendError
from weft.generate.engine import Engine
from weft.generate.handle import Handle
from weft.generate.request import Request
from weft.generate.result import Generation, Piece


class _Waiter(NamedTuple):
    """Who is to be told when a request has something new."""

    handle: Handle
    loop: asyncio.AbstractEventLoop
    news: asyncio.Event


class AsyncEngine:
    """`async with AsyncEngine(engine) as running:`, then `await running.generate(request)` or `async for piece in
    running.stream(request)`.

    Coroutines of any number of event loops may use it. A coroutine that is cancelled, or leaves its loop, cancels its
    request. On leaving, what still runs is cancelled and the thread ends.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._waiters: dict[int, _Waiter] = {}
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

    async def stream(self, request: Request) -> AsyncIterator[Piece]:
        """The pieces of a request as they are made."""
        waiter = self._submit(request)
        handle = waiter.handle
        try:
            while True:
                finished = handle.finished  # asked first: what comes after it is the rest
                for piece in handle.drain():
                    yield piece
                if finished:
                    break
                await self._news(waiter)
        finally:
            self._leave(waiter)
        handle.check()

    async def generate(self, request: Request) -> Generation:
        """The whole result of a request, or the first of its `n`."""
        return (await self.generate_all(request))[0]

    async def generate_all(self, request: Request) -> list[Generation]:
        """The results of all `n` answers."""
        waiter = self._submit(request)
        try:
            while not waiter.handle.finished:
                await self._news(waiter)
        finally:
            self._leave(waiter)
        return waiter.handle.results()

    async def _news(self, waiter: _Waiter) -> None:
        await waiter.news.wait()
        waiter.news.clear()
        if self._failure is not None:
            raise BackendError(f"[engine] the thread that takes the steps has ended: {self._failure}")

    def _leave(self, waiter: _Waiter) -> None:
        del self._waiters[waiter.handle.key]
        waiter.handle.cancel()

    def _submit(self, request: Request) -> _Waiter:
        if self._closed or not self._thread.is_alive():
            raise BackendError("[engine] the asynchronous engine is closed; use it inside `async with`")
        waiter = _Waiter(self.engine.submit(request), asyncio.get_running_loop(), asyncio.Event())
        self._waiters[waiter.handle.key] = waiter
        self._wake.set()
        return waiter

    def _drive(self) -> None:
        """Take steps while there is something to do; tell everybody after each."""
        try:
            while not self._closed:
                if not self.engine.step():
                    self._wake.wait()
                    self._wake.clear()
                self._tell()
        except BaseException as failure:
            self._failure = failure
        finally:
            for waiter in list(self._waiters.values()):
                waiter.handle.cancel()
            self._tell()

    def _tell(self) -> None:
        for waiter in list(self._waiters.values()):
            try:
                waiter.loop.call_soon_threadsafe(waiter.news.set)
            except RuntimeError:  # its event loop is closed
                waiter.handle.cancel()
