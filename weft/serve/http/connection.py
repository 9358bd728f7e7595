"""A connection: uvicorn's, with a time limit for headers and a limit on how many there are."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


class Connection(H11Protocol):
    """One connection of the server. Requests find it in `scope["state"]["connection"]`.

    `excess` is set where the server already has `limits.connections` of them: its first request is answered with 429
    and the connection closed.
    """

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
        self._header_timer: asyncio.TimerHandle | None = None
        self.excess = False

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
