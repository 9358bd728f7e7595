"""Responses that are kept in memory for later requests, within limits on their number and bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from weft.serve.http.faults import Fault

if TYPE_CHECKING:
    from weft.serve.settings import Limits


@dataclass(eq=False)
class Stored:
    """A response and the items it answers, those of earlier responses included."""

    tenant: str
    response: dict[str, Any]
    items: list[dict[str, Any]]
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = len(msgspec.json.encode(self.response)) + len(msgspec.json.encode(self.items))

    @property
    def id(self) -> str:
        return str(self.response["id"])


class StoredResponses:
    """Stored responses by id, the least recently used forgotten first. Each is found only with the key it was made
    with."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._found: OrderedDict[str, Stored] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def put(self, one: Stored) -> None:
        """Store a response, in place of an earlier state of it; one that alone is over the limit is not stored."""
        limits = self._limits
        self._drop(one.id)
        if one.bytes > limits.responses_bytes:
            return
        self._found[one.id] = one
        self.bytes += one.bytes
        while len(self._found) > limits.responses or self.bytes > limits.responses_bytes:
            self._drop(next(iter(self._found)))

    def get(self, id: str, tenant: str) -> Stored | None:
        found = self._found.get(id)
        if found is None or found.tenant != tenant:
            return None
        self._found.move_to_end(id)
        return found

    def find(self, id: str, tenant: str) -> Stored:
        """The response; a 404 fault if it is not stored."""
        found = self.get(id, tenant)
        if found is None:
            what = f"response {id!r:.80} is not stored: it was deleted, made with store: false, or too long ago"
            raise Fault(404, what, kind="not_found_error", code="response_not_found")
        return found

    def delete(self, id: str) -> None:
        self._drop(id)

    def _drop(self, id: str) -> None:
        gone = self._found.pop(id, None)
        if gone is not None:
            self.bytes -= gone.bytes
