"""A digest that identifies a model by pieces of its files."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from weft.digest import spread

PIECE = 64 << 10  # bytes
PIECES = 16  # of each file, from its beginning to its end
_ENDINGS = (".safetensors", ".gguf", ".json", ".model", ".txt", ".jinja")


def digest_of(path: Path) -> str:
    """SHA-256, in hex, of the names and sizes of a model's files and of pieces spread over each.

    Models that differ in shape, format or training differ everywhere, so pieces distinguish them; the digest
    does not prove that no byte was changed.
    """
    files = sorted(one for one in path.rglob("*") if one.suffix in _ENDINGS) if path.is_dir() else [path]
    hashed = sha256()
    for one in files:
        size = one.stat().st_size
        name = one.relative_to(path).as_posix() if path.is_dir() else ""  # a file may be called anything
        hashed.update(f"{name}\0{size}\0".encode())
        with one.open("rb") as opened:
            for offset in spread(size, PIECE, PIECES):
                opened.seek(offset)
                hashed.update(opened.read(PIECE))
    return hashed.hexdigest()
