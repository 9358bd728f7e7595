"""Bodies: read within limits of size and time, checked for depth and size before parsing, then against a schema."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

import msgspec

from weft.serve.fields.misfits import misfit
from weft.serve.fields.translation import Translation
from weft.serve.http.faults import Fault, invalid, slow_body
from weft.serve.settings import Limits

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SLACK = 64 << 10  # read beyond a limit, so that a client that is slightly over it can read the answer
IN_THREAD = 256 << 10  # bodies over this size are parsed by another thread

# Of msgspec's errors about malformed JSON only the place is read; they have no attributes.

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")
_BYTE = re.compile(r"\(byte (\d+)\)")
_LAST_KEY = re.compile(rb'"([\w.-]{1,64})"\s*:[\s\[-]*$')
_NUMBER = re.compile(rb"-?\d[\d.]*[eE]\+?\d{3,}")  # that may be out of range
# An escape: a surrogate pair, half of one (group 1), or any other.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)


class Disconnected(Exception):
    """The client has disconnected."""


async def read_body(
    receive: Receive, headers: dict[bytes, bytes], limit: int, limits: Limits, note: Callable[[int], None]
) -> bytes:
    """The whole body; a fault where it exceeds `limit` bytes or arrives too slowly. `note` gets the size of each part.

    The deadline moves on with every part by the time that it takes at `limits.body_rate`, and is never further away
    than `limits.body_s`: a part that came quickly does not pay for a long pause.
    """
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > limit + SLACK:
        raise _too_large(limit)
    parts: list[bytes] = []
    size, deadline = 0, time.monotonic() + limits.body_s
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(deadline - time.monotonic(), 0.001))
        except asyncio.TimeoutError:
            least = f"after {limits.body_s:g} s this server expects {limits.body_rate} bytes a second"
            raise slow_body(least) from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        deadline = min(deadline + len(part) / limits.body_rate, time.monotonic() + limits.body_s)
        note(len(part))
        if size <= limit:
            parts.append(part)
        elif size > limit + SLACK:
            raise _too_large(limit)
        if not message.get("more_body", False):
            break
    if size > limit:
        raise _too_large(limit)
    return b"".join(parts)


def _too_large(limit: int) -> Fault:
    return Fault(413, f"the body exceeds the limit of {limit} bytes", code="body_too_large", closes=True)


def check_media_type(headers: dict[bytes, bytes]) -> None:
    """Accept only uncompressed JSON. A page of another origin can send text/plain without a preflight, but not JSON."""
    kind, _, parameters = headers.get(b"content-type", b"").decode("latin-1").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise Fault(415, "the Content-Type must be application/json, encoded as UTF-8", code="unsupported_media_type")
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        raise Fault(415, "compressed bodies are not supported; send no Content-Encoding", code="unsupported_media_type")


async def parse(body: bytes, schema: type[T], limits: Limits, translation: Translation | None = None) -> T:
    """The body as `schema`, or a 400 that names the field."""
    if len(body) > IN_THREAD:
        return await asyncio.to_thread(decode, body, schema, limits, translation)
    return decode(body, schema, limits, translation)


def decode(body: bytes, schema: type[T], limits: Limits, translation: Translation | None = None) -> T:
    """As `parse`. Settings that clients of other servers send are handled as `translation` says."""
    check_structure(body, limits)
    try:
        return msgspec.json.decode(body, type=schema)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(body, str(error)) from None
    if translation is not None and isinstance(value, dict):
        value = translation.apply(value)
    try:
        return msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        found = misfit(value, schema)
        if found is None:  # misfits.py knows less than msgspec
            raise invalid(f"the body does not fit this request: {error}"[:500], code="invalid_value") from None
        raise found.fault(translation.names if translation is not None else {}) from None


def check_structure(body: bytes, limits: Limits) -> None:
    """Check nesting depth and number of values, in time linear in the size of the body.

    Strings are removed, and everything else except brackets. The innermost brackets then read []: removing those once
    per level leaves nothing of a body that is within the allowed depth.
    """
    bare = _STRINGS.sub(b"", body)
    if bare.count(b",") + bare.count(b"[") + bare.count(b"{") > limits.json_nodes:
        raise invalid(f"the body has more than {limits.json_nodes} values", code="body_too_large")
    left = bare.translate(_ALIKE, _NOT_STRUCTURE)
    for _ in range(limits.json_depth):
        before = len(left)
        left = left.replace(b"[]", b"")
        if not left or len(left) == before:
            break
    if b"[]" in left or left.count(b"[") > limits.json_depth:
        raise invalid(f"the body is nested more than {limits.json_depth} levels deep", code="body_too_deep")


def _malformed(body: bytes, message: str) -> Fault:
    """The fault of a body that is not JSON; it names the key before the error, where NaN and Infinity are the cause."""
    half = next((escape[1] for escape in _ESCAPE.finditer(body) if escape[1]), None)
    if half is not None:  # the decoder reports it as the end of the body
        message = f"the body has \\{half.decode('latin-1')}, half of a surrogate pair, which is not a character"
        return invalid(message, code="invalid_json")
    large = next((number for number in _NUMBER.finditer(body) if math.isinf(_float(number[0]))), None)
    found = _BYTE.search(message)
    place = large.start() if large is not None else int(found[1]) if found else 0
    key = _LAST_KEY.search(body[max(0, place - 200) : place])
    name = key[1].decode() if key else None
    if large is not None and not found:
        return invalid("is a number that is too large" if name else "the body has a number that is too large", name)
    about = f"{name}: " if name else ""
    return Fault(400, f"{about}the body is not JSON: {message}"[:300], param=name, code="invalid_json")


def _float(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
