"""`where`: which rows a search looks at, said by conditions on their metadata.

    {"language": "en"}                        equal
    {"year": {"gte": 2000, "lt": 2010}}       in a range
    {"tag": {"in": ["a", "b"]}}               one of; also ne, nin
    lambda metadata: ...                      anything else

All conditions must hold. A row without the key, or with a value that does not compare, is not found by that condition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
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
    """A function of one row's metadata; a condition that nobody knows is an error, before anything is searched."""
    if callable(where):
        return lambda metadata: bool(where(metadata))
    if not isinstance(where, Mapping):
        raise InputError(f"[where] is {type(where).__name__}; conditions are a dictionary or a function of metadata")
    tests = [_condition(key, name, value) for key, wanted in where.items() for name, value in _operators(key, wanted)]
    return lambda metadata: all(test(metadata) for test in tests)


def _operators(key: str, wanted: Any) -> list[tuple[str, Any]]:
    if isinstance(key, str) and key.startswith("$"):
        raise InputError(
            f"[where] {key} is an operator of other libraries; all conditions must hold here, one of several values is "
            '{"in": [1, 2]}, and a function of metadata says anything else'
        )
    if not isinstance(wanted, Mapping):
        return [("eq", wanted)]
    unknown = [name for name in wanted if name not in COMPARISONS]
    if unknown or not wanted:
        raise InputError(f"[where] {key}: unknown {unknown or 'empty condition'}; known are {', '.join(COMPARISONS)}")
    return list(wanted.items())


def _condition(key: str, name: str, wanted: Any) -> Test:
    compare = COMPARISONS[name]
    if isinstance(wanted, (np.ndarray, np.generic)):
        wanted = wanted.tolist()
        if isinstance(wanted, list) and name not in ("in", "nin"):
            raise InputError(f"[where] {key}: {name} takes one value, not an array; one of several is {{'in': [...]}}")
    if name in ("in", "nin"):
        if isinstance(wanted, (str, bytes)) or not hasattr(wanted, "__iter__"):
            raise InputError(f"[where] {key}: {name} takes a list of values, not {type(wanted).__name__}")
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
