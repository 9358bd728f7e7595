"""Routes and answers: what a route accepts, and how its answer is written, whole or as a stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from weft.frozen import frozen
from weft.serve.http.faults import SHAPES, STALLED, Fault, fault_of
from weft.serve.work.tracking import Call

if TYPE_CHECKING:
    from weft.serve.serving import Serving

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]

log = logging.getLogger("weft.serve")

LAST_EVENT_S = 5.0  # for a client to read the error that ends its stream


@dataclass
class Context:
    """What a handler is given besides the body."""

    serving: Serving
    call: Call
    headers: Mapping[bytes, bytes]
    path: Mapping[str, str]
    query: Mapping[str, str]


class Answer(Protocol):
    async def send(self, send: Send, call: Call) -> None: ...


@dataclass
class Json:
    """One JSON document."""

    value: Any
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    large: bool = False  # encoded by another thread, to keep the event loop free

    async def send(self, send: Send, call: Call) -> None:
        encode = msgspec.json.encode
        body = await asyncio.to_thread(encode, self.value) if self.large else encode(self.value)
        await _send_whole(send, self.status, b"application/json", body, (*self.headers, *call.headers))


@dataclass
class Plain:
    """Bytes of any type."""

    body: bytes
    media_type: str
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send, call: Call) -> None:
        await _send_whole(send, 200, self.media_type.encode(), self.body, self.headers)


@dataclass
class Stream:
    """Chunks as they are generated; `error` encodes a fault the way this API's clients expect it inside a stream."""

    chunks: AsyncIterator[bytes]
    error: Callable[[Fault], bytes]
    media_type: str = "text/event-stream; charset=utf-8"
    headers: tuple[tuple[bytes, bytes], ...] = field(default=((b"x-accel-buffering", b"no"),))

    async def send(self, send: Send, call: Call) -> None:
        headers = [(b"content-type", self.media_type.encode()), *self.headers, *call.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for chunk in self.chunks:
                call.sending_since = time.monotonic()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                call.sending_since = None
        except asyncio.CancelledError:
            if call.ending is None:
                raise
            await self._end(send, call, call.ending)
        except Exception as error:
            await self._end(send, call, logged_fault(error, call))
        else:
            await send({"type": "http.response.body", "body": b""})

    async def _end(self, send: Send, call: Call, fault: Fault) -> None:
        """Send the error and end the stream; a client that has stopped reading is disconnected."""

        async def send_error() -> None:
            await send({"type": "http.response.body", "body": self.error(fault), "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await asyncio.wait_for(send_error(), 0 if fault.status == STALLED else LAST_EVENT_S)
        except asyncio.TimeoutError:
            call.abort()
            await asyncio.sleep(0)


Handler = Callable[[Context, Any], Awaitable[Answer]]


@frozen
class Route:
    """One method of one path. Without a key it answers 401, unless it is `open`."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: Any = None
    answer: Any = None
    shape: str = "openai"
    work: str = ""  # "generate" or "embed" where requests take a place in a model's queue
    open: bool = False
    optional_body: bool = False


def logged_fault(error: Exception, call: Call) -> Fault:
    """The fault to answer with; an error of the server itself is logged in full."""
    fault = fault_of(error)
    if fault.status >= 500 and not isinstance(error, Fault):
        log.error("request failed", extra={"request_id": call.id, "route": call.route}, exc_info=error)
    return fault


async def send_fault(send: Send, fault: Fault, shape: str) -> None:
    headers: list[tuple[bytes, bytes]] = []
    if fault.retry_after_s is not None:
        headers.append((b"retry-after", str(fault.retry_after_s).encode()))
    if fault.closes:
        headers.append((b"connection", b"close"))
    if fault.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    body = msgspec.json.encode(SHAPES[shape](fault))
    await _send_whole(send, fault.status, b"application/json", body, tuple(headers))


async def _send_whole(
    send: Send, status: int, kind: bytes, body: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    sizes = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*sizes, *headers]})
    await send({"type": "http.response.body", "body": body})
