"""Malformed safetensors files, made rule by rule: (what is wrong, the bytes of the file)."""

import json
import struct
from collections.abc import Iterator
from typing import Any

BOUNDARIES = (0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64)


def file_of(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header_of(**tensors: Any) -> str:
    return json.dumps(tensors, separators=(",", ":"))


GOOD = file_of(header_of(a=entry(), b=entry("F16", (2, 3), (4, 16))), bytes(16))


def malformed() -> Iterator[tuple[str, bytes]]:
    """Files that break one rule each; all must be refused."""
    yield from _broken_lengths()
    yield from _broken_json()
    yield from _broken_fields()
    yield from _broken_places()


def _broken_lengths() -> Iterator[tuple[str, bytes]]:
    for size in range(len(GOOD)):
        yield f"cut after {size} bytes", GOOD[:size]
    for value in BOUNDARIES[:-1]:
        yield f"header length {value}", struct.pack("<Q", value) + GOOD[8:]
    yield "a byte after the data", GOOD + b"\0"
    yield "header over the limit", file_of("{}" + " " * 100, length=100_000_001)


def _broken_json() -> Iterator[tuple[str, bytes]]:
    one = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    texts = {
        "empty header": "",
        "space before the header": " " + one,
        "newline before the header": "\n" + one,
        "byte order mark": "\ufeff" + one,
        "tab after the header": one + "\t",
        "newline after the header": one + "\n",
        "NUL after the header": one + "\0",
        "two objects": one + "{}",
        "a list": "[]",
        "a number": "1",
        "null": "null",
        "trailing comma": one[:-1] + ",}",
        "comma in a list": one.replace("[1]", "[1,]"),
        "comment": one.replace("{", "{/**/", 1),
        "single quotes": one.replace('"', "'"),
        "same name twice": one[:-1] + "," + one[1:],
        "same name twice, escaped": one[:-1] + "," + one[1:].replace('"a"', '"\\u0061"'),
        "same field twice": one.replace('"shape":[1]', '"shape":[1],"shape":[1]'),
        "same field twice, escaped": one.replace('"shape":[1]', '"shape":[1],"sh\\u0061pe":[1]'),
        "metadata twice": '{"__metadata__":{},"__metadata__":{},' + one[1:],
        "metadata key twice": '{"__metadata__":{"x":"1","x":"2"},' + one[1:],
        "lone surrogate": one.replace('"a"', '"\\ud800"'),
        "lone low surrogate": one.replace('"a"', '"\\udc00x"'),
        "control character": one.replace('"a"', '"a\x01"'),
        "bad escape": one.replace('"a"', '"\\x41"'),
        "deep nesting": one.replace("[1]", "[" * 200 + "]" * 200),
        "very deep nesting": one.replace("[1]", "[" * 200_000 + "]" * 200_000),
        "deep nesting in a field of no meaning": one.replace('"shape"', '"x":' + "[" * 200 + "]" * 200 + ',"shape"'),
        "NaN": one.replace('"shape"', '"x":NaN,"shape"'),
        "infinite number": one.replace('"shape"', '"x":1e999,"shape"'),
    }
    for what, text in texts.items():
        yield what, file_of(text, bytes(4))
    yield "not UTF-8", file_of(one.encode().replace(b'"a"', b'"\xff"'), bytes(4))
    yield "overlong UTF-8", file_of(one.encode().replace(b'"a"', b'"\xc0\x80"'), bytes(4))
    yield "an encoded surrogate", file_of(one.encode().replace(b'"a"', b'"\xed\xa0\x80"'), bytes(4))
    for size in range(1, len(one)):
        yield f"header text cut after {size}", file_of(one[:size], bytes(4))


def _broken_fields() -> Iterator[tuple[str, bytes]]:
    odd: tuple[Any, ...] = (None, True, 1, 1.5, "x", [], {}, [[]], -1, "F32", ["1"], [1.0], [True], [None], [-1], [1e2])
    for field in ("dtype", "shape", "data_offsets"):
        right = entry()[field]
        for value in odd:
            if value != right and (field, value) != ("shape", []):  # a shape without dimensions is right
                yield f"{field} is {value!r}", file_of(header_of(a={**entry(), field: value}), bytes(4))
        yield f"no {field}", file_of(header_of(a={k: v for k, v in entry().items() if k != field}), bytes(4))
    for value in odd:
        yield f"tensor is {value!r}", file_of(header_of(a=value), bytes(4))
        if value not in (None, {}):
            yield f"metadata is {value!r}", file_of(header_of(__metadata__=value, a=entry()), bytes(4))
        if not isinstance(value, str):
            yield f"metadata holds {value!r}", file_of(header_of(__metadata__={"k": value}, a=entry()), bytes(4))
    for name in ("f32", "F32 ", "F128", "I4", "Q4_0", "", "float32"):
        yield f"dtype {name!r}", file_of(header_of(a=entry(name)), bytes(4))
    for text in ("-0", "1.0", "1e0", "0x1", "01", "+1", "1" * 400):
        yield f"shape [{text}]", file_of(header_of(a=entry()).replace("[1]", f"[{text}]"), bytes(4))


def _broken_places() -> Iterator[tuple[str, bytes]]:
    for value in BOUNDARIES:
        if value != 1:
            yield f"shape [{value}]", file_of(header_of(a=entry(shape=(value,))), bytes(4))
            yield f"shape [{value}, {value}]", file_of(header_of(a=entry(shape=(value, value))), bytes(4))
        if value != 4:
            yield f"ends at {value}", file_of(header_of(a=entry(offsets=(0, value))), bytes(4))
        if value != 0:
            yield f"begins at {value}", file_of(header_of(a=entry(offsets=(value, 4))), bytes(4))
            yield f"moved by {value}", file_of(header_of(a=entry(offsets=(value, value + 4))), bytes(4))
    yield "product wraps to the right size", file_of(header_of(a=entry(shape=(1 << 32, 1 << 32, 1))), bytes(4))
    yield "wraps before a zero", file_of(header_of(a=entry(shape=(1 << 63, 4, 0), offsets=(0, 0))))
    yield "large shape, little data", file_of(header_of(a=entry(shape=(1024, 1024))), bytes(4))
    yield "end before begin", file_of(header_of(a=entry(offsets=(4, 0))), bytes(4))
    yield "three offsets", file_of(header_of(a=entry(offsets=(0, 4, 4))), bytes(4))
    yield "hole at the start", file_of(header_of(a=entry(offsets=(4, 8))), bytes(8))
    yield "hole", file_of(header_of(a=entry(), b=entry(offsets=(8, 12))), bytes(12))
    yield "overlap", file_of(header_of(a=entry(), b=entry(offsets=(2, 6))), bytes(6))
    yield "same bytes twice", file_of(header_of(a=entry(), b=entry()), bytes(4))
    yield "half a byte", file_of(header_of(a=entry("F4", (1,), (0, 1))), bytes(1))
    yield "six bits", file_of(header_of(a=entry("F6_E2M3", (2,), (0, 2))), bytes(2))
    yield "empty tensor past the end", file_of(header_of(a=entry(), b=entry(shape=(0,), offsets=(8, 8))), bytes(4))


def well_formed() -> Iterator[tuple[str, bytes]]:
    """Unusual files that are right."""
    yield "no tensors", file_of("{}")
    yield "spaces after the header", file_of("{}      ")
    yield "spaces inside the header", file_of(' { "a" : [ ] } '.strip().replace("[ ]", json.dumps(entry())), bytes(4))
    yield "metadata null", file_of(header_of(__metadata__=None, a=entry()), bytes(4))
    yield "metadata", file_of(header_of(__metadata__={"format": "pt", "": "é"}, a=entry()), bytes(4))
    yield "no dimensions", file_of(header_of(a=entry(shape=())), bytes(4))
    yield "empty tensor", file_of(header_of(a=entry(shape=(0, 7), offsets=(0, 0))))
    yield (
        "empty tensors share a place",
        file_of(
            header_of(a=entry(), b=entry(shape=(0,), offsets=(0, 0)), c=entry(shape=(0, 2), offsets=(0, 0))), bytes(4)
        ),
    )
    yield "huge but empty", file_of(header_of(a=entry(shape=(1 << 62, 0), offsets=(0, 0))))
    yield "out of order", file_of(header_of(b=entry(offsets=(4, 8)), a=entry()), bytes(8))
    yield "a field of no meaning", file_of(header_of(a={**entry(), "note": {"x": [1.5, None]}}), bytes(4))
    yield "empty name", file_of('{"":' + json.dumps(entry()) + "}", bytes(4))
    yield "surrogate pair", file_of('{"\\ud83d\\ude00":' + json.dumps(entry()) + "}", bytes(4))
    for name, width in (("BOOL", 8), ("U16", 16), ("F8_E4M3", 8), ("C64", 64), ("U64", 64), ("F4", 4), ("F6_E3M2", 6)):
        yield f"dtype {name}", file_of(header_of(a=entry(name, (8,), (0, width))), bytes(width))
