"""A route: what it takes, what it gives, and how its answer gets to the client.

A handler is given the checked body and returns an answer. While it works, the client is watched: one that goes away
cancels the work, whether or not it asked for a stream. What a handler holds is given back when the answer has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from weft.frozen import frozen
from weft.serve.http.bodies import Disconnected, Receive, check_media_type, parse, read_body
from weft.serve.http.faults import SHAPES, Fault, fault_of
from weft.serve.work.tracking import Call

if TYPE_CHECKING:
    from weft.serve.app import Serving

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]

log = logging.getLogger("weft.serve")

STALLED = 408  # the fault of a client that takes nothing of its stream
TELLING_S = 5.0  # for a client to take the last of it


@dataclass
class Context:
    """What a handler knows beside the body."""

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
    large: bool = False  # written by another thread: the event loop goes on meanwhile

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
    """Chunks as they are made; `error` writes a fault the way this API's clients expect one inside a stream."""

    chunks: AsyncIterator[bytes]
    error: Callable[[Fault], bytes]
    media_type: str = "text/event-stream; charset=utf-8"
    headers: tuple[tuple[bytes, bytes], ...] = field(default=((b"x-accel-buffering", b"no"),))

    async def send(self, send: Send, call: Call) -> None:
        headers = [(b"content-type", self.media_type.encode()), *self.headers]
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
            await self._end(send, call, told(error, call))
        else:
            await send({"type": "http.response.body", "body": b""})

    async def _end(self, send: Send, call: Call, fault: Fault) -> None:
        """Say what went wrong and end; to a client that reads nothing only the latter."""

        async def say() -> None:
            await send({"type": "http.response.body", "body": self.error(fault), "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await asyncio.wait_for(say(), 0 if fault.status == STALLED else TELLING_S)
        except asyncio.TimeoutError:
            call.abort()
            await asyncio.sleep(0)


Handler = Callable[[Context, Any], Awaitable[Answer]]


@frozen
class Route:
    """One method of one path. A route is closed: without the key it answers 401, unless `open` says otherwise."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: Any = None
    answer: Any = None
    shape: str = "openai"
    work: str = ""  # generate or embed: what takes a place in a model's queue; vectors are made of larger bodies
    open: bool = False
    optional_body: bool = False


class Endpoint:
    """The ASGI application of a route."""

    def __init__(self, route: Route, serving: Serving) -> None:
        self.route = route
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["weft.call"]
        call.route = self.route.path
        call.task = asyncio.current_task()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            body = await self._body(receive, headers)
            if call.ending is not None:  # a body that is there at that moment outruns the cancelling
                raise call.ending
            query = scope.get("query_string", b"").decode("latin-1")
            context = Context(self._serving, call, headers, scope.get("path_params", {}), _query(query))
            await self._race(self._work(context, body, send), call, receive)
        except Disconnected:
            call.finish_reason = call.finish_reason or "disconnected"
        except asyncio.CancelledError:  # before there was any work
            if call.ending is None:
                raise
            await send_fault(send, call.ending, self.route.shape)
        except Exception as error:
            await send_fault(send, told(error, call), self.route.shape)

    async def _body(self, receive: Receive, headers: dict[bytes, bytes]) -> Any:
        route, limits = self.route, self._serving.settings.limits
        if route.body is None:
            return None
        empty = headers.get(b"content-length", b"") in (b"", b"0") and b"transfer-encoding" not in headers
        if route.optional_body and empty:
            return msgspec.json.decode(b"{}", type=route.body)
        check_media_type(headers)
        limit = limits.embed_bytes if route.work == "embed" else limits.generate_bytes
        return await parse(await read_body(receive, headers, limit, limits), route.body, limits)

    async def _work(self, context: Context, body: Any, send: Send) -> None:
        call = context.call
        try:
            answer = await self.route.handler(context, body)
            await answer.send(send, call)
        except asyncio.CancelledError:
            if call.ending is None:
                raise
            await send_fault(send, call.ending, self.route.shape)
        finally:
            await call.stack.aclose()

    async def _race(self, work: Awaitable[None], call: Call, receive: Receive) -> None:
        """Do the work for as long as the client is there."""
        task = call.task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                call.finish_reason = "disconnected"
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.result()
            elif call.ending is not None and not gone.done():
                raise call.ending  # it was ended before its first step, and nobody has been told
        finally:
            gone.cancel()
            if not task.done():  # this coroutine itself was cancelled
                task.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def told(error: Exception, call: Call) -> Fault:
    """The fault to answer with; what is the server's own is logged in full."""
    fault = fault_of(error)
    if fault.status >= 500 and not isinstance(error, Fault):
        log.error("request failed", extra={"request_id": call.id, "route": call.route}, exc_info=error)
    return fault


async def send_fault(send: Send, fault: Fault, shape: str) -> None:
    headers: list[tuple[bytes, bytes]] = []
    if fault.retry_after_s is not None:
        headers.append((b"retry-after", str(fault.retry_after_s).encode()))
    if fault.status in (408, 413):  # what is left of the body is not wanted
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


def _query(text: str) -> dict[str, str]:
    from urllib.parse import parse_qsl

    return dict(parse_qsl(text, max_num_fields=100))
