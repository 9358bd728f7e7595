"""Roofs are positive numbers for every unit that the level has, and an error for one that it has not."""

from itertools import pairwise

import pytest

from weft import _core
from weft.bench.roofs import Roofs, standard
from weft.errors import InputError, NotFoundError


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.bench.roofs.SECONDS", 0.001)
    monkeypatch.setattr("weft.bench.roofs.REPEATS", 2)
    monkeypatch.setattr("weft.bench.roofs.MOST_BYTES", 4 << 20)


@pytest.mark.parametrize("level", _core.levels_present())
@pytest.mark.parametrize("threads", [1, 2])
def test_every_unit_of_a_level_has_a_roof(level: str, threads: int) -> None:
    rows = standard(Roofs(threads, level))
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in rows)
    assert [row["name"] for row in rows[:3]] == ["read 4 MB", "read 64 MB", f"read {threads} MB"]


def test_a_level_has_the_units_of_those_below_it() -> None:
    names = [Roofs(1, level).names for level in _core.levels_present()]
    assert names[0] == ["read"]
    assert all(set(lower) <= set(higher) for lower, higher in pairwise(names))


def test_a_unit_that_the_level_lacks_has_no_roof() -> None:
    plain = Roofs(1, "scalar")
    assert plain.unit("amx_int8") is None and plain.best("amx_int8", "int8") is None
    with pytest.raises(NotFoundError, match="no unit 'amx_int8'"):
        _core.bench.measure_roof("amx_int8", "scalar", _core.Pool(1), 0, 0.001, 1)


@pytest.mark.parametrize("given", [(1 << 40, 0.01, 1), (0, 0.0, 1), (0, float("nan"), 1), (0, 0.01, 0)])
def test_sizes_and_times_have_limits(given: tuple[int, float, int]) -> None:
    with pytest.raises(InputError, match="roofs"):
        _core.bench.measure_roof("read", "scalar", _core.Pool(1), *given)


def test_measuring_again_adds_to_what_was_seen() -> None:
    roofs = Roofs(1)
    first = roofs.read(1 << 20)
    roofs.again()
    assert len(roofs.read(1 << 20).values) == 2 * len(first.values)
    assert list(roofs.as_json()) == ["read 1 MB"]
