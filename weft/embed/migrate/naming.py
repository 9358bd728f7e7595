"""The name of a model as a store keeps it: with the options that it was loaded with, so that it can be loaded again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import NotFoundError

if TYPE_CHECKING:
    from weft.embed.service import Embedder

# Options that are kept where they are not these.
DEFAULTS: dict[str, Any] = {"compute": "f32", "truncate": "error", "pooling": None, "dimensions": None}


def named_with(model: str, **given: Any) -> str:
    """A model and its options as they are typed, without those of DEFAULTS.

    A path is kept whole, so that it leads there from another folder, too.
    """
    model = str(Path(model).resolve()) if Path(model).exists() else model
    return model + "".join(f" --{name} {value}" for name, value in given.items() if value != DEFAULTS[name])


def parts_of(named: str) -> tuple[str, dict[str, Any]]:
    """The model and the options of a name."""
    parts = re.fullmatch(rf"(.+?)((?: --(?:{'|'.join(DEFAULTS)}) \w+)*)", named, re.DOTALL)
    if parts is None:
        raise NotFoundError("[migrate] the store does not know its model's name; use Python, or migrate to another")
    found: dict[str, Any] = dict(re.findall(r" --(\w+) (\w+)", parts[2]))
    if "dimensions" in found:
        found["dimensions"] = int(found["dimensions"])
    return parts[1], found


def load_named(named: str, *, threads: int | None = None, truncate: str | None = None) -> Embedder:
    """The embedder of a name, with another truncation where one is given."""
    from weft.embed import Embedder

    model, found = parts_of(named)
    given = {"truncate": truncate} if truncate else {}
    return Embedder(model, threads=threads, **{**DEFAULTS, **found, **given})
