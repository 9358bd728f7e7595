"""The native JSON reader is strict: what RFC 8259 does not allow, or what could hurt, is a format error."""

import json

import pytest

from weft._core import text as native
from weft.errors import FormatError, UnsupportedError


def read(text: bytes) -> None:
    """Reads a document whose member "x" is `text`; a document that parses is then refused as no tokenizer."""
    native.Tokenizer.from_json(b'{"model": {"type": "parsed"}, "x": ' + text + b"}", "x.json")


@pytest.mark.parametrize(
    "text",
    [b"0", b"-0.5e+10", b"[]", b"{}", b'"\\u00e9\\ud83d\\ude00\\n"', b"[1, [2, {}]]", b" \t\r\n true ",
     b"9" * 30, '"é"'.encode(), b"[" * 63 + b"]" * 63],
)  # fmt: skip
def test_good_json_parses(text: bytes) -> None:
    json.loads(text)  # Python agrees
    with pytest.raises(UnsupportedError, match="parsed"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"01", b"+1", b".5", b"1.", b"1e", b"- 1", b"NaN", b"Infinity", b"1e999", b"tru", b"truex", b"'a'",
        b'"a', b'"\t"',
        b'"\\x"', b'"\\u12g4"', b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"', b"[1,]", b"[1 2]", b"{,}", b'{"a"}',
        b'{"a":1,}', b"{1:2}", b'{"a":1,"a":2}', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b"1} {", b"]",
        b"[" * 64 + b"]" * 64,
    ],
)  # fmt: skip
def test_bad_json_is_a_format_error(text: bytes) -> None:
    with pytest.raises(FormatError, match=r"\[x.json\]"):
        read(text)


def test_a_repeated_key_is_found_among_many() -> None:
    many = ",".join(f'"{i}":{i}' for i in range(20_000))
    with pytest.raises(UnsupportedError, match="parsed"):
        read(f"{{{many}}}".encode())
    with pytest.raises(FormatError, match="repeats a key"):
        read(f'{{{many},"777":0}}'.encode())


def test_deep_nesting_costs_no_native_stack() -> None:
    with pytest.raises(FormatError, match="nested deeper"):
        read(b"[" * 5_000_000)
