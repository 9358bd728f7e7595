"""JSON requests on the standard library: several at once that are ended together, and answers of limited size."""

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

MOST_IDLE = 8  # idle connections that are kept
MAX_BYTES = 256 << 20  # of an answer
SHOWN = 300  # characters of a server's error message
POLL_S = 0.1  # between two checks of an event that does not notify us


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
        """The server's code of an error."""
        error = self._error
        return str(error.get("code")) if isinstance(error, dict) else None

    @property
    def details(self) -> Mapping[str, Any]:
        """A weft server's details of an error: `index`, `length` and `limit` of a text that is too long."""
        error = self._error
        found = error.get("details") if isinstance(error, dict) else None
        return found if isinstance(found, dict) else {}

    def message(self) -> str:
        """The server's error message, on one line."""
        error = self._error
        text = error.get("message") if isinstance(error, dict) else error
        words = str(text or self.body[: 4 * SHOWN].decode("utf-8", "replace") or "an empty body").split()
        return " ".join(words)[:SHOWN]


class Poster:
    """An address to POST JSON to, with its API key, or with `headers` that have it. Idle connections are kept for the
    next call."""

    def __init__(
        self,
        base_url: str,
        path: str,
        key: str | None,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        try:
            parts = urlsplit(f"{base_url}{path}")
            self._scheme, self.host, self._port = parts.scheme, parts.hostname or "", parts.port
        except ValueError as error:  # an invalid port, an unclosed bracket
            what = f"is not a valid address ({error})"
            raise InputError("remote", what, given=base_url, field="base_url") from None
        if self._scheme not in ("http", "https") or not self.host or parts.username is not None:
            raise InputError("remote", "must be http:// or https:// and a host", given=base_url, field="base_url")
        if key is not None and not isinstance(key, str):
            raise InputError("remote", f"must be a string, not {type(key).__name__}", field="api_key")
        if not all(text.isascii() and text.isprintable() for text in (key or "", *(headers or {}).values())):
            raise InputError("remote", "has characters that are not allowed in an HTTP header", field="api_key")
        self.place = parts.netloc  # with the port, for messages: a wrong port is a common mistake
        self._target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        self._url = f"{self._scheme}://{parts.netloc}{self._target}"
        self._idle: list[HTTPConnection] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "weft"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._headers.update(headers or {})

    def take(self) -> HTTPConnection:
        """An idle connection, or a new one that is not open yet."""
        with self._lock:
            if self._owner != os.getpid():  # a forked child must not use its parent's connections
                self._idle, self._owner = [], os.getpid()
            return self._idle.pop() if self._idle else self._connection()

    def give_back(self, connection: HTTPConnection) -> None:
        """Keep a connection for the next call, if it is open."""
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
            made.set_tunnel(self.host, self._port or 443, headers=_proxy_headers(proxy))
        return made

    @cached_property
    def _tls(self) -> SSLContext:
        import ssl

        bundle = flags.get("REQUESTS_CA_BUNDLE")
        try:  # 35 ms, most of it for certificates
            return ssl.create_default_context(cafile=None if bundle is None else str(bundle))
        except OSError as error:
            what = f"must be a file of certificates: {error}"
            raise InputError("remote", what, given=str(bundle), field="REQUESTS_CA_BUNDLE") from None

    @cached_property
    def _proxy(self) -> SplitResult | None:
        """The proxy for this server, from HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""
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
        what = "must be the address of a proxy, http://host:port"
        raise InputError("remote", what, field=name, advice="correct it, or set NO_PROXY")

    def exchange(self, connection: HTTPConnection, data: bytes) -> Answer:
        plain = self._proxy if self._scheme == "http" else None  # https goes through a tunnel
        extra = {} if plain is None else _proxy_headers(plain)
        connection.request("POST", self._target if plain is None else self._url, data, {**self._headers, **extra})
        response = connection.getresponse()
        body = response.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            what = f"the answer of {self.host} has more than {MAX_BYTES} bytes"
            raise BackendError("remote", what, advice="send fewer texts per request (batch_texts)")
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body)


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    """The header with the user name and password of a proxy's address, if it has any."""
    if proxy.username is None:
        return {}
    from base64 import b64encode
    from urllib.parse import unquote

    name = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(name.encode()).decode()}"}


class StoppedError(Exception):
    """The call that a request belongs to has ended; its thread must end too."""


class Line:
    """One thread's connection, kept until `stopped` is set."""

    def __init__(self, poster: Poster, stopped: threading.Event) -> None:
        self._poster, self._stopped = poster, stopped
        self._connection = poster.take()
        self._waits = False  # whether an answer is outstanding

    def post(self, body: Any) -> Answer:
        """The answer, whatever its status; DownloadError if there is none. If the server has closed a kept connection,
        it is opened again."""
        from http.client import HTTPException

        data = json.dumps(body).encode()
        while True:
            kept = self._connection.sock is not None
            try:
                if not kept:
                    self._connection.connect()
                self.wait(0)  # the call may have ended while connecting, and a request may cost money
                self._waits = True
                answer = self._poster.exchange(self._connection, data)
                self._waits = False
                return answer
            except (OSError, HTTPException) as error:
                self._connection.close()
                self.wait(0)
                if not kept or isinstance(error, TimeoutError):
                    raise self._silent(error) from None

    def open(self) -> None:
        """Connect, unless a connection is open that the server has not closed; DownloadError if that fails."""
        if self._connection.sock is not None and _closed_by_server(self._connection):
            self._connection.close()
        if self._connection.sock is None:
            try:
                self._connection.connect()
            except OSError as error:
                self._connection.close()
                raise self._silent(error) from None

    def once(self, data: bytes, deadline_s: float) -> Answer:
        """The answer to a request that costs money: it is never sent twice. Call `open` before. DownloadError if there
        is none after `deadline_s`, however slowly bytes of it arrive; StoppedError if the call has ended."""
        from http.client import HTTPException

        self.wait(0)
        self._waits = True
        alarm = threading.Timer(deadline_s, self.shut)
        alarm.daemon = True
        alarm.start()
        try:
            answer = self._poster.exchange(self._connection, data)
            self._waits = False
            return answer
        except (OSError, HTTPException, AttributeError) as error:  # AttributeError: shut while it was read
            self._connection.close()
            self._waits = False
            self.wait(0)
            raise self._silent(error) from None
        finally:
            alarm.cancel()

    def _silent(self, error: Exception) -> DownloadError:
        what = f"{self._poster.place} does not answer: {error}"
        return DownloadError("remote", what, advice="check that it is running and can be reached")

    def wait(self, seconds: float) -> None:
        """Sleep; raises StoppedError as soon as the call has ended."""
        if self._stopped.wait(seconds):
            raise StoppedError

    def close(self) -> None:
        """Hand the connection back, or close it if an answer may still arrive on it."""
        if self._waits or self._stopped.is_set():
            self._connection.close()
        else:
            self._poster.give_back(self._connection)

    def shut(self) -> None:
        """End another thread's wait for an answer on this line."""
        import socket

        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, whose state only its own thread may use


def _closed_by_server(connection: HTTPConnection) -> bool:
    """Whether there is something to read before anything was asked: the end of the connection."""
    import select

    try:
        return bool(select.select([connection.sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True


class Requests(Generic[T, R]):
    """Calls `ask` for every item, in at most `threads` threads, each with its own line.

    The threads are never joined: `stop` wakes those that sleep and shuts the lines of those that wait for an answer. A
    thread that is resolving a host name cannot be interrupted; it is a daemon and ends without a request.
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
        """The answer to the item at `place`, when it arrives. Raises the first error of any item as soon as it is
        known, and KeyboardInterrupt once `left` is set."""
        with self._changed:
            while place not in self._done and self._error is None:
                # Not for ever: a signal that comes just before a lock begins to wait does not wake it, and Ctrl-C would
                # be noticed only with the next answer.
                self._changed.wait(POLL_S)
                if left is not None and left.is_set():
                    raise KeyboardInterrupt
            if self._error is not None:
                raise self._error
            return self._done[place]

    def stop(self) -> dict[int, R]:
        """End all requests; returns the answers received so far, by place."""
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
    """Turns at equal intervals, shared by any number of threads and embedders."""

    def __init__(self, per_minute: float | None) -> None:
        self._gap_s = 60.0 / per_minute if per_minute else 0.0
        self._lock, self._next = threading.Lock(), 0.0

    def turn_s(self, amount: float = 1.0) -> float:
        """Take the next turn, which lasts as many intervals as `amount` says; returns the seconds until then."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._gap_s * amount
        return turn - now


def retry_after_s(given: str | None, now: float) -> float:
    """The seconds of a Retry-After header, which is a number or a date; 0 if it is missing or invalid."""
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
