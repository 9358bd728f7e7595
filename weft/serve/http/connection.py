"""A connection: uvicorn's, with a time limit for headers, and limits on what a request's head may be."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any

import h11
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from weft.serve.http.faults import Fault, openai_shape

_HEAD = re.compile(rb".*?\n\r?\n", re.DOTALL)
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:", re.IGNORECASE)
_ENCODING = re.compile(rb"\ntransfer-encoding[ \t]*:", re.IGNORECASE)


class Parser(h11.Connection):
    """h11's parser, which looks at the head of each request as it was sent.

    h11 limits a head only while it is incomplete, takes Transfer-Encoding where Content-Length says otherwise, and
    makes one of two equal lengths. A proxy in front of this server may read such a request differently, and then
    disagree about where the next one begins. `refusal` is the fault of the request that was read last, if it has one.
    """

    def __init__(self, header_bytes: int) -> None:
        super().__init__(h11.SERVER, header_bytes)
        self._header_bytes = header_bytes
        self.refusal: Fault | None = None
        self.status = 400  # for a request that cannot be read

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE and (head := _HEAD.match(self.trailing_data[0])) is not None:
            self.refusal = self._refusal(head[0])
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.status = error.error_status_hint
            raise

    def headers_too_large(self) -> Fault:
        message = f"the headers exceed the limit of {self._header_bytes} bytes"
        return Fault(431, message, code="headers_too_large", closes=True)

    def _refusal(self, head: bytes) -> Fault | None:
        if len(head) > self._header_bytes:
            return self.headers_too_large()
        lengths, encodings = len(_LENGTH.findall(head)), len(_ENCODING.findall(head))
        if lengths + encodings > 1:
            message = "a request may have one Content-Length or one Transfer-Encoding, and not both"
            return Fault(400, message, code="ambiguous_length", closes=True)
        return None


class Connection(H11Protocol):
    """One connection of the server. Requests find it in `scope["state"]["connection"]`.

    `excess` is set where the server already has `limits.connections` of them: its first request is answered with 429
    and the connection closed.
    """

    conn: Parser

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)
        app: Any = config.app
        self._limits = app.serving.settings.limits
        self.conn = Parser(self._limits.header_bytes)
        self._header_timer: asyncio.TimerHandle | None = None
        self.excess = False

    @property
    def refusal(self) -> Fault | None:
        """Why the request that was read last is refused, if it is."""
        return self.conn.refusal

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.excess = len(self.connections) > self._limits.connections
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._between_requests:
            self._start_timer()
        else:
            self._stop_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read, and close. Where an answer has begun, nothing more can be said."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        status = HTTPStatus(self.conn.status)
        fault = self.conn.headers_too_large() if status == 431 else Fault(status, msg, code="invalid_http")
        body = msgspec.json.encode(openai_shape(fault))
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        answer = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def body_is_whole(self) -> bool:
        """Whether all of the request that is being answered has arrived, read or not."""
        return self.cycle is not None and not self.cycle.more_body

    def abort(self) -> None:
        """Drop the connection at once, which ASGI has no message for."""
        self.transport.abort()

    @property
    def _between_requests(self) -> bool:
        """Whether no request has been parsed since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        """Start the time limit for headers; bytes that trickle in do not extend it."""
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self._limits.header_s, self._give_up)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if self._between_requests and not self.transport.is_closing():
            self.transport.abort()
