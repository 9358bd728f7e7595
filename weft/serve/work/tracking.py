"""The requests under way: what each holds, how many may run at once, how fast tokens are generated."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft.serve.http.faults import Fault, too_busy

if TYPE_CHECKING:
    import asyncio

WINDOW_S = 5


@dataclass(eq=False)
class Call:
    """One HTTP request while it is being answered. What it holds is on `stack` and released when it ends."""

    id: str
    route: str
    method: str
    tenant: str = ""
    started: float = field(default_factory=time.monotonic)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    sending_since: float | None = None  # set while a write waits for the client to read
    abort: Callable[[], None] = lambda: None  # drop the connection
    task: asyncio.Task[None] | None = None
    ending: Fault | None = None  # why the server ends it
    # For the log, the live page and the metrics:
    model: str = ""
    kind: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = ""
    began: float | None = None  # time of the first token
    headers: tuple[tuple[bytes, bytes], ...] = ()  # added to an answer that is one JSON document

    def end(self, fault: Fault) -> None:
        """Cancel the request; the client gets `fault` if it can still be sent."""
        if self.ending is None and self.task is not None:
            self.ending = fault
            self.task.cancel()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started


class Places:
    """Counts requests under way by kind of work, and refuses those beyond `capacity(work)`.

    A request is counted before its body is read: a crowd arrives within one turn of the event loop, long before any of
    it reaches a model's queue.
    """

    def __init__(self, capacity: Callable[[str], int]) -> None:
        self._capacity = capacity
        self.under_way: dict[str, int] = {}

    @contextmanager
    def taken(self, work: str) -> Iterator[None]:
        """Hold a place while a request of kind `work` is answered; a 429 fault if there is none. "" needs no place."""
        count = self.under_way.get(work, 0)
        if work and count >= self._capacity(work):
            raise too_busy(f"{count} requests are running or queued, the maximum of this server; try again later")
        self.under_way[work] = count + 1
        try:
            yield
        finally:
            self.under_way[work] -= 1


class Tracking:
    """All calls under way."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.draining = False
        self._seconds: deque[tuple[int, int]] = deque(maxlen=WINDOW_S + 1)  # a second, and the tokens generated in it

    def note_tokens(self, count: int) -> None:
        now = int(time.monotonic())
        if self._seconds and self._seconds[-1][0] == now:
            self._seconds[-1] = now, self._seconds[-1][1] + count
        else:
            self._seconds.append((now, count))

    @property
    def tokens_per_second(self) -> float:
        """Over the last whole seconds."""
        now = int(time.monotonic())
        return sum(count for second, count in self._seconds if now - WINDOW_S <= second < now) / WINDOW_S

    def working(self) -> list[Call]:
        """Calls that have a model, oldest first."""
        return sorted((call for call in self.calls if call.model), key=lambda call: call.started)

    def live(self) -> list[dict[str, Any]]:
        return [
            {
                "id": call.id,
                "model": call.model,
                "kind": call.kind,
                "state": "running" if call.began is not None else "waiting",
                "prompt_tokens": call.prompt_tokens,
                "output_tokens": call.output_tokens,
                "age_s": round(call.age_s, 3),
            }
            for call in self.working()
        ]
