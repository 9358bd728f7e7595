"""The pieces of a SentencePiece .model file, a protocol buffer, for writing them elsewhere."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from weft.errors import FormatError
from weft.frozen import frozen

_NORMAL, _UNIGRAM = 1, 1


@frozen
class Pieces:
    """(text, score, type) of every piece, whether they are Unigram's, and the table of characters."""

    pieces: tuple[tuple[str, float, int], ...]
    unigram: bool
    charsmap: bytes


def read_pieces(content: bytes) -> Pieces:
    """Of a whole file."""
    pieces: list[tuple[str, float, int]] = []
    unigram, charsmap = True, b""
    for field, value in _fields(content):
        if field == 1:
            parts = dict(_fields(_block(value)))
            score = parts.get(2, bytes(4))
            (number,) = struct.unpack("<f", _block(score))
            pieces.append((_block(parts.get(1, b"")).decode(), number, int(_number(parts.get(3, _NORMAL)))))
        elif field == 2:
            unigram = dict(_fields(_block(value))).get(3, _UNIGRAM) == _UNIGRAM
        elif field == 3:
            charsmap = _block(dict(_fields(_block(value))).get(2, b""))
    return Pieces(tuple(pieces), unigram, charsmap)


def _block(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise FormatError("tokenizer.model", "a number stands where a block of bytes must be")
    return value


def _number(value: bytes | int) -> int:
    if not isinstance(value, int):
        raise FormatError("tokenizer.model", "a block of bytes stands where a number must be")
    return value


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a message: their numbers, and a number or the bytes of each."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(content) and shift < 64:
            byte = content[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value
        raise FormatError("tokenizer.model", f"ends inside a number, at byte {at}")

    while at < len(content):
        tag = varint()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind) if kind != 2 else varint()
        if size is None or at + size > len(content):
            raise FormatError("tokenizer.model", f"has a malformed field, at byte {at}")
        yield tag >> 3, content[at : at + size]
        at += size
