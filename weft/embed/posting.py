"""JSON to an address and back, on the standard library: several requests at once, which end together, and answers that
have a limit."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from weft import flags
from weft.errors import BackendError, DownloadError, InputError
from weft.frozen import frozen

if TYPE_CHECKING:
    from http.client import HTTPConnection
    from ssl import SSLContext

T = TypeVar("T")
R = TypeVar("R")

MOST_IDLE = 8  # connections that are kept
MAX_BYTES = 256 << 20  # of an answer
SAID = 300  # characters of an error that are told
LOOK_S = 0.1  # between two looks at an event that wakes nobody here


@frozen
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def _error(self) -> Any:
        try:
            return json.loads(self.body).get("error")
        except (ValueError, AttributeError, RecursionError):
            return None

    @property
    def code(self) -> str | None:
        """What the server calls an error."""
        error = self._error
        return str(error.get("code")) if isinstance(error, dict) else None

    def said(self) -> str:
        """What the server says is wrong, on one line."""
        error = self._error
        text = error.get("message") if isinstance(error, dict) else error
        words = str(text or self.body[: 4 * SAID].decode("utf-8", "replace") or "nothing").split()
        return " ".join(words)[:SAID]


class Poster:
    """Where JSON is posted to, and with which key. Connections that a call is done with are kept for the next."""

    def __init__(self, base_url: str, path: str, key: str | None, timeout_s: float) -> None:
        try:
            parts = urlsplit(f"{base_url}{path}")
            self._scheme, self.host, self._port = parts.scheme, parts.hostname or "", parts.port
        except ValueError as error:  # a port that is none, a bracket that stays open
            raise InputError(f"[remote] base_url {base_url!r:.120} is no address: {error}") from None
        if self._scheme not in ("http", "https") or not self.host or parts.username is not None:
            raise InputError(f"[remote] base_url must be http:// or https:// and a host: got {base_url!r:.120}")
        if key is not None and not isinstance(key, str):
            raise InputError(f"[remote] api_key is {type(key).__name__}; give a string")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InputError("[remote] api_key has characters that no header takes")
        self.place = parts.netloc  # with its port: who does not answer is often at another one
        self._target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        self._url = f"{self._scheme}://{parts.netloc}{self._target}"
        self._idle: list[HTTPConnection] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "weft"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def take(self) -> HTTPConnection:
        """One that an earlier call left open, or one that is not open yet."""
        with self._lock:
            if self._owner != os.getpid():  # a forked child has no part in its parent's
                self._idle, self._owner = [], os.getpid()
            return self._idle.pop() if self._idle else self._connection()

    def give_back(self, connection: HTTPConnection) -> None:
        """Keep one that is open and waits for nothing."""
        with self._lock:
            if connection.sock is not None and len(self._idle) < MOST_IDLE and self._owner == os.getpid():
                self._idle.append(connection)
                return
        connection.close()

    def _connection(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        proxy = self._proxy
        host, port = (self.host, self._port) if proxy is None else (proxy.hostname or "", proxy.port)
        made: HTTPConnection
        if self._scheme == "http":
            return HTTPConnection(host, port, timeout=self._timeout_s)
        made = HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
        if proxy is not None:
            made.set_tunnel(self.host, self._port or 443, headers=_asked_by(proxy))
        return made

    @cached_property
    def _tls(self) -> SSLContext:
        import ssl

        bundle = flags.get("REQUESTS_CA_BUNDLE")
        try:  # 35 ms, most of them for certificates
            return ssl.create_default_context(cafile=None if bundle is None else str(bundle))
        except OSError as error:
            raise InputError(f"[remote] REQUESTS_CA_BUNDLE is {bundle}, which holds no certificates: {error}") from None

    @cached_property
    def _proxy(self) -> SplitResult | None:
        """The proxy of the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) for this server."""
        from urllib.request import getproxies, proxy_bypass

        found = getproxies().get(self._scheme)
        if not found or proxy_bypass(self.host):
            return None
        try:
            parts = urlsplit(found if "://" in found else f"http://{found}")
            if parts.scheme == "http" and parts.hostname and parts.port != 0:
                return parts
        except ValueError:
            pass
        name = f"{self._scheme.upper()}_PROXY"
        raise InputError(f"[remote] {name} is no address of a proxy as http://host:port; mend it, or set NO_PROXY")

    def exchange(self, connection: HTTPConnection, data: bytes) -> Answer:
        plain = self._proxy if self._scheme == "http" else None  # of TLS the tunnel takes care
        extra = {} if plain is None else _asked_by(plain)
        connection.request("POST", self._target if plain is None else self._url, data, {**self._headers, **extra})
        response = connection.getresponse()
        body = response.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise BackendError(f"[remote] {self.host} sends more than {MAX_BYTES} bytes; ask for fewer texts at once")
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body)


def _asked_by(proxy: SplitResult) -> dict[str, str]:
    """What a proxy is told of who asks."""
    if proxy.username is None:
        return {}
    from base64 import b64encode
    from urllib.parse import unquote

    name = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(name.encode()).decode()}"}


class StoppedError(Exception):
    """The call that a request belongs to is over; whoever sees this has nothing left to do."""


class Line:
    """What one thread asks on: a connection that it keeps, until `stopped` is set."""

    def __init__(self, poster: Poster, stopped: threading.Event) -> None:
        self._poster, self._stopped = poster, stopped
        self._connection = poster.take()
        self._waits = False  # for an answer

    def post(self, body: Any) -> Answer:
        """The answer, whatever its status; DownloadError where there is none. A kept connection that the server has
        closed meanwhile is opened again."""
        from http.client import HTTPException

        data = json.dumps(body).encode()
        while True:
            kept = self._connection.sock is not None
            try:
                if not kept:
                    self._connection.connect()
                self.wait(0)  # connecting takes its time, and what is asked now is paid for
                self._waits = True
                answer = self._poster.exchange(self._connection, data)
                self._waits = False
                return answer
            except (OSError, HTTPException) as error:
                self._connection.close()
                self.wait(0)
                if not kept or isinstance(error, TimeoutError):
                    raise DownloadError(
                        f"[remote] {self._poster.place} does not answer: {error}; see that it runs and may be reached"
                    ) from None

    def wait(self, seconds: float) -> None:
        """Sleeps, and raises StoppedError as soon as the call is over."""
        if self._stopped.wait(seconds):
            raise StoppedError

    def close(self) -> None:
        """Hand the connection back; one that an answer may still come on is of no use to others."""
        if self._waits or self._stopped.is_set():
            self._connection.close()
        else:
            self._poster.give_back(self._connection)

    def shut(self) -> None:
        """Ends what another thread is waiting for on this line."""
        import socket

        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, which only its own thread may touch


class Requests(Generic[T, R]):
    """`ask` of every item, by at most `threads` threads, each with a line of its own.

    Nobody ever waits for the threads: `stop` wakes those that sleep and shuts the lines of those that listen, and one
    that looks up a name, which nothing can hurry, is a daemon that ends without a request.
    """

    def __init__(self, poster: Poster, items: Sequence[T], ask: Callable[[Line, T], R], threads: int) -> None:
        self._items, self._ask = items, ask
        self._stopped = threading.Event()
        self._lines = [Line(poster, self._stopped) for _ in range(min(threads, len(items)))]
        self._changed = threading.Condition()
        self._places = iter(range(len(items)))
        self._done: dict[int, R] = {}
        self._error: Exception | None = None

    def start(self) -> None:
        for line in self._lines:
            threading.Thread(target=self._work, args=(line,), name="weft-remote", daemon=True).start()

    def result(self, place: int, left: threading.Event | None = None) -> R:
        """The answer to the item at `place`, once it is there; an error of any item is raised as soon as it is known,
        and KeyboardInterrupt where `left` is set."""
        with self._changed:
            while place not in self._done and self._error is None:
                self._changed.wait(None if left is None else LOOK_S)
                if left is not None and left.is_set():
                    raise KeyboardInterrupt
            if self._error is not None:
                raise self._error
            return self._done[place]

    def stop(self) -> dict[int, R]:
        """What has been answered so far, by place; nothing comes after it."""
        self._stopped.set()
        for line in self._lines:
            line.shut()
        with self._changed:
            return dict(self._done)

    def _work(self, line: Line) -> None:
        try:
            while (place := self._next()) is not None:
                line.wait(0)
                answer = self._ask(line, self._items[place])
                with self._changed:
                    self._done[place] = answer
                    self._changed.notify_all()
        except StoppedError:
            pass
        except Exception as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
        finally:
            line.close()

    def _next(self) -> int | None:
        with self._changed:
            return next(self._places, None)


class Pace:
    """Turns at equal distances, however many threads and embedders take them."""

    def __init__(self, per_minute: float | None) -> None:
        self._gap_s = 60.0 / per_minute if per_minute else 0.0
        self._lock, self._next = threading.Lock(), 0.0

    def turn_s(self) -> float:
        """Takes the next turn: the seconds until then."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._gap_s
        return turn - now


def retry_after_s(given: str | None, now: float) -> float:
    """The seconds that a Retry-After header asks for: a number, or a date; 0 where there is none to be read."""
    if not given:
        return 0.0
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, float(given))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return 0.0
