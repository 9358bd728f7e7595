"""Streams that a client can rejoin: their events have numbers, and are kept for a client that lost its connection.

Only a request that asks for it gets one: with the header `x-weft-rejoin: SECONDS`, or `background` of a response. Its
generation then belongs to the stream instead of the connection, and goes on for so many seconds after the last reader
has left. All other requests are cancelled when their client disconnects.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from weft.serve.http.faults import Fault, fault_of, invalid, too_busy

if TYPE_CHECKING:
    from weft.serve.settings import Limits
    from weft.serve.work.tracking import Call, Tracking

SHARE = 4  # a stream may take this part of all bytes: 16 MiB hold the events of 60,000 tokens

log = logging.getLogger("weft.serve")


class Chunks(Protocol):
    """A stream to be kept; `http.routes.Stream` is one."""

    chunks: AsyncIterator[bytes]
    media_type: str

    @property
    def error(self) -> Callable[[Fault], bytes]:
        """Encodes a fault as the last event."""


@dataclass
class Shelf:
    """The bytes that the events of all streams take, how many they may, and how many those of one may."""

    most: int
    bytes: int = 0

    @property
    def share(self) -> int:
        return self.most // SHARE


class Kept:
    """One stream: a task generates its events, any number of readers get them by number, counted from 0.

    Its oldest events are dropped when they take more than their share of the shelf, or all streams more than there is.
    """

    def __init__(self, id: str, stream: Chunks, call: Call, grace_s: float | None, shelf: Shelf) -> None:
        self.id = id
        self.call = call
        self.grace_s = grace_s
        self.done = False
        self.idle_since: float | None = time.monotonic()  # when the last reader left; None while there is one
        self.bytes = 0
        self.stream = stream
        self._events: list[bytes] = []
        self._first = 0  # the number of the oldest event that is kept
        self._shelf = shelf
        self._readers = 0
        self._news = asyncio.Event()

    def start(self, tracking: Tracking) -> None:
        """Begin to generate."""
        tracking.calls.add(self.call)
        self.call.task = asyncio.ensure_future(self._run(tracking))

    async def _run(self, tracking: Tracking) -> None:
        call = self.call
        try:
            async for chunk in self.stream.chunks:
                self._add(chunk)
        except asyncio.CancelledError:
            if call.ending is None:
                raise
            self._add(self.stream.error(call.ending))
        except Exception as error:
            fault = fault_of(error)
            if fault.status >= 500:
                log.error("stream failed", extra={"request_id": call.id, "stream": self.id}, exc_info=error)
            self._add(self.stream.error(fault))
        finally:
            self.done = True
            self._tell()
            tracking.calls.discard(call)
            await call.stack.aclose()
            facts = {"model": call.model, "output_tokens": call.output_tokens, "finish_reason": call.finish_reason}
            log.info("stream ended", extra={"request_id": call.id, "stream": self.id, **facts})

    @property
    def _as_events(self) -> bool:
        return self.stream.media_type.startswith("text/event-stream")

    def _add(self, chunk: bytes) -> None:
        for event in self._split(chunk):
            self._events.append(event)
            self._grow(len(event))
        while self.bytes > self._shelf.share and len(self._events) > 1:
            self._drop_oldest()
        if self._shelf.bytes > self._shelf.most:
            self._drop_oldest()
        self._tell()

    def _grow(self, size: int) -> None:
        self.bytes += size
        self._shelf.bytes += size

    def _drop_oldest(self) -> None:
        """Drop a quarter of the bytes at once: dropping from a list's front takes time."""
        left, count = self.bytes * 3 // 4, 0
        while self.bytes > left and count < len(self._events) - 1:
            self._grow(-len(self._events[count]))
            count += 1
        del self._events[:count]
        self._first += count

    def forget(self) -> None:
        """Give the events' bytes back."""
        self._grow(-self.bytes)

    def _split(self, chunk: bytes) -> Iterator[bytes]:
        """The events of a chunk, with their numbers where the format has a field for it; JSON holds no line break."""
        end = b"\n\n" if self._as_events else b"\n"
        number = self._first + len(self._events)
        for event in filter(None, chunk.split(end)):
            yield (b"id: %d\n" % number if self._as_events else b"") + event + end
            number += 1

    def _tell(self) -> None:
        """Wake all readers."""
        self._news.set()
        self._news = asyncio.Event()

    async def _read(self, after: int) -> AsyncIterator[bytes]:
        """The events after number `after`: those that are kept, then new ones until the stream ends."""
        number = after + 1
        while True:
            self._check_kept(number)
            if found := self._events[number - self._first :]:
                number += len(found)
                yield b"".join(found)
            elif self.done:
                return
            else:
                await self._news.wait()

    def _check_kept(self, number: int) -> None:
        if number < self._first:
            what = f"events {number} to {self._first - 1} of this stream are no longer kept"
            raise Fault(410, what, code="events_dropped", param="starting_after")

    def check(self, after: int) -> None:
        """An error unless the events after number `after` can be read."""
        last = self._first + len(self._events) - 1
        if after > last:
            raise invalid(f"is {after}; the last event so far is {last}", "starting_after")
        self._check_kept(after + 1)

    @contextmanager
    def reading(self, after: int) -> Iterator[AsyncIterator[bytes]]:
        """The events for one reader; the time of grace starts when the last one has left."""
        self._readers, self.idle_since = self._readers + 1, None
        try:
            yield self._read(after)
        finally:
            self._readers -= 1
            if not self._readers:
                self.idle_since = time.monotonic()

    @property
    def expired(self) -> bool:
        """Whether no client has read the stream for longer than it is kept."""
        idle = 0.0 if self.idle_since is None else time.monotonic() - self.idle_since
        return self.grace_s is not None and idle > self.grace_s

    async def ended(self) -> None:
        """Return when the generation has ended."""
        while not self.done:
            await self._news.wait()

    def stop(self, what: str = "the stream was stopped", code: str = "cancelled") -> None:
        """End the generation; readers get the error as the last event."""
        self.call.end(Fault(409, what, code=code))


class KeptStreams:
    """All kept streams of a server, by id. A stream is found only with the key that began it."""

    def __init__(self, limits: Limits, tracking: Tracking) -> None:
        self._limits = limits
        self._tracking = tracking
        self._streams: dict[str, Kept] = {}
        self._shelf = Shelf(limits.kept_bytes)

    def keep(self, call: Call, stream: Chunks, grace_s: float | None, id: str | None = None) -> Kept:
        """Generate a stream on its own: it takes over what the request holds. `grace_s` None: until it is done."""
        limits = self._limits
        own = [kept for kept in self._streams.values() if kept.call.tenant == call.tenant]
        if sum(not kept.done for kept in own) >= limits.kept_streams:
            raise too_busy(f"{limits.kept_streams} streams that can be rejoined are under way; try again later")
        work = replace(call, stack=call.stack.pop_all(), abort=lambda: None, task=None)
        made = Kept(id or f"stream-{uuid4().hex}", stream, work, grace_s, self._shelf)
        self._streams[made.id] = made
        made.start(self._tracking)
        self.sweep()
        return made

    def find(self, id: str, tenant: str) -> Kept:
        kept = self._streams.get(id)
        if kept is None or kept.call.tenant != tenant:
            what = f"stream {id!r:.80} does not exist, or is no longer kept"
            raise Fault(404, what, kind="not_found_error", code="stream_not_found")
        return kept

    def sweep(self) -> None:
        """Stop streams that nobody came back to, and forget old ones."""
        for kept in list(self._streams.values()):
            if not kept.done and kept.expired:
                kept.stop(f"no client rejoined the stream within {kept.grace_s:g} s", "abandoned")
            elif kept.done and (self._old(kept) or self._shelf.bytes > self._shelf.most):
                del self._streams[kept.id]
                kept.forget()

    def _old(self, kept: Kept) -> bool:
        most = self._limits.rejoin_s if kept.grace_s is None else kept.grace_s
        return kept.idle_since is not None and time.monotonic() - kept.idle_since > most
