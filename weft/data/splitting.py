"""Parts of a data set that stay what they are when it grows: a hash of each row decides, not its place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.data.rows import read_set, write_manifest, write_rows
from weft.errors import InputError
from weft.frozen import frozen
from weft.train.data.rows import Data, Row

PARTS = {"train": 0.8, "valid": 0.1, "test": 0.1}
MANIFEST = "manifest.json"


@frozen
class Split:
    """The folder, and how many rows each part has."""

    folder: Path
    rows: dict[str, int]


def part_of(key: str, parts: Mapping[str, float], seed: int = 0) -> str:
    """The part that a key belongs to, whatever other keys there are.

    The key's hash is a number between 0 and 1, and the parts lie one after another there.
    """
    at = Fraction(
        int.from_bytes(sha256(f"{seed}\0{key}".encode("utf-8", "surrogatepass")).digest()[:8], "big"), 1 << 64
    )
    total, last = Fraction(0), ""
    for last, share in parts.items():
        total += Fraction(share)
        if at < total:
            return last
    return last


def split(
    data: Data,
    output: str | os.PathLike[str],
    *,
    parts: Mapping[str, float] = PARTS,
    key: str | None = None,
    fields: tuple[str, ...] = (),
    seed: int = 0,
) -> Split:
    """Write each part of the rows to a file in the folder `output`, and a manifest.

    A row's part is decided by its text (`fields`, or the known one), or by the field `key`: rows of one customer stay
    together. So rows with the same text are never in two parts, and rows that come later move none. Parts are as large
    as their shares only on average.
    """
    shares = checked_parts(parts)
    folder = Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("data", f"{folder} is not empty", field="output", advice="name a new folder")
    found = read_set(data, fields if key is None else (key,))
    chosen: dict[str, list[Row]] = {name: [] for name in shares}
    for row, text in zip(found.rows, found.texts):
        chosen[part_of(text, shares, seed)].append(row)
    folder.mkdir(parents=True, exist_ok=True)
    written = {name: write_rows(folder / f"{name}.jsonl", rows) for name, rows in chosen.items()}
    options: dict[str, Any] = {"parts": shares, "key": key, "fields": list(fields), "seed": seed}
    write_manifest(folder / MANIFEST, "split", {"data": found.source}, options, written)
    return Split(folder, {name: len(rows) for name, rows in chosen.items()})


def checked_parts(parts: Mapping[str, float]) -> dict[str, float]:
    """The shares of parts; InputError where they are none."""
    for name, share in parts.items():
        if not name or not name.replace("-", "").replace("_", "").isalnum():
            raise InputError("data", "must have names of letters and digits", field="parts", given=name)
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise InputError("data", f"must be above 0 and at most 1 for {name}", field="parts", given=share)
    if not parts or abs(sum(parts.values()) - 1) > 1e-9:
        raise InputError("data", "must have a sum of 1", field="parts", given=dict(parts))
    return dict(parts)
