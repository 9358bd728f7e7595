"""Rates are slopes, figures are medians with their range, and everybody has a turn in every round."""

import pytest

from weft.bench.measure import rounds, slope, summary, take_turns
from weft.errors import InputError


def test_the_slope_leaves_out_what_both_runs_share() -> None:
    set_up, per_token = 0.7, 0.01
    assert slope(32, set_up + 32 * per_token, 256, set_up + 256 * per_token) == pytest.approx(100)


@pytest.mark.parametrize("few, first, many, second", [(32, 1.0, 32, 2.0), (32, 1.0, 16, 2.0), (32, 2.0, 256, 2.0)])
def test_a_slope_without_a_difference_is_an_error(few: int, first: float, many: int, second: float) -> None:
    with pytest.raises(InputError, match="bench"):
        slope(few, first, many, second)


def test_rounds_take_turns_in_the_same_order() -> None:
    assert list(rounds(["weft", "a", "b"], 2)) == [(0, "weft"), (0, "a"), (0, "b"), (1, "weft"), (1, "a"), (1, "b")]


def test_turns_end_up_with_whom_they_belong_to() -> None:
    order: list[str] = []
    numbers = iter(range(100))

    def turn(member: list[str]) -> float:
        order.append(member[0])
        return float(next(numbers))

    members = [["weft"], ["peer"]]
    found = take_turns(members, 3, turn)
    assert order == ["weft", "peer"] * 3
    assert [one.values for one in found] == [(0, 2, 4), (1, 3, 5)]


def test_a_summary_is_the_median_and_the_range() -> None:
    found = summary([5.0, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 5.0)
    assert found.as_json() == {"median": 2.0, "low": 1.0, "high": 5.0, "values": [5.0, 1.0, 2.0]}
    with pytest.raises(InputError, match="nothing was measured"):
        summary([])
