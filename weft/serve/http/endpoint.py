"""An endpoint: the ASGI application of a route, from the request's body to the end of its answer.

While a handler works the client is watched: when it disconnects the work is cancelled, streaming or not. Whatever the
handler holds is on `call.stack` and released when the answer has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from weft.serve.fields.translation import Translation
from weft.serve.http.bodies import Disconnected, Receive, check_media_type, parse, read_body
from weft.serve.http.rejoining import kept_if_asked
from weft.serve.http.routes import Context, Route, Scope, Send, logged_fault, send_fault
from weft.serve.work.tracking import Call

if TYPE_CHECKING:
    from weft.serve.serving import Serving


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
            places = self._serving.places
            places.check(self.route.work, call.tenant)  # a body that would be refused anyway is not read
            sent = await self._sent(receive, headers, call)
            if call.ending is not None:  # the body arrived in the same turn of the event loop as the cancellation
                raise call.ending
            with places.taken(self.route.work, call.tenant):
                body = await self._parsed(sent, call) if sent is not None else None
                query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), max_num_fields=100))
                context = Context(self._serving, call, headers, scope.get("path_params", {}), query)
                await self._race(self._work(context, body, send), call, receive)
        except Disconnected:
            call.finish_reason = call.finish_reason or "disconnected"
        except asyncio.CancelledError:  # before the handler ran
            if call.ending is None:
                raise
            await send_fault(send, call.ending, self.route.shape)
        except Exception as error:
            await send_fault(send, logged_fault(error, call), self.route.shape)

    async def _sent(self, receive: Receive, headers: dict[bytes, bytes], call: Call) -> bytes | None:
        """The bytes of the body; None for a route that has none."""
        route, limits = self.route, self._serving.settings.limits
        if route.body is None:
            return None
        empty = headers.get(b"content-length", b"") in (b"", b"0") and b"transfer-encoding" not in headers
        if route.optional_body and empty:
            return b"{}"
        check_media_type(headers)
        limit = limits.embed_bytes if route.work == "embed" else limits.generate_bytes
        with self._serving.arrivals.arriving(call) as note:
            return await read_body(receive, headers, limit, limits, note)

    async def _parsed(self, sent: bytes, call: Call) -> Any:
        """The body against its schema; the answer names the settings in it that have no effect."""
        settings = self._serving.settings
        translation = Translation(self.route.path, strict=settings.strict)
        body = await parse(sent, self.route.body, settings.limits, translation)
        call.ignored = tuple(translation.ignored)
        call.headers += translation.headers
        return body

    async def _work(self, context: Context, body: Any, send: Send) -> None:
        call = context.call
        try:
            answer = await self.route.handler(context, body)
            await kept_if_asked(context, answer).send(send, call)
        except asyncio.CancelledError:
            if call.ending is None:
                raise
            await send_fault(send, call.ending, self.route.shape)
        finally:
            await call.stack.aclose()

    async def _race(self, work: Awaitable[None], call: Call, receive: Receive) -> None:
        """Run the handler until it is done or the client disconnects."""
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
                raise call.ending  # it was cancelled before its first step, and nothing has been sent
        finally:
            gone.cancel()
            if not task.done():  # this coroutine itself was cancelled
                task.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
