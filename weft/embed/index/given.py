"""What callers give an index, checked before anything is embedded or kept: columns of rows, whole numbers, options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import numpy as np

from weft.embed.index.records import Record, make_record
from weft.errors import InputError, ShapeError


def are_many(given: Any) -> TypeGuard[Iterable[Any]]:
    """Whether these are several things, and not one text, number or dictionary."""
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))


def records_of(count: int, what: str, ids: Any, metadata: Any, texts: Any) -> list[Record]:
    """A record for each of `count` rows; `what` the caller calls these, as "vectors"."""
    named = {"ids": ids, "metadata": metadata, "texts": texts}
    columns = [_column(items, name, count, what) for name, items in named.items()]
    records = [make_record(*parts) for parts in zip(*columns)]
    if len({record.id for record in records}) != len(records):
        raise InputError("[index] an id comes twice in one call")
    return records


def _column(given: Any, name: str, count: int, what: str) -> list[Any]:
    """One for each of `count` rows; None stands for nothing of that name."""
    if isinstance(given, (set, frozenset)):
        raise InputError(f"[index] {name}: a set, which has no order, for {count} {what}; give a list")
    items = [None] * count if given is None else list(given) if are_many(given) else []
    if len(items) != count:
        raise ShapeError(f"[index] {count} {what} and not a list of as many {name}")
    return items


def whole(given: Any, name: str, most: int) -> int:
    """A whole number from 1 to `most`."""
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool) and 1 <= given <= most:
        return int(given)
    raise InputError(f"[index] {name} is {given!r}; a whole number from 1 to {most} is wanted")


def check_options(options: Mapping[str, Any]) -> None:
    """Options of `encode`, but for the name of the prompt: documents and queries have theirs."""
    if "prompt_name" in options:
        raise InputError(
            f"[index] prompt_name is {options['prompt_name']!r}, and an index names it itself: 'query' for searches, "
            "the model's word for documents otherwise; leave it out, or give the text itself as prompt="
        )


def check_is_embedder(given: Any) -> None:
    if given is not None and not hasattr(given, "embed"):
        hint = f"weft.Embedder({given!r})" if isinstance(given, str) else "weft.Embedder(…)"
        raise InputError(f"[index] embedder is {type(given).__name__}; give an embedder, as {hint}")
