"""Bodies: read within limits of size and time, looked at before they are parsed, then checked against a schema."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, TypeVar

import msgspec

from weft.serve.http.faults import Fault, invalid
from weft.serve.settings import Limits

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SLACK = 64 << 10  # read beyond a limit, so that a client that is almost within it gets its answer
LEAST_RATE = 1024  # bytes a second
IN_THREAD = 256 << 10  # bodies over this size are parsed by another thread

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")
_PLACE = re.compile(r" - at `(?:key in )?\$([^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_NAMES = re.compile(r"[^.\[\]]+")
_BYTE = re.compile(r"\(byte (\d+)\)")
_LAST_KEY = re.compile(rb'"([\w.-]{1,64})"\s*:[\s\[-]*$')
# What a backslash begins: a surrogate pair, half of one, or anything else.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)


class Disconnected(Exception):
    """The client has gone."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit: int, limits: Limits) -> bytes:
    """The whole body, at most `limit` bytes of it."""
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > limit + SLACK:
        raise _too_large(limit)
    parts: list[bytes] = []
    size, started = 0, time.monotonic()
    while True:
        allowed = started + limits.body_s + size / LEAST_RATE - time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), max(allowed, 0.001))
        except asyncio.TimeoutError:
            raise Fault(408, "the body came too slowly", code="timeout") from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
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
    return Fault(413, f"the body is over {limit} bytes, which is the most", code="body_too_large")


def check_media_type(headers: dict[bytes, bytes]) -> None:
    """JSON, and nothing packed: a page of another origin can send text/plain without asking, JSON it cannot."""
    kind, _, parameters = headers.get(b"content-type", b"").decode("latin-1").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise Fault(415, "the Content-Type must be application/json, in UTF-8", code="unsupported_media_type")
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        raise Fault(415, "packed bodies are not taken; send no Content-Encoding", code="unsupported_media_type")


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
    """Hold nesting and number of values to their limits, in time linear in the body.

    Strings are cut out, and of the rest everything but brackets. What is innermost then stands as []: taking those away
    once for every level leaves nothing of a body that is nested no deeper than allowed.
    """
    bare = _STRINGS.sub(b"", body)
    if bare.count(b",") + bare.count(b"[") + bare.count(b"{") > limits.json_nodes:
        raise invalid(f"the body has over {limits.json_nodes} values, which is the most", code="body_too_large")
    left = bare.translate(_ALIKE, _NOT_STRUCTURE)
    for _ in range(limits.json_depth):
        before = len(left)
        left = left.replace(b"[]", b"")
        if not left or len(left) == before:
            break
    if b"[]" in left or left.count(b"[") > limits.json_depth:
        raise invalid(f"the body is nested deeper than {limits.json_depth} levels", code="body_too_deep")


def _misfit(message: str, schema: type[Any]) -> Fault:
    """What msgspec says of a value that does not fit, and the name of its field."""
    place = _PLACE.search(message)
    where = place[1].lstrip(".") if place else ""
    text = message[: place.start()] if place else message
    for pattern in (_UNKNOWN, _MISSING):
        if found := pattern.match(text):
            where = f"{where}.{found[1]}" if where else found[1]
    if text.startswith("Object contains unknown field"):
        return invalid(f"{where[:200]} is not a field of this request", where[:200], code="unknown_parameter")
    if text.startswith("Object missing required field"):
        return invalid(f"{where[:200]} is missing", where[:200], code="missing_parameter")
    if text.startswith("Invalid enum value") and (known := _choices(schema, where)):
        text = f"{text}; one of {', '.join(known)}"
    return invalid(f"{where or 'the body'}: {text}"[:500], where[:200] or None, code="invalid_value")


def _choices(schema: type[Any], where: str) -> list[str]:
    """The values that the schema has for the field at `where`, which msgspec does not tell."""
    kinds = list(_kinds(msgspec.inspect.type_info(schema)))
    for name in (name for name in _NAMES.findall(where) if not name.isdigit()):
        structs = [kind for kind in kinds if isinstance(kind, msgspec.inspect.StructType)]
        fields = [field for struct in structs for field in struct.fields if field.encode_name == name]
        kinds = [kind for field in fields for kind in _kinds(field.type)]
    return [repr(value) for kind in kinds if isinstance(kind, msgspec.inspect.LiteralType) for value in kind.values]


def _kinds(kind: Any) -> Iterator[Any]:
    """What a value may be: the types of a union, and those of a list's items."""
    if isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _kinds(one)
    elif isinstance(kind, msgspec.inspect.ListType):
        yield from _kinds(kind.item_type)
    else:
        yield kind


def _malformed(body: bytes, message: str) -> Fault:
    """The body is no JSON; the key before the place, which is what NaN and Infinity are given to."""
    half = next((escape[1] for escape in _ESCAPE.finditer(body) if escape[1]), None)
    if half is not None:  # the decoder takes it for the end of the body
        message = f"the body has \\{half.decode('latin-1')}, half of a surrogate pair, which is no character of a text"
        return invalid(message, code="invalid_json")
    found = _BYTE.search(message)
    key = _LAST_KEY.search(body[max(0, int(found[1]) - 200) : int(found[1])]) if found else None
    name = key[1].decode() if key else None
    about = f"{name}: " if name else ""
    return invalid(f"{about}the body is not JSON: {message}"[:300], name, code="invalid_json")
