"""What is under way: the requests being answered, how fast tokens come, and who is to be told when the server ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from weft.serve.http.faults import Fault

WINDOW_S = 5


@dataclass(eq=False)
class Call:
    """One HTTP request while it is being answered. What it holds is on `stack` and given back when it ends."""

    id: str
    route: str
    method: str
    tenant: str = ""
    started: float = field(default_factory=time.monotonic)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    sending_since: float | None = None  # while the client takes none of what is there
    abort: Callable[[], None] = lambda: None  # drop the connection
    task: asyncio.Task[None] | None = None
    ending: Fault | None = None  # why the server ends it
    # What the log, the live page and the metrics tell of it.
    model: str = ""
    kind: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = ""
    began: float | None = None  # when the first token came
    headers: tuple[tuple[bytes, bytes], ...] = ()  # told with an answer that is one document

    def end(self, fault: Fault) -> None:
        """Stop answering; what can still be said to the client is `fault`."""
        if self.ending is None and self.task is not None:
            self.ending = fault
            self.task.cancel()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started


class Tracking:
    """All calls under way."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.draining = False
        self._seconds: deque[tuple[int, int]] = deque(maxlen=WINDOW_S + 1)  # a second, and tokens made in it

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
        """Those that have a model, oldest first."""
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
