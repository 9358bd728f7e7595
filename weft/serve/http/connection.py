"""A connection: it says in time what it wants, and its requests are counted, or refused, as their first bytes come."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from weft.serve.http.door import Door
from weft.serve.settings import Limits


class Connection(H11Protocol):
    """uvicorn's connection with a door before its parser. `data` are bytes that came before there was a connection,
    and `place` is the work that a place was taken for."""

    def __init__(
        self,
        limits: Limits,
        door: Door,
        data: bytes,
        place: str,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._limits = limits
        self._door = door
        self._held = data  # read, and to be parsed in the next turn of the event loop
        self._place = place
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = self._counted(self.app)
        self._wait()
        if self._held:
            self.loop.call_soon(self._parse)  # after reading has begun, which a parser may want to pause

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._give_back()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Refuse a request, or take a place for it and parse it when all who came with it have been looked at."""
        if self._held:
            self._held += data
        elif not self._at_rest:
            self._read(data)
        elif (answer := self._door.refusal(data, self.server_state.default_headers)) is not None:
            self._stop_waiting()
            self.transport.write(answer)
            self.on_response_complete()
        else:
            self._held, self._place = data, self._door.enter(data)
            self._unset_keepalive_if_required()  # it asks, whenever its turn comes
            self._door.turns.add(self._parse)

    def _parse(self) -> None:
        data, self._held = self._held, b""
        if not self.transport.is_closing():
            self._read(data)
        self._give_back()

    def _read(self, data: bytes) -> None:
        super().data_received(data)
        if self._unasked:
            self._wait()
        else:
            self._stop_waiting()

    def handle_events(self) -> None:
        """Parse; a request that comes of it has its place already, or takes one now."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            scope: Any = self.cycle.scope
            work = self._door.work_of(scope["method"], scope["path"])
            if work and work == self._place:
                self._place = ""
            elif work and not self._door.take(work):
                scope["weft.no_place"], work = True, ""
            scope["weft.work"] = work

    def _give_back(self) -> None:
        """Let go of a place that no request came of."""
        if self._place:
            self._door.leave(self._place)
            self._place = ""

    def _counted(self, app: Any) -> Any:
        """The application, given a way to drop the connection, which ASGI lacks; its place is free when it ends."""

        async def run(scope: Any, receive: Any, send: Any) -> None:
            scope["weft.abort"] = self.transport.abort
            try:
                await app(scope, receive, send)
            finally:
                if scope["weft.work"]:
                    self._door.leave(scope["weft.work"])

        return run

    @property
    def _at_rest(self) -> bool:
        """Whether the next bytes are the first of a request."""
        parser = self.conn
        return parser.our_state is h11.IDLE and parser.their_state is h11.IDLE and not parser.trailing_data[0]

    @property
    def _unasked(self) -> bool:
        """Whether no request has come since the last answer; bytes that wait for their turn may be one."""
        return not self._held and (self.cycle is None or self.cycle.response_complete)

    def _wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(self._limits.header_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self._patience = None
        if self._unasked and not self.transport.is_closing():
            self.transport.abort()
