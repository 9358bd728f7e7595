"""The API keys of a server, the key of a request, and what happens to clients that try many keys."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from weft.serve.http.faults import Fault

FREE = 30  # failures of an address that cost nothing: people mistype, and programs retry with an old key
STEP_S = 0.1  # for every failure beyond those, an answer comes this much later
MOST_S = 5.0
FORGET_S = 6.0  # an address is forgiven one failure in this time
SUSPECT = 100  # failures from which on an address no longer learns at once that a key is right
DELAYED = 4  # answers of one address that may be waiting; further ones are refused unseen
REMEMBERED = 4096  # addresses, and keys that were right at an address; the least recent are forgotten


class Keys:
    """The keys of a server, as digests, so that comparing takes the same time whatever was sent."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, given: bytes) -> int | None:
        """The number of the key `given`, or None; all keys are compared, so that the time says nothing."""
        digest, found = sha256(given).digest(), None
        for number, known in enumerate(self._digests):
            if hmac.compare_digest(digest, known):
                found = number
        return found


@dataclass
class _Failures:
    """The failures of one address, as of `at`, and its answers that are being delayed."""

    count: float = 0.0
    at: float = 0.0
    delayed: int = 0


class Attempts:
    """Slows down clients that try keys, by address.

    Answers to wrong keys come later and later. A right key is answered at once, whatever others do; only an address
    with more than SUSPECT failures waits for a key that was not right there before, else it could tell from the time
    that its guess was right without waiting for answers to wrong ones.
    """

    def __init__(self, most_delayed: int) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._right: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._most_delayed = most_delayed
        self._delayed = 0
        self.clock: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], Any] = asyncio.sleep

    async def judge(self, client: tuple[str, int] | None, number: int | None) -> None:
        """Wait as long as the client at this address has to for an answer about a key, which is right unless `number`
        is None; a 429 fault if too many of its answers are waiting. A Unix socket has no address and never waits."""
        if client is None:
            return
        address = network_of(client[0])
        found = self._recent(address)
        if number is not None and ((address, number) in self._right or found.count <= SUSPECT):
            self._remember(address, number)
            return
        wait_s = min(MOST_S, STEP_S * (found.count - FREE))
        if number is None:
            self._fail(address, found)
        if wait_s > 0:
            await self._delay(found, wait_s)
        if number is not None:
            self._remember(address, number)

    def _recent(self, address: str) -> _Failures:
        """The failures of an address, less those that are forgiven by now."""
        found, now = self._failures.get(address, _Failures()), self.clock()
        found.count = max(0.0, found.count - (now - found.at) / FORGET_S)
        found.at = now
        return found

    def _fail(self, address: str, found: _Failures) -> None:
        found.count = min(found.count + 1, 2 * SUSPECT)
        self._failures[address] = found
        _keep_recent(self._failures, address)

    def _remember(self, address: str, number: int) -> None:
        self._right[address, number] = None
        _keep_recent(self._right, (address, number))

    async def _delay(self, found: _Failures, wait_s: float) -> None:
        if found.delayed >= DELAYED or self._delayed >= self._most_delayed:
            raise Fault(
                429,
                "too many wrong API keys were sent from this address; try again later",
                kind="rate_limit_error",
                code="too_many_wrong_keys",
                retry_after_s=math.ceil(wait_s),
            )
        found.delayed += 1
        self._delayed += 1
        try:
            await self.sleep(wait_s)
        finally:
            found.delayed -= 1
            self._delayed -= 1


def _keep_recent(kept: OrderedDict[Any, Any], key: Any) -> None:
    kept.move_to_end(key)
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)


def network_of(address: str) -> str:
    """The address whose failures are counted together: of IPv6 the first 64 bits, which one client may have in full."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))


def key_in(scope: MutableMapping[str, Any]) -> bytes:
    """The key in a request's headers; empty if there is none."""
    bearer = (header(scope, b"authorization") or b"").split(None, 1)
    if len(bearer) == 2 and bearer[0].lower() == b"bearer":
        return bearer[1].strip()
    return header(scope, b"x-api-key") or b""


def header(scope: MutableMapping[str, Any], name: bytes) -> bytes | None:
    """The first value of the header `name`, which is in lower case."""
    return next((value for key, value in scope["headers"] if key == name), None)
