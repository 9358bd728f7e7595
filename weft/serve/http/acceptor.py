"""A listening socket. What is refused is answered where it is accepted, at a quarter of what a connection costs; the
others become connections one turn of the event loop later, so that a crowd does not keep its own refusals waiting."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.serve.http.door import Door, is_whole

if TYPE_CHECKING:
    from uvicorn.server import ServerState

    from weft.serve.settings import Limits

BACKLOG = 2048  # connections that the system keeps until they are accepted, and the most that are accepted in one go
READ = 64 << 10  # bytes of a request that are looked at before it has a connection
LINGER_S = 1.0  # for a client that is still sending to read that nobody listens
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
REST_S = 1.0  # without accepting, when the system has no more descriptors

log = logging.getLogger("weft.serve")


class Acceptor:
    """Accepts on `listening` until closed. `connect` makes the protocol of a connection whose first bytes were read
    already, and for which a place may have been taken."""

    def __init__(
        self,
        listening: socket.socket,
        limits: Limits,
        door: Door,
        state: ServerState,
        connect: Callable[[bytes, str], asyncio.Protocol],
    ) -> None:
        self.sockets = (listening,)
        self._limits = limits
        self._door = door
        self._state = state
        self._connect = connect
        self._coming = 0  # let in, and waiting for a turn
        self._young: set[asyncio.Protocol] = set()  # made, and maybe not among the connections yet
        self._making: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        (listening,) = self.sockets
        if self._resting is not None:
            self._resting.cancel()
        if listening.fileno() >= 0:
            self._loop.remove_reader(listening.fileno())
            listening.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._making, return_exceptions=True)

    def _accept(self) -> None:
        (listening,) = self.sockets
        for _ in range(BACKLOG):
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                log.error("no connection can be accepted", extra={"error": error.strerror})
                self._loop.remove_reader(listening.fileno())
                self._resting = self._loop.call_later(REST_S, self._loop.add_reader, listening.fileno(), self._accept)
                return
            accepted.setblocking(False)
            try:
                self._meet(accepted)
            except OSError:  # gone already
                accepted.close()

    def _meet(self, accepted: socket.socket) -> None:
        """Refuse a connection or its request, or let it in."""
        try:
            data = accepted.recv(READ)
        except BlockingIOError:
            data = b""
        headers = self._state.default_headers
        crowded = self._open() >= self._limits.connections
        answer = self._door.turned_away(headers) if crowded and is_whole(data) else None
        answer = answer or self._door.refusal(data, headers, closing=True)
        if answer is not None:
            accepted.send(answer)
            accepted.close()
            return
        self._coming += 1
        if crowded:
            self._make(accepted, "", lambda: Excess(self._door, self._state, self._limits.header_s, data))
        else:
            place = self._door.enter(data)
            self._door.turns.add(partial(self._make, accepted, place, lambda: self._connect(data, place)))

    def _open(self) -> int:
        """Connections that there are or are about to be, each counted once."""
        connections = self._state.connections
        return len(connections) + self._coming + sum(one not in connections for one in self._young)

    def _make(self, accepted: socket.socket, place: str, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Make a connection; a place that was taken is the connection's once there is one."""
        one = protocol()
        self._coming -= 1
        self._young.add(one)
        task = self._loop.create_task(self._loop.connect_accepted_socket(lambda: one, accepted))
        self._making.add(task)
        task.add_done_callback(partial(self._made, place, one))

    def _made(self, place: str, one: asyncio.Protocol, task: asyncio.Task[Any]) -> None:
        self._making.discard(task)
        self._young.discard(one)
        if not task.cancelled() and (error := task.exception()) is not None:  # then there was never a connection
            log.error("a connection could not be made", exc_info=error)
            if place:
                self._door.leave(place)


class Excess(asyncio.Protocol):
    """A connection that is one too many and has not asked for anything yet, or not in full: it is told when it does."""

    def __init__(self, door: Door, state: ServerState, header_s: float, data: bytes) -> None:
        self._door = door
        self._state = state
        self._header_s = header_s
        self._first = data
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._patience = self._loop.call_later(self._header_s, transport.abort)
        if self._first:
            self.data_received(self._first)

    def data_received(self, data: bytes) -> None:
        """Answer; closing while the client still sends would take the answer back, so it is given time to read it."""
        if self._answered:
            return
        self._answered = True
        self._transport.write(self._door.turned_away(self._state.default_headers))
        if is_whole(data):
            self._transport.close()
            return
        self._transport.write_eof()
        self._patience.cancel()
        self._patience = self._loop.call_later(LINGER_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
