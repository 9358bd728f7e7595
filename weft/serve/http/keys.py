"""The API keys of a server, and the key of a request."""

from __future__ import annotations

import hmac
from collections.abc import MutableMapping, Sequence
from hashlib import sha256
from typing import Any


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

    def of(self, scope: MutableMapping[str, Any]) -> int | None:
        """The number of the key in a request's headers, or None."""
        bearer = (header(scope, b"authorization") or b"").split(None, 1)
        given = bearer[1].strip() if len(bearer) == 2 and bearer[0].lower() == b"bearer" else None
        return self.find(given if given is not None else header(scope, b"x-api-key") or b"")


def header(scope: MutableMapping[str, Any], name: bytes) -> bytes | None:
    """The first value of the header `name`, which is in lower case."""
    return next((value for key, value in scope["headers"] if key == name), None)
