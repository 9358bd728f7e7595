"""Measurements on noisy machines: medians with their range, slopes, and rounds in which every runner has a turn."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from weft.errors import InputError
from weft.frozen import frozen

T = TypeVar("T")


@frozen
class Summary:
    """The median of `values`, and the lowest and the highest of them."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("bench", "nothing was measured", advice="give at least one round")

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def as_json(self) -> dict[str, Any]:
        return {"median": rounded(self.median), "low": rounded(self.low), "high": rounded(self.high),
                "values": [rounded(value) for value in self.values]}  # fmt: skip


def summary(values: Iterable[float]) -> Summary:
    return Summary(tuple(values))


def rounded(value: float) -> float:
    """Five significant digits: more is noise."""
    return float(f"{value:.5g}")


def slope(few: int, seconds_few: float, many: int, seconds_many: float) -> float:
    """Tokens per second between two lengths, (N2 - N1) / (T(N2) - T(N1)): prompt and set-up cancel out.

    If the machine stalled during the shorter run, the difference may be zero or negative: that is an error.
    """
    if many <= few:
        raise InputError("bench", "must be two lengths, the second longer", given=(few, many), field="--tokens")
    if seconds_many <= seconds_few:
        raise InputError(
            "bench",
            f"{many} tokens took {seconds_many:.4f} s and {few} tokens {seconds_few:.4f} s: the machine is too busy, "
            "or the model too small for these lengths",
            advice="give larger --tokens",
        )
    return (many - few) / (seconds_many - seconds_few)


def rounds(members: Sequence[T], count: int) -> Iterator[tuple[int, T]]:
    """Every member once per round: a, b, c, a, b, c, … so that a disturbance of the machine affects all alike."""
    for number in range(count):
        for member in members:
            yield number, member


def take_turns(
    members: Sequence[T], count: int, turn: Callable[[T], float], before: Callable[[int, T], None] | None = None
) -> list[Summary]:
    """The results of `turn` for each member in `count` rounds, in the order of `members`."""
    found: list[list[float]] = [[] for _ in members]
    places = {id(member): at for at, member in enumerate(members)}
    for number, member in rounds(members, count):
        if before is not None:
            before(number, member)
        found[places[id(member)]].append(turn(member))
    return [summary(values) for values in found]
