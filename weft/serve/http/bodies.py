"""Bodies: read within limits of size and time, checked for depth and size before parsing, then against a schema."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, TypeVar

import msgspec

from weft.serve.http.faults import Fault, invalid, slow_body
from weft.serve.settings import Limits

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SLACK = 64 << 10  # read beyond a limit, so that a client that is slightly over it can read the answer
IN_THREAD = 256 << 10  # bodies over this size are parsed by another thread
REFUSAL = "refusal"  # key of a field's `Meta(extra=...)`: the message for values that break its limits

# msgspec's errors have no attributes, so the field at fault is read from their text.

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")
_PLACE = re.compile(r" - at `(?:key in )?\$([^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_NAMES = re.compile(r"[^.\[\]]+")
_BYTE = re.compile(r"\(byte (\d+)\)")
_LAST_KEY = re.compile(rb'"([\w.-]{1,64})"\s*:[\s\[-]*$')
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


async def parse(body: bytes, schema: type[T], limits: Limits) -> T:
    """The body as `schema`, or a 400 that names the field."""
    if len(body) > IN_THREAD:
        return await asyncio.to_thread(decode, body, schema, limits)
    return decode(body, schema, limits)


def decode(body: bytes, schema: type[T], limits: Limits) -> T:
    check_structure(body, limits)
    try:
        return msgspec.json.decode(body, type=schema)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), schema) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(body, str(error)) from None


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


def _misfit(message: str, schema: type[Any]) -> Fault:
    """The fault of a value that does not match the schema, from the message of msgspec's error."""
    place = _PLACE.search(message)
    where = place[1].lstrip(".") if place else ""
    text = message[: place.start()] if place else message
    for pattern in (_UNKNOWN, _MISSING):
        if found := pattern.match(text):
            where = f"{where}.{found[1]}" if where else found[1]
    if text.startswith("Object contains unknown field"):
        return invalid("is not a field of this request", where[:200], code="unknown_parameter")
    if text.startswith("Object missing required field"):
        return invalid("is missing", where[:200], code="missing_parameter")
    if text.startswith("Expected `null`"):
        return invalid("is not supported by this server", where[:200], code="unsupported_parameter")
    if text.startswith("Invalid enum value") and (known := _choices(schema, where)):
        text = f"{text}; one of {', '.join(known)}"
    text = _refusal(schema, where) or text
    message = f"{where or 'the body'}: {text}"[:500]
    return Fault(400, message, param=where[:200] or None, code="invalid_value")


def _refusal(schema: type[Any], where: str) -> str | None:
    """The field's own message for a value that breaks its limits, if it has one."""
    kinds = [kind for kind in _types_at(schema, where) if isinstance(kind, msgspec.inspect.Metadata)]
    return next((kind.extra[REFUSAL] for kind in kinds if kind.extra and REFUSAL in kind.extra), None)


def _choices(schema: type[Any], where: str) -> list[str]:
    """The values that the schema allows for the field at `where`; msgspec's message lacks them."""
    literals = [kind for kind in _types_at(schema, where) if isinstance(kind, msgspec.inspect.LiteralType)]
    return [repr(value) for kind in literals for value in kind.values]


def _types_at(schema: type[Any], where: str) -> list[Any]:
    """The types that the schema allows for the field at `where`."""
    kinds = list(_kinds(msgspec.inspect.type_info(schema)))
    for name in (name for name in _NAMES.findall(where) if not name.isdigit()):
        structs = [kind for kind in kinds if isinstance(kind, msgspec.inspect.StructType)]
        fields = [field for struct in structs for field in struct.fields if field.encode_name == name]
        kinds = [kind for field in fields for kind in _kinds(field.type)]
    return kinds


def _kinds(kind: Any) -> Iterator[Any]:
    """The types of a value: each type of a union, the items of a list, and annotations with what they annotate."""
    if isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _kinds(one)
    elif isinstance(kind, msgspec.inspect.ListType):
        yield from _kinds(kind.item_type)
    elif isinstance(kind, msgspec.inspect.Metadata):
        yield kind
        yield from _kinds(kind.type)
    else:
        yield kind


def _malformed(body: bytes, message: str) -> Fault:
    """The fault of a body that is not JSON; it names the key before the error, where NaN and Infinity are the cause."""
    half = next((escape[1] for escape in _ESCAPE.finditer(body) if escape[1]), None)
    if half is not None:  # the decoder reports it as the end of the body
        message = f"the body has \\{half.decode('latin-1')}, half of a surrogate pair, which is not a character"
        return invalid(message, code="invalid_json")
    found = _BYTE.search(message)
    key = _LAST_KEY.search(body[max(0, int(found[1]) - 200) : int(found[1])]) if found else None
    name = key[1].decode() if key else None
    about = f"{name}: " if name else ""
    return Fault(400, f"{about}the body is not JSON: {message}"[:300], param=name, code="invalid_json")
