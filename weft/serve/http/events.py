"""The two encodings of a stream: server-sent events, and lines of JSON."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def event(value: Any, kind: str = "") -> bytes:
    """A server-sent event with `value` as JSON; `kind` is its name, where the API names events."""
    name = b"event: " + kind.encode() + b"\n" if kind else b""
    return name + b"data: " + _encode(value) + b"\n\n"


def line(value: Any) -> bytes:
    """A line of JSON."""
    return _encode(value) + b"\n"
