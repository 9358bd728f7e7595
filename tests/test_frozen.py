"""A frozen class is what dataclass(frozen=True) makes of the same lines."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from weft.frozen import frozen


@frozen
class Place:
    """Where."""

    line: int
    column: int = 0
    notes: list[str] = field(default_factory=list)
    secret: str = field(default="", repr=False)
    seen: int = field(default=0, compare=False)


@frozen
class Named(Place):
    """One that checks itself."""

    name: str = "x"

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("no name")


@frozen(eq=False)
class Thing:
    """Equal to itself only, and shows itself in its own way."""

    size: int

    def __repr__(self) -> str:
        return f"a thing of {self.size}"


@dataclass(frozen=True)
class Model:
    line: int
    column: int = 0
    notes: list[str] = field(default_factory=list)
    secret: str = field(default="", repr=False)
    seen: int = field(default=0, compare=False)


def test_it_shows_compares_and_copies_itself_as_a_dataclass_does() -> None:
    one, other = Place(3, secret="s"), Model(3, secret="s")
    assert repr(one) == repr(other).replace("Model", "Place") == "Place(line=3, column=0, notes=[], seen=0)"
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert one == Place(3, secret="s", seen=9) and one != Place(3) and one != other
    assert one.notes is not Place(3).notes, "made anew for each"
    assert dataclasses.replace(one, line=4) == Place(4, 0, [], "s")
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    parameters = [(p.name, p.annotation, p.kind) for p in inspect.signature(Place).parameters.values()]
    assert parameters == [(p.name, p.annotation, p.kind) for p in inspect.signature(Model).parameters.values()]


def test_what_can_be_hashed_is() -> None:
    assert len({Named(1, 2, (), "", 0, "a"), Named(1, 2, (), "", 5, "a"), Named(1, 2, (), "", 0, "b")}) == 2  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unhashable"):
        hash(Place(1))


def test_nothing_is_set_or_deleted() -> None:
    one: Any = Place(1)
    for act in (lambda: setattr(one, "line", 2), lambda: setattr(one, "new", 2), lambda: delattr(one, "line")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            act()
    assert one.line == 1


def test_a_class_may_check_itself_and_have_more_fields_than_its_base() -> None:
    assert Named(1, name="a").name == "a" and [f.name for f in dataclasses.fields(Named)][-2:] == ["seen", "name"]
    with pytest.raises(ValueError, match="no name"):
        Named(1, name="")


@pytest.mark.parametrize("given", [(), (1, 2, [], "", 0, 7)])
def test_wrong_arguments_are_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"Place.__init__\(\)"):
        Place(*given)


def test_without_eq_an_object_is_equal_to_itself_only() -> None:
    one = Thing(1)
    assert one == one and one != Thing(1) and len({one, Thing(1)}) == 2
    assert repr(one) == "a thing of 1"
