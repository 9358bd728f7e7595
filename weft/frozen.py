"""Frozen dataclasses that are created in a quarter of the time: weft creates some thirty before its first token.

dataclass compiles six functions for every class. Here it compiles one, and all classes share the others. The result is
a dataclass: fields, replace and asdict work with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**options: Any) -> Callable[[Any], Any]:
        return lambda decorator: decorator


T = TypeVar("T")


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, eq: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, eq: bool = True) -> Any:
    """Like `dataclass(frozen=True)`. With `eq` False an object equals only itself."""
    return _made(cls, eq) if cls is not None else lambda given: _made(given, eq)


def _made(cls: Any, eq: bool) -> Any:
    dataclass(repr=False, eq=False)(cls)
    methods: dict[str, Any] = {"__repr__": _repr, "__setattr__": _set, "__delattr__": _delete}
    if eq:
        methods.update(__eq__=_equal, __hash__=_hash)
    for name in methods.keys() - cls.__dict__.keys():  # a class may define its own
        setattr(cls, name, methods[name])
    return cls


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name, one in self.__dataclass_fields__.items() if one.compare])


def _equal(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _repr(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name, one in self.__dataclass_fields__.items() if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _set(self: Any, name: str, value: object) -> None:
    """Set a field for the first time, as __init__ does."""
    own = self.__dict__
    if name in own or name not in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    own[name] = value


def _delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
