"""Pictures from hosts that the operator has named: https://pictures.example.org/a.jpg, never another.

A name is resolved once, and the connection goes to the address that was checked: names that lead into the operator's
own network are refused. An address that is private is reached only where the operator has named that very address.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin, urlsplit

from weft.frozen import frozen
from weft.serve.http.faults import Fault, invalid
from weft.serve.settings import Settings, host_entry

FETCHES = 4  # at the same time
REDIRECTS = 3
LONGEST = 2048  # characters of an address
PORTS = {"http": 80, "https": 443}
NAT64 = ipaddress.ip_network("64:ff9b::/96")
NOT_ALLOWED, FAILED = "image_host_not_allowed", "image_not_fetched"


@frozen
class Target:
    """An address taken apart; `literal` is the IP address if its host is one."""

    scheme: str
    host: str
    port: int
    path: str
    literal: Any

    @property
    def names(self) -> tuple[str, ...]:
        """What the operator may have named to allow this: the host alone means the usual port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        named = (f"{host}:{self.port}",)
        return (host, *named) if self.port == PORTS[self.scheme] else named


def target_of(url: str, where: str) -> Target:
    if len(url) > LONGEST or not url.isascii() or not url.isprintable() or " " in url:
        raise invalid(f"must be an address of at most {LONGEST} plain characters", where, code=FAILED)
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        raise invalid("is not a valid address", where, code=FAILED) from None
    if parts.scheme not in PORTS or not host:
        raise invalid("must be an address that begins with https:// or http://, or a data: URL", where, code=FAILED)
    if parts.username is not None or parts.password is not None:
        raise invalid("must be an address without a name and a password", where, code=FAILED)
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        literal = None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or PORTS[parts.scheme], path, literal)


def is_public(address: Any) -> bool:
    """Whether an IP address is one of the internet; those of IPv4 inside IPv6 are judged as such."""
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    if inner is None and address.version == 6 and address in NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_public(inner)
    teredo = getattr(address, "teredo", None)
    return bool(address.is_global and not address.is_multicast and teredo is None)


class Fetcher:
    """Fetches pictures of `settings.image_hosts` within the server's limits."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset(filter(None, map(host_entry, settings.image_hosts)))
        self._most = settings.limits.picture_bytes
        self._time_s = settings.limits.picture_fetch_s
        self._threads = ThreadPoolExecutor(FETCHES, "weft-fetch")

    def check(self, url: str, where: str) -> Target:
        """The address taken apart; a fault unless the operator has named its host."""
        target = target_of(url, where)
        if not self._hosts.intersection(target.names):
            what = "is an address, and this server fetches no pictures"
            if self._hosts:
                what = "is an address of a host that this server does not fetch pictures from"
            raise invalid(f"{what}: send the picture as a data: URL", where, code=NOT_ALLOWED)
        return target

    async def fetch(self, url: str, where: str) -> bytes:
        """The bytes at an address, by another thread."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._fetch, url, where)
        try:
            return await asyncio.wait_for(work, self._time_s + 1.0)  # the resolver of names has no limit of its own
        except asyncio.TimeoutError:
            raise self._late(where) from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _late(self, where: str) -> Fault:
        return invalid(f"could not be fetched within {self._time_s:g} s", where, code=FAILED)

    def _fetch(self, url: str, where: str) -> bytes:
        ends, target = time.monotonic() + self._time_s, self.check(url, where)
        for _ in range(REDIRECTS + 1):
            found = self._answer(target, where, ends)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
            before, target = target, self.check(url, where)
            if (before.scheme, target.scheme) == ("https", "http"):
                raise invalid("redirects from https:// to http://", where, code=FAILED)
        raise invalid(f"redirects more than {REDIRECTS} times", where, code=FAILED)

    def _answer(self, target: Target, where: str, ends: float) -> bytes | str:
        """The body at an address, or where it redirects to."""
        stop: list[threading.Timer] = []
        try:
            sock = self._dial(target, where, ends)
            with sock.dup() as watched:
                stop.append(threading.Timer(max(0.0, ends - time.monotonic()), _shut, (watched,)))
                stop[0].start()
                found = self._asked(target, sock, where)
                if time.monotonic() >= ends:  # what ends early looks like a shorter body
                    raise TimeoutError
                return found
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() >= ends:
                raise self._late(where) from None
            what = f"could not be fetched from {target.host}: {type(error).__name__}"
            raise invalid(what, where, code=FAILED) from None
        finally:
            for timer in stop:
                timer.cancel()

    def _dial(self, target: Target, where: str, ends: float) -> socket.socket:
        """A connection to an address that may be reached."""
        if target.literal is not None:  # the operator has named it
            places: list[Any] = [target.literal]
        else:
            rows = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            places = [ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in rows]
            if not places or not all(map(is_public, places)):
                what = f"is at {target.host}, a name of a private address, which is not fetched from"
                raise invalid(what, where, code=NOT_ALLOWED)
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return socket.create_connection((str(places[0]), target.port), timeout=left)

    def _asked(self, target: Target, sock: socket.socket, where: str) -> bytes | str:
        connection = http.client.HTTPConnection(target.host, target.port)
        try:
            connection.sock = sock
            if target.scheme == "https":
                connection.sock = ssl.create_default_context().wrap_socket(sock, server_hostname=target.host)
            named = target.names[0]
            sent = {"Host": named, "User-Agent": "weft", "Accept": "image/*", "Accept-Encoding": "identity"}
            connection.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            if answer.status in (301, 302, 303, 307, 308) and answer.headers.get("Location"):
                return str(answer.headers["Location"])
            if answer.status != 200:
                what = f"could not be fetched: {target.host} answered {answer.status}"
                raise invalid(what, where, code=FAILED)
            return self._body(answer, where)
        finally:
            connection.close()
            sock.close()

    def _body(self, answer: http.client.HTTPResponse, where: str) -> bytes:
        body = b"" if (answer.length or 0) > self._most else answer.read(self._most + 1)
        if (answer.length or 0) > self._most or len(body) > self._most:
            what = f"has a picture of more than {self._most} bytes, which is what this server takes"
            raise invalid(what, where, code=FAILED)
        if answer.length:
            raise http.client.IncompleteRead(body, answer.length)
        return body


def _shut(sock: socket.socket) -> None:
    """End a connection in whatever it waits for: a host that sends a byte a second is no reason to wait longer."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
