"""HTTP for downloads, on the standard library: quick to notice a dead host, careful with the token, plain errors.

Everything heavy (ssl, http, urllib) is imported when the first request is made.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NoReturn
from urllib.parse import urlsplit

from weft import flags
from weft.errors import DownloadError, InputError, NotFoundError

CONNECT_S = 3.0  # for the name lookup, and again for the whole walk through the addresses
AGENT = "weft"
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class UnreachableError(DownloadError):
    """The host does not answer; another source may."""


class TransientError(DownloadError):
    """A failure that may pass; `after_s` is how long the server asked to wait, 0 if it did not."""

    def __init__(self, where: str, what: str, *, after_s: float = 0.0, **rest: Any) -> None:
        super().__init__(where, what, **rest)
        self.after_s = after_s


class AccessError(DownloadError):
    """The server refuses access to the file; `code` is the HTTP status."""

    def __init__(self, where: str, what: str, *, code: int, **rest: Any) -> None:
        super().__init__(where, what, **rest)
        self.code = code


class RangeError(TransientError):
    """The server has no bytes from there on: what is on disk is not the start of this file."""


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: what must stay the same for a token to be sent."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port


def _lookup(host: str, port: int) -> list[Any]:
    """getaddrinfo with a time limit, which the system's resolver does not have."""
    found: list[Any] = []
    failed: list[Exception] = []

    def resolve() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
            failed.append(error)

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(CONNECT_S)
    if failed:
        raise OSError(str(failed[0])) from failed[0]
    if not found:
        raise TimeoutError(f"no address for {host} within {CONNECT_S:g} s")
    return found


def dial(address: tuple[str, int], timeout: Any = None, source_address: Any = None) -> socket.socket:
    """A connected socket; all addresses together get CONNECT_S.

    Families take turns and no address gets it all, so a network that swallows IPv6 costs a second, not the connection.
    """
    found = _lookup(*address)
    families = [[row for row in found if row[0] == family] for family in dict.fromkeys(row[0] for row in found)]
    turns = [row for rows in zip_longest(*families) for row in rows if row is not None]
    ends = time.monotonic() + CONNECT_S
    last: OSError = TimeoutError(f"no connection to {address[0]} within {CONNECT_S:g} s")
    for position, (family, kind, protocol, _, target) in enumerate(turns):
        left = ends - time.monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(min(left, max(1.0, left / (len(turns) - position))))
            sock.connect(target)
        except OSError as error:
            sock.close()
            last = error
            continue
        sock.settimeout(CONNECT_S)
        return sock
    raise last


@lru_cache(maxsize=4)
def _opener(certificates: str | None, proxies: tuple[tuple[str, str], ...]) -> Any:
    """A urllib opener that connects with `dial` and follows the redirect rule below."""
    import http.client
    import ssl
    import urllib.request

    class Plain(http.client.HTTPConnection):
        """Connects (through a proxy and TLS where it must) within CONNECT_S, then waits for bytes longer."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._create_connection = dial  # the library's own hook; its default tries each address for the full time

        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(flags.get("HF_HUB_DOWNLOAD_TIMEOUT"))

    class Secure(Plain, http.client.HTTPSConnection):
        pass

    class PlainHandler(urllib.request.HTTPHandler):
        def http_open(self, request: Any) -> Any:
            return self.do_open(Plain, request)

    class SecureHandler(urllib.request.HTTPSHandler):
        def https_open(self, request: Any) -> Any:
            return self.do_open(Secure, request, context=context)

    class Redirect(urllib.request.HTTPRedirectHandler):
        """Follows a redirect with the token only where scheme, host and port stay the same.

        A HEAD request does not follow to another host: the hub describes a file in its own response, not in that of
        the storage it redirects to.
        """

        def redirect_request(self, request: Any, file: Any, code: int, reason: str, headers: Any, url: str) -> Any:
            same = origin(url) == origin(request.full_url)
            if not same and request.get_method() == "HEAD":
                return None
            following = super().redirect_request(request, file, code, reason, headers, url)
            token = request.unredirected_hdrs.get("Authorization")
            if following is not None and same:
                following.method = request.get_method()  # older Pythons turn HEAD into GET
                if token:
                    following.add_unredirected_header("Authorization", token)
            return following

    try:
        context = ssl.create_default_context(cafile=certificates)
    except OSError as error:
        raise InputError(
            "flags", f"is not a file of certificates ({error})", field="REQUESTS_CA_BUNDLE", given=certificates
        ) from error
    return urllib.request.build_opener(
        urllib.request.ProxyHandler(dict(proxies)), PlainHandler, SecureHandler, Redirect
    )


def request(
    url: str, *, token: str | None = None, headers: dict[str, str] | None = None, method: str = "GET"
) -> AbstractContextManager[Any]:
    """The open response to one request; every failure is one of this module's errors or weft's own."""
    import http.client
    import urllib.error
    import urllib.request

    asked = urllib.request.Request(
        url, headers={"User-Agent": AGENT, "Accept-Encoding": "identity", **(headers or {})}, method=method
    )
    if token:
        asked.add_unredirected_header("Authorization", f"Bearer {token}")
    bundle = flags.get("REQUESTS_CA_BUNDLE")
    opener = _opener(str(bundle) if bundle else None, tuple(sorted(urllib.request.getproxies().items())))
    try:
        return opener.open(asked)
    except urllib.error.HTTPError as error:
        if method == "HEAD" and error.code in (301, 302, 303, 307, 308):
            return error  # the redirect itself
        with error:
            _refused(url, error.code, error.headers)
    except urllib.error.URLError as error:
        _failed(url, error.reason if isinstance(error.reason, Exception) else error)
    except (OSError, http.client.HTTPException) as error:
        _failed(url, error)


def read(response: Any, size: int, *, partly: bool = False) -> bytes:
    """Up to `size` bytes of the body; with `partly` only those that are there already. Empty at the end."""
    import http.client

    try:
        return response.read1(size) if partly else response.read(size)
    except (OSError, http.client.HTTPException) as error:
        raise TransientError("download", f"the connection broke: {error!r}") from error


def _refused(url: str, code: int, headers: Any) -> NoReturn:
    if code in TRANSIENT:
        wait = headers.get("Retry-After") or ""
        after_s = float(wait) if wait.isdigit() else 0.0
        what = f"the server answered {code}: {url}"
        raise TransientError("download", what, advice="try again later", after_s=after_s)
    if code == 416:
        raise RangeError("download", f"the server cannot resume {url} at this byte")
    if code in (401, 403):
        raise AccessError("download", f"access refused ({code}): {url}", code=code)
    if code == 404:
        raise NotFoundError("download", f"not found: {url}", advice="check the name and the revision")
    raise DownloadError("download", f"the server answered {code}: {url}")


def _failed(url: str, error: Exception) -> NoReturn:
    import http.client
    import ssl

    host = urlsplit(url).hostname
    if isinstance(error, ssl.SSLError):
        raise UnreachableError(
            "download",
            f"no trusted connection to {host}: {error}",
            advice="set SSL_CERT_FILE or REQUESTS_CA_BUNDLE to your certificates",
        ) from error
    if isinstance(error, (ConnectionResetError, BrokenPipeError, http.client.HTTPException)):
        raise TransientError("download", f"the connection to {host} broke: {error!r}") from error
    raise UnreachableError(
        "download",
        f"cannot reach {host}: {error}",
        advice="check the network, and HTTPS_PROXY if there is a proxy",
    ) from error


def backoff_s(attempt: int, after_s: float = 0.0) -> float:
    """Seconds to wait after the failure number `attempt` (from 1): doubling from a half, or as the server asks; ≤ 8."""
    return min(8.0, max(after_s, 0.5 * 2 ** (attempt - 1)))


def patiently(action: Callable[[], Any]) -> Any:
    """`action()`, tried up to three times if failures are transient; a host that does not answer is asked once."""
    for attempt in (1, 2):
        try:
            return action()
        except TransientError as error:
            time.sleep(backoff_s(attempt, error.after_s))
    return action()
