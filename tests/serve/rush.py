"""Many requests at once from a client that costs next to nothing, so that what is measured is the server."""

import selectors
import socket
import time
from dataclasses import dataclass

PATIENCE_S = 120


@dataclass
class Asked:
    """One request: when it was sent, and what came first of its answer, how many seconds later."""

    raw: socket.socket
    sent: float
    head: bytes = b""
    took: float = 0.0

    @property
    def status(self) -> int:
        return int(self.head.split(b" ")[1]) if self.head else 0


def rush(port: int, request: bytes, count: int, *, connected: bool = False) -> list[Asked]:
    """Send `request` on `count` connections, as fast as they are made or, with `connected`, once all of them are, and
    read every answer to its end."""
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(count if connected else 0)]
    asked: list[Asked] = []
    with selectors.DefaultSelector() as waiting:
        for number in range(count):
            raw = opened[number] if connected else socket.create_connection(("127.0.0.1", port))
            raw.sendall(request)
            asked.append(Asked(raw, time.perf_counter()))
            raw.setblocking(False)
            waiting.register(raw, selectors.EVENT_READ, asked[-1])
            if number % 16 == 0:
                _read(waiting, 0)
        while waiting.get_map():
            assert _read(waiting, PATIENCE_S), f"{len(waiting.get_map())} of {count} have no answer"
    return asked


def _read(waiting: selectors.BaseSelector, patience_s: float) -> int:
    """Take what has come; how many had something."""
    ready = waiting.select(patience_s)
    for key, _ in ready:
        one: Asked = key.data
        now = time.perf_counter()
        try:
            data = one.raw.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not one.head:
            one.head, one.took = data, now - one.sent
        if not data or one.status != 200 or data.endswith(b"0\r\n\r\n"):
            waiting.unregister(one.raw)
            one.raw.close()
    return len(ready)
