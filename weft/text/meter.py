"""Limits on rendering a chat template: steps, processor time, the size of one value, and memory.

`sandbox.py` makes every loop, call, filter and operator of a template call this module, so no thread and no signal is
needed. Memory counts the values that a template made and that something still refers to.
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

SIZE_LIMIT = 4 << 20  # characters of the output, and of any intermediate text
ELEMENT_LIMIT = 1 << 18  # elements of any intermediate list
MEMORY_LIMIT = 48 << 20  # bytes of all values that are alive; a call may use as much again while it runs
STEP_LIMIT = 10_000_000
TIME_LIMIT_S = 1.0

_VIEWS = (KeysView, ValuesView, ItemsView)
_DATA = (str, bytes, int, float, type(None), list, tuple, dict, range, Undefined, Namespace, *_VIEWS)
_COUNTED_BYTES = 256  # smaller values are not counted: the time limit bounds their number
_SWEEP_BYTES = 8 << 20


class _Budget:
    """What is left of the limits of one rendering."""

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
            raise InputError("chat template", f"rendering was stopped: it takes more than {STEP_LIMIT} steps")
        if time.thread_time() > self.ends_s:
            raise InputError("chat template", f"rendering was stopped: it takes more than {TIME_LIMIT_S:g} s")

    def keep(self, value: Any) -> None:
        """Count a new value; values that nothing refers to any more are dropped from time to time."""
        size = sys.getsizeof(value)
        if isinstance(value, list | tuple | dict):
            size += 64 * len(value)  # an estimate for the elements
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
            raise InputError("chat template", f"rendering was stopped: it takes more than {MEMORY_LIMIT >> 20} MiB")


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
    """Count `steps` of work; InputError if the limits are exceeded."""
    found = _budget.get(None)
    if found is not None:
        found.spend(steps)


def kept(value: Any) -> Any:
    """The same value, which a template made, after checking its size and counting its memory."""
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
    """Raise InputError if a text has, or would have, more than SIZE_LIMIT characters."""
    if size > SIZE_LIMIT:
        raise InputError("chat template", f"a value is too long: over {SIZE_LIMIT} characters")


def bound_elements(count: int) -> None:
    if count > ELEMENT_LIMIT:
        raise InputError("chat template", f"a value is too long: over {ELEMENT_LIMIT} elements")


def counted(value: Any) -> Any:
    """The same value; an iterator becomes one that counts a step per element and stops at ELEMENT_LIMIT."""
    return _paid(value) if isinstance(value, Iterator) else value


def _paid(elements: Iterator[Any]) -> Iterator[Any]:
    for number, element in enumerate(elements):
        bound_elements(number)
        if number % 64 == 0:
            spend(64)
        yield element


def size_of(value: Any) -> int:
    """The factor of a value in a product: an integer's own value, a collection's length."""
    if isinstance(value, int):
        return abs(value)
    return len(value) if isinstance(value, str | bytes | list | tuple | dict | range) else 1


def weigh(*values: Any, written: bool = False) -> int:
    """The length of the longest value written out, texts and numbers excepted; InputError if it is too long.

    A list that holds another one twice, and so on, is small in memory but huge when written out or compared. If the
    values are to be `written`, objects that are not data are refused too.
    """
    heaviest = 0
    for value in values:
        if not isinstance(value, str | int | float):
            heaviest = max(heaviest, _weight(value, {}, written))
    bound(heaviest)
    return heaviest


def _weight(value: Any, seen: dict[int, tuple[int, Any]], written: bool) -> int:
    """Characters and elements of a value written out; takes time in proportion to its memory, not to the result."""
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
        seen[id(value)] = total, items  # kept alive, so that no id is reused
    return seen[id(value)][0]
