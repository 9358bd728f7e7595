"""Threads that jobs of several tenants share in turn, for work that must not hold up the engine or the event loop."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_S = 1.0  # that a thread waits for more to do

tenant_now: ContextVar[str] = ContextVar("tenant_now", default="")  # for whom this thread works


class Turns:
    """`submit(tenant, job)` runs `job` on one of `threads` threads. Tenants take turns, and a tenant has at most `each`
    jobs running at a time, so that one whose jobs take long waits for itself and not others for it.
    """

    def __init__(self, name: str, threads: int, each: int) -> None:
        self._name, self._threads, self._each = name, threads, each
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)  # a fork has none of the threads

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}  # whose turn it is comes first
        self._running: dict[str, int] = {}
        self._alive = self._idle = 0

    def submit(self, tenant: str, job: Callable[[], T], future: Future[T] | None = None) -> Future[T]:
        """The future of the job's result: the one given, or a new one."""
        future = Future() if future is None else future
        with self._changed:
            self._queues.setdefault(tenant, deque()).append((future, job))
            if self._idle:
                self._changed.notify()
            elif self._alive < self._threads:
                self._alive += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        while taken := self._take():
            tenant, future, job = taken
            if future.set_running_or_notify_cancel():
                token = tenant_now.set(tenant)
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)
                finally:
                    tenant_now.reset(token)
            del future, job, taken
            with self._changed:
                self._running[tenant] -= 1
                if not self._running[tenant]:
                    del self._running[tenant]
                self._changed.notify()

    def _take(self) -> tuple[str, Future[Any], Callable[[], Any]] | None:
        """The next job; None, and the thread ends, if there was none for a while."""
        with self._changed:
            self._idle += 1
            try:
                if not self._changed.wait_for(lambda: self._next() is not None, IDLE_S):
                    self._alive -= 1
                    return None
            finally:
                self._idle -= 1
            tenant = self._next()
            assert tenant is not None
            queue = self._queues.pop(tenant)
            future, job = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # at the end: the others come first
            self._running[tenant] = self._running.get(tenant, 0) + 1
            return tenant, future, job

    def _next(self) -> str | None:
        """The tenant whose turn it is."""
        return next((name for name in self._queues if self._running.get(name, 0) < self._each), None)


COMPILING = Turns("weft-compile", 4, each=1)  # makes and compiles grammars
CHOOSING = Turns("weft-choose", 2, each=1)  # chooses the tokens of requests with grammars
