"""Who is let in: requests are counted as they come, and what no queue has room for is refused there and then.

A crowd comes within one turn of the event loop, before any of it has reached a queue. So requests count from the moment
they are read, and a refusal is made of the bytes that came: no parser, no task, no body looked at.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from weft.serve.http.faults import SHAPES, Fault, too_busy

if TYPE_CHECKING:
    from weft.serve.http.routes import Route
    from weft.serve.work.metrics import Metrics

# What every answer carries, whoever writes it.
ALWAYS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]
A_TURN = 4  # connections made or requests parsed in one turn of the event loop
LONGEST_HEAD = 8 << 10  # a longer one is left to the parser
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n")
# A head with one of these is the parser's: it is ambiguous, expects something first, or wants an answer of its own.
_UNUSUAL = re.compile(rb"transfer-encoding|\r\n(?:expect:|origin:|x-request-id:|[ \t])")
_STAYING = b"\r\nconnection: keep-alive\r\n"

Headers = Iterable[tuple[bytes, bytes]]


class Turns:
    """Work on what was let in, a little in each turn of the event loop: between two of them it refuses what came."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        try:
            for _ in range(min(A_TURN, len(self._waiting))):
                self._waiting[0]()
                self._waiting.popleft()
        except BaseException:
            self._waiting.popleft()
            raise
        finally:
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._take)


class Door:
    """The count of what is under way by kind of work; `places` says how many requests of a kind there may be."""

    def __init__(self, routes: Sequence[Route], places: Callable[[str], int], metrics: Metrics) -> None:
        self._places = places
        self._metrics = metrics
        working = [route for route in routes if route.work]
        self._routes = {(route.method, route.path): route for route in working}
        self._starts = {f"{route.method} {route.path}".encode(): route for route in working}
        self._answers = {shape: _prepared(too_busy(MESSAGE), shape) for shape in SHAPES}
        self._crowded = _prepared(too_busy("too many connections"), "openai")
        self.under_way = {route.work: 0 for route in working}
        self.refused = 0
        self.turns = Turns()

    def work_of(self, method: str, path: str) -> str:
        """The work that a request is; empty for what takes no place."""
        route = self._routes.get((method, path))
        return route.work if route is not None else ""

    def full(self, work: str) -> bool:
        return self.under_way[work] >= self._places(work)

    def take(self, work: str) -> bool:
        """Take a place, where there is one; whether there was."""
        if self.full(work):
            return False
        self.under_way[work] += 1
        return True

    def leave(self, work: str) -> None:
        self.under_way[work] -= 1

    def enter(self, data: bytes) -> str:
        """The work for which a place was taken, going by the first bytes of a request."""
        route = self._asked(data)
        return route.work if route is not None and self.take(route.work) else ""

    def refusal(self, data: bytes, headers: Headers, *, closing: bool = False) -> bytes | None:
        """The answer to a whole request for which there is no place; None for all others, which go the usual way.
        `headers` are those of the day, `closing` tells the client that the connection ends."""
        route = self._asked(data)
        if route is None or not self.full(route.work) or not is_whole(data):
            return None
        self._count(route.method, route.path)
        return _with(self._answers[route.shape], headers, closing)

    def _asked(self, data: bytes) -> Route | None:
        """The route that bytes ask for, if it takes places."""
        verb, path, _ = (*data[:256].split(b" ", 2), b"", b"")[:3]
        return self._starts.get(verb + b" " + path)

    def turned_away(self, headers: Headers) -> bytes:
        """The answer to whatever comes on a connection that is one too many."""
        self._count("(other)", "(none)")
        return _with(self._crowded, headers, True)

    def _count(self, method: str, route: str) -> None:
        self.refused += 1
        self._metrics.count("http_requests_total", route=route, method=method, status="429")


MESSAGE = "as many requests are under way as this server takes; try again later"


def is_whole(data: bytes) -> bool:
    """Whether these bytes are one request, plainly written, and nothing else. Where there is doubt they are not."""
    end = data.find(b"\r\n\r\n", 0, LONGEST_HEAD)
    if end < 0:
        return False
    head = data[: end + 2].lower()
    length = _LENGTH.search(head)
    if length is None or head.count(b"content-length") != 1 or _UNUSUAL.search(head):
        return False
    if head.find(b" http/1.1\r\n") != head.find(b"\r\n") - 9 or (b"\r\nconnection:" in head and _STAYING not in head):
        return False
    return len(data) == end + 4 + int(length[1])


def _prepared(fault: Fault, shape: str) -> tuple[bytes, bytes]:
    """A whole answer but for its changing headers: what stands before them, and after."""
    body = msgspec.json.encode(SHAPES[shape](fault))
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *ALWAYS]
    fields.append((b"retry-after", b"%d" % (fault.retry_after_s or 1)))
    head = b"".join(b"%s: %s\r\n" % field for field in fields)
    return b"HTTP/1.1 429 Too Many Requests\r\n" + head, b"\r\n" + body


def _with(answer: tuple[bytes, bytes], headers: Headers, closing: bool) -> bytes:
    id = uuid4().hex.encode()
    more = b"".join(b"%s: %s\r\n" % field for field in headers) + (b"connection: close\r\n" if closing else b"")
    return b"%sx-request-id: req_%s\r\nrequest-id: req_%s\r\n%s%s" % (answer[0], id, id, more, answer[1])
