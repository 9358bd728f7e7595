"""`where`: conditions on metadata that choose the rows a search looks at.

    {"language": "en"}                        equal
    {"year": {"gte": 2000, "lt": 2010}}       in a range
    {"tag": {"in": ["a", "b"]}}               one of; also ne, nin
    lambda metadata: ...                      anything else

All conditions must hold. A row without the key, or with a value that does not compare, does not match.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import InputError

Metadata = Mapping[str, Any]
Where = Mapping[str, Any] | Callable[[Metadata], bool]
Test = Callable[[Metadata], bool]

MISSING = object()
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lte": operator.le,
    "gt": operator.gt,
    "gte": operator.ge,
    "in": lambda value, choices: value in choices,
    "nin": lambda value, choices: value not in choices,
}


def compile_where(where: Where) -> Test:
    """A function of one row's metadata; unknown conditions are refused before anything is searched."""
    if callable(where):
        return lambda metadata: bool(where(metadata))
    if not isinstance(where, Mapping):
        raise InputError("index", "must be a dictionary or a function of metadata", given=where, field="where")
    tests = [_condition(key, name, value) for key, wanted in where.items() for name, value in _operators(key, wanted)]
    return lambda metadata: all(test(metadata) for test in tests)


def matching_rows(where: Where, metadata: Sequence[Metadata], alive: np.ndarray | None) -> np.ndarray:
    """The rows that match and are alive, as a mask [n]; `alive` None means all of them are."""
    test = compile_where(where)
    chosen = (test(one) and (alive is None or alive[row]) for row, one in enumerate(metadata))
    return np.fromiter(chosen, bool, len(metadata))


def _operators(key: str, wanted: Any) -> list[tuple[str, Any]]:
    if isinstance(key, str) and key.startswith("$"):
        raise InputError(
            "index",
            f"cannot use {key!r}, an operator of other libraries",
            field="where",
            advice='all conditions must hold; write {"in": [1, 2]} for one of several values, and a function of '
            "metadata for anything else",
        )
    if not isinstance(wanted, Mapping):
        return [("eq", wanted)]
    unknown = [name for name in wanted if name not in COMPARISONS]
    if unknown or not wanted:
        what = f"has an unknown condition for {key!r}" if unknown else f"has an empty condition for {key!r}"
        advice = f"use {', '.join(COMPARISONS)}"
        raise InputError("index", what, given=unknown[0] if unknown else wanted, field="where", advice=advice)
    return list(wanted.items())


def _condition(key: str, name: str, wanted: Any) -> Test:
    compare = COMPARISONS[name]
    if isinstance(wanted, (np.ndarray, np.generic)):
        wanted = wanted.tolist()
        if isinstance(wanted, list) and name not in ("in", "nin"):
            raise InputError(
                "index",
                f"has an array for {key!r}, and {name!r} takes one value",
                field="where",
                advice="write {'in': [...]} for one of several values",
            )
    if name in ("in", "nin"):
        if isinstance(wanted, (str, bytes)) or not hasattr(wanted, "__iter__"):
            raise InputError(
                "index", f"must have a list of values for {name!r} of {key!r}", given=wanted, field="where"
            )
        wanted = list(wanted)

    def holds(metadata: Metadata) -> bool:
        value = metadata.get(key, MISSING)
        if value is MISSING:
            return False
        try:
            return bool(compare(value, wanted))
        except TypeError:  # a text and a number have no order
            return False

    return holds
