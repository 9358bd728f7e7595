"""How weft hashes what has several parts, and what is too large to hash at once.

Caches, stores and indexes on users' disks are found by these digests, so the bytes that are hashed never change.
"""

from __future__ import annotations

from typing import Any, BinaryIO

BLOCK = 1 << 20  # bytes of a file that are in memory at a time


def add(hashed: Any, *parts: str | bytes | memoryview) -> None:
    """Hash each part after its length (8 bytes, little-endian), so that ("ab", "c") and ("a", "bc") differ."""
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)


def framed(*parts: str | bytes) -> bytes:
    """The bytes that `add` hashes."""
    raw = (part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts)
    return b"".join(len(data).to_bytes(8, "little") + data for data in raw)


def spread(size: int, piece: int, pieces: int) -> list[int]:
    """Where `pieces` pieces of `piece` bytes start in `size` bytes: the first at 0, the last ends at the end.

    Pieces of a small file overlap; a file of at most one piece is read as one.
    """
    if size <= piece:
        return [0]
    return sorted({(size - piece) * i // (pieces - 1) for i in range(pieces)})


def of_file(file: BinaryIO) -> str:
    """SHA-256, in hex, of the rest of an open file."""
    from hashlib import sha256

    hashed = sha256()
    while block := file.read(BLOCK):
        hashed.update(block)
    return hashed.hexdigest()
