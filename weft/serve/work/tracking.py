"""The requests under way: what each holds, how many may run or arrive at once, how fast tokens are generated."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft.serve.http.faults import Fault, invalid, slow_body, too_busy

if TYPE_CHECKING:
    import asyncio

WINDOW_S = 5
PATIENCE_S = 1.0  # a body that has been arriving for less than this is not given up for others


def tenant_of(key: int) -> str:
    """How the client with this key is named in logs and told apart from others."""
    return f"key-{key}"


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
    arrived: Callable[[], bool] = lambda: False  # whether all of the body is here, read or not
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
    headers: tuple[tuple[bytes, bytes], ...] = ()  # added to an answer that is JSON, or a stream
    entries: dict[str, Any] = field(default_factory=dict)  # by name: all of a call is answered by one version
    ignored: tuple[str, ...] = ()  # settings of the request that have no effect here

    def end(self, fault: Fault) -> None:
        """Cancel the request; the client gets `fault` if it can still be sent."""
        if self.ending is None and self.task is not None:
            self.ending = fault
            self.task.cancel()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started


class Places:
    """Counts requests under way by kind of work and by tenant, and refuses those beyond `capacity(work)`.

    A request is counted once its body is read: one that is still arriving must not keep others out. A crowd is counted
    all the same before any of it reaches a model's queue.

    Of `tenants` that may come, each gets an equal share of the places among those that hold some and one more. So there
    is room for the next tenant however many requests the others send.
    """

    def __init__(self, capacity: Callable[[str], int], tenants: int = 1) -> None:
        self._capacity = capacity
        self._tenants = tenants
        self._held: dict[str, dict[str, int]] = {}  # by kind of work and tenant; none is 0
        self.under_way: dict[str, int] = {}

    def check(self, work: str, tenant: str = "", count: int = 1) -> None:
        """Raise a 429 fault if there are not `count` places for work of this kind, 400 if there can never be; "" needs
        no place."""
        if not work:
            return
        taken, capacity = self.under_way.get(work, 0), self._capacity(work)
        most = max(1, capacity // min(self._tenants, 2))
        if count > most:
            raise invalid(
                f"the request asks for {count} answers at once; a key may have {most}", code="too_many_answers"
            )
        if taken + count > capacity:
            raise too_busy(f"{taken} requests are running or queued, the maximum of this server; try again later")
        held = self._held.get(work, {})
        own = held.get(tenant, 0)
        parties = min(self._tenants, len(held.keys() - {tenant}) + 2)
        if own + count > max(1, capacity // parties):
            message = f"this key has {own} requests running or queued, its share of this server's {capacity} places"
            raise too_busy(f"{message}; try again later")

    @contextmanager
    def taken(self, work: str, tenant: str = "", count: int = 1) -> Iterator[None]:
        """Hold `count` places while a request is answered; a fault as `check` raises it if there are none."""
        self.check(work, tenant, count)
        held = self._held.setdefault(work, {})
        self.under_way[work] = self.under_way.get(work, 0) + count
        held[tenant] = held.get(tenant, 0) + count
        try:
            yield
        finally:
            self.under_way[work] -= count
            held[tenant] -= count
            if not held[tenant]:
                del held[tenant]


class Arrivals:
    """The requests whose body is still arriving: at most `most`, with `most_bytes` of bodies read so far.

    Beyond that, the oldest of the tenant that has most of them is given up. Whoever sends a whole body is served,
    however many others send slowly, and however long this server takes to read it.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._sizes: dict[Call, int] = {}  # bytes that each has sent, the oldest first

    def __len__(self) -> int:
        return len(self._sizes)

    @contextmanager
    def arriving(self, call: Call) -> Iterator[Callable[[int], None]]:
        """Count the body of `call` while it is read; the result is called with the size of each part."""
        self._sizes[call] = 0
        while len(self._sizes) > self._most and (waited_for := self._unfinished()):
            if len(waited_for) <= self._most or not self._give_up(dict.fromkeys(waited_for, 1), PATIENCE_S):
                break

        def note(count: int) -> None:
            if call in self._sizes:
                self._sizes[call] += count
                while sum(self._sizes.values()) > self._most_bytes:
                    self._give_up(self._sizes, 0)

        try:
            yield note
        finally:
            self._sizes.pop(call, None)

    def _unfinished(self) -> list[Call]:
        return [call for call in self._sizes if not call.arrived()]

    def _give_up(self, weights: dict[Call, int], least_s: float) -> bool:
        """End the oldest call of the tenant with the largest sum of `weights`, if it is `least_s` old; True if so."""
        sums: dict[str, int] = {}
        for call, weight in weights.items():
            sums[call.tenant] = sums.get(call.tenant, 0) + weight
        heaviest = max(sums, key=sums.__getitem__)
        oldest = next(call for call, weight in weights.items() if call.tenant == heaviest and weight)
        if oldest.age_s < least_s:
            return False
        del self._sizes[oldest]
        oldest.end(slow_body("the server has too many requests whose body is still arriving"))
        return True


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
