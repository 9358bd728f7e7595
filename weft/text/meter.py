"""What rendering a chat template may take: steps, processor time, the size of one value, and memory.

Every loop, call, filter and operator of a template passes through here (`sandbox.py` sees to that), so no thread and no
signal is needed. Memory is what the values made by a template take while something refers to them.
"""

import sys
import time
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from weft.errors import InputError

SIZE_LIMIT = 4 << 20  # characters of the output, and of any one text on the way
ELEMENT_LIMIT = 1 << 18  # elements of any one list on the way
MEMORY_LIMIT = 48 << 20  # bytes of all values that are alive; a call may take as much again while it works
STEP_LIMIT = 10_000_000
TIME_LIMIT_S = 1.0

_VIEWS = (KeysView, ValuesView, ItemsView)
_DATA = (str, bytes, int, float, type(None), list, tuple, dict, range, Undefined, Namespace, *_VIEWS)
_COUNTED_BYTES = 256  # smaller values are not counted: there is time for so many only
_SWEEP_BYTES = 8 << 20


class _Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self.steps = STEP_LIMIT
        self.ends_s = time.thread_time() + TIME_LIMIT_S
        self.values = self._nobody()  # by id: values alive when last looked at, and their bytes
        self.bytes, self.sweep_at = 0, _SWEEP_BYTES

    @staticmethod
    def _nobody() -> dict[int, tuple[Any, int]]:
        return {0: (object(), 0)}

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise InputError(f"[chat template] rendering was stopped: it takes more than {STEP_LIMIT} steps")
        if time.thread_time() > self.ends_s:
            raise InputError(f"[chat template] rendering was stopped: it takes more than {TIME_LIMIT_S:g} s")

    def keep(self, value: Any) -> None:
        """Count a value that was made; those that nothing refers to any more are dropped from time to time."""
        size = sys.getsizeof(value)
        if isinstance(value, list | tuple | dict):
            size += 64 * len(value)  # what the elements take
        if size < _COUNTED_BYTES or id(value) in self.values:
            return
        self.values[id(value)] = value, size
        self.bytes += size
        if self.bytes > self.sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        counts = [sys.getrefcount(value) for value, _ in self.values.values()]
        alone = counts[0]  # the count of a value that nothing else refers to: it differs between versions of Python
        rows = [row for row, count in zip(self.values.items(), counts) if count > alone]
        self.values = {**self._nobody(), **dict(rows)}
        self.bytes = sum(size for _, size in self.values.values())
        self.sweep_at = self.bytes + _SWEEP_BYTES
        if self.bytes > MEMORY_LIMIT:
            raise InputError(f"[chat template] rendering was stopped: it takes more than {MEMORY_LIMIT >> 20} MiB")


_budget: ContextVar[_Budget] = ContextVar("weft_template_budget")


@contextmanager
def budget() -> Iterator[None]:
    """Limits for the renderings in the block."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def spend(steps: int = 1) -> None:
    """Pay for work; InputError when the budget is used up."""
    found = _budget.get(None)
    if found is not None:
        found.spend(steps)


def kept(value: Any) -> Any:
    """A value that a template made, within the limits on one value and counted."""
    if isinstance(value, str | bytes):
        bound(len(value))
    elif isinstance(value, list | tuple | dict):
        bound_elements(len(value))
    else:
        return value
    found = _budget.get(None)
    if found is not None:
        found.keep(value)
    return value


def bound(size: int) -> None:
    """Refuse a text that is, or would be, longer than one may be."""
    if size > SIZE_LIMIT:
        raise InputError(f"[chat template] a value is too long: over {SIZE_LIMIT} characters")


def bound_elements(count: int) -> None:
    if count > ELEMENT_LIMIT:
        raise InputError(f"[chat template] a value is too long: over {ELEMENT_LIMIT} elements")


def counted(value: Any) -> Any:
    """The same value; an iterator becomes one that pays for each element and stops at as many as a list may have."""
    return _paid(value) if isinstance(value, Iterator) else value


def _paid(elements: Iterator[Any]) -> Iterator[Any]:
    for number, element in enumerate(elements):
        bound_elements(number)
        if number % 64 == 0:
            spend(64)
        yield element


def size_of(value: Any) -> int:
    """How much a value multiplies: a whole number by itself, a collection by its length."""
    if isinstance(value, int):
        return abs(value)
    return len(value) if isinstance(value, str | bytes | list | tuple | dict | range) else 1


def weigh(*values: Any, written: bool = False) -> int:
    """Refuse values that would be too long written out; where they are `written`, also what is no data.

    A list that holds another one twice is small however often that is repeated; written out, or compared with its like,
    it is not. The result is the weight of the heaviest, texts and numbers aside.
    """
    heaviest = 0
    for value in values:
        if not isinstance(value, str | int | float):
            heaviest = max(heaviest, _weight(value, {}, written))
    bound(heaviest)
    return heaviest


def _weight(value: Any, seen: dict[int, tuple[int, Any]], written: bool) -> int:
    """Characters and elements of a value written out, in time that follows what it takes in memory."""
    if isinstance(value, str | bytes):
        return len(value) + 1
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if not isinstance(value, (list, tuple, dict, *_VIEWS)):
        if written and not isinstance(value, _DATA):
            raise SecurityError(f"a {type(value).__name__} has no text")
        return 1
    if id(value) not in seen:
        items = [*value.keys(), *value.values()] if isinstance(value, Mapping) else list(value)
        total = 1 + sum(_weight(item, seen, written) for item in items)
        seen[id(value)] = total, items  # kept alive, or an id could come again
    return seen[id(value)][0]
