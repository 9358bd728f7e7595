"""JSON to an address and back, on the standard library: connections are kept, and answers have a limit."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from weft import flags
from weft.errors import DownloadError, InputError
from weft.frozen import frozen

if TYPE_CHECKING:
    from http.client import HTTPConnection

MAX_BYTES = 256 << 20  # of an answer
SAID = 300  # characters of an error that are told


@frozen
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def said(self) -> str:
        """What the server says is wrong, on one line."""
        try:
            error = json.loads(self.body).get("error")
            text = error.get("message") if isinstance(error, dict) else error
        except (ValueError, AttributeError, RecursionError):
            text = None
        words = str(text or self.body[: 4 * SAID].decode("utf-8", "replace") or "nothing").split()
        return " ".join(words)[:SAID]


class Poster:
    """Posts JSON to `url`. Every thread has a connection of its own, which it keeps."""

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise InputError(f"[remote] base_url must be http:// or https:// and a host: got {url!r:.120}")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InputError("[remote] api_key has characters that no header takes")
        self._scheme, self._host, self._port = parts.scheme, parts.hostname, parts.port
        self._target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "weft"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._kept = threading.local()

    def post(self, body: Any) -> Answer:
        """The answer, whatever its status; DownloadError where there is none. A kept connection that the server has
        closed meanwhile is opened again."""
        from http.client import HTTPException

        data = json.dumps(body).encode()
        kept: HTTPConnection | None = getattr(self._kept, "connection", None)
        for connection in (*((kept,) if kept is not None else ()), None):
            try:
                return self._exchange(connection or self._connect(), data)
            except (OSError, HTTPException) as error:
                self._drop()
                if connection is None or isinstance(error, TimeoutError):
                    raise DownloadError(f"[remote] {self._host} does not answer: {error}") from None
        raise AssertionError("the new connection returns or raises")

    def _exchange(self, connection: HTTPConnection, data: bytes) -> Answer:
        connection.request("POST", self._target, data, self._headers)
        response = connection.getresponse()
        body = response.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            self._drop()
            raise DownloadError(f"[remote] {self._host} sends more than {MAX_BYTES} bytes; ask for fewer texts")
        headers = {name.lower(): value for name, value in response.getheaders()}
        self._kept.connection = None if response.will_close else connection
        return Answer(response.status, headers, body)

    def _connect(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        if self._scheme == "http":
            return HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        import ssl

        bundle = flags.get("REQUESTS_CA_BUNDLE")
        context = ssl.create_default_context(cafile=None if bundle is None else str(bundle))
        return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)

    def _drop(self) -> None:
        kept = getattr(self._kept, "connection", None)
        if kept is not None:
            kept.close()
        self._kept.connection = None


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
