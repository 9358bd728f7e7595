"""What callers give an index, checked before anything is embedded or kept: columns of rows, whole numbers, options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import numpy as np

from weft.embed.index.records import Record, make_record
from weft.errors import InputError, ShapeError


def are_many(given: Any) -> TypeGuard[Iterable[Any]]:
    """Whether several things were given, not one text, number or dictionary."""
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))


def records_of(count: int, what: str, ids: Any, metadata: Any, texts: Any) -> list[Record]:
    """A record for each of `count` rows; `what` is the caller's word for them, such as "vectors"."""
    named = {"ids": ids, "metadata": metadata, "texts": texts}
    columns = [_column(items, name, count, what) for name, items in named.items()]
    records = [make_record(*parts) for parts in zip(*columns)]
    seen: set[Any] = set()
    for place, record in enumerate(records):
        if record.id in seen:
            raise InputError("index", "repeats an id of the same call", given=record.id, field="ids", index=place)
        seen.add(record.id)
    return records


def _column(given: Any, name: str, count: int, what: str) -> list[Any]:
    """One value for each of `count` rows; None where nothing of that name was given."""
    if isinstance(given, (set, frozenset)):
        raise InputError("index", "must be a list, since a set has no order", given=given, field=name)
    items = [None] * count if given is None else list(given) if are_many(given) else []
    if len(items) != count:
        found = f"got {len(items)}" if are_many(given) else f"got {type(given).__name__}"
        raise ShapeError("index", f"must be a list of {count}, one for each of the {what}: {found}", field=name)
    return items


def whole(given: Any, name: str, most: int) -> int:
    """A whole number from 1 to `most`."""
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool) and 1 <= given <= most:
        return int(given)
    raise InputError("index", f"must be a whole number from 1 to {most}", given=given, field=name)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse `prompt_name` among the options of `encode`: an index chooses it for documents and queries."""
    if "prompt_name" in options:
        raise InputError(
            "index",
            "cannot be set, since an index uses the model's own prompts for documents and queries",
            given=options["prompt_name"],
            field="prompt_name",
            advice="leave it out, or give the text of a prompt as prompt=",
        )


def check_is_embedder(given: Any) -> None:
    if given is not None and not hasattr(given, "embed"):
        hint = f"weft.Embedder({given!r})" if isinstance(given, str) else "weft.Embedder(…)"
        raise InputError("index", "must be an embedder", given=given, field="embedder", advice=f"give {hint}")
