"""A shadow run passes only when all samples are in and every limit is kept; a failed candidate is not promoted."""

from __future__ import annotations

import math

import pytest

from weft.errors import InputError, InvalidTransitionError, NotFoundError
from weft.registry.shadow import ShadowCounts, ShadowLimits, add, verdict

LIMITS = ShadowLimits(samples=10, max_errors=1)
GOOD = ShadowCounts(samples=10, agreement=10.0, difference=0.1, baseline_ms=100.0, candidate_ms=110.0)
BAD = {
    "one NaN": ShadowCounts(samples=1, errors=1, not_finite=1),
    "errors before the end": ShadowCounts(samples=2, errors=2),
    "errors": ShadowCounts(samples=10, errors=2, agreement=8.0),
    "agreement": ShadowCounts(samples=10, agreement=9.4),
    "difference": ShadowCounts(samples=10, agreement=10.0, difference=1.1),
    "time": ShadowCounts(samples=10, agreement=10.0, baseline_ms=100.0, candidate_ms=601.0),
    "a NaN among the sums": ShadowCounts(samples=10, agreement=10.0, difference=math.nan),
    "a NaN of agreement": ShadowCounts(samples=10, agreement=math.nan),
    "a NaN of time": ShadowCounts(samples=10, agreement=10.0, candidate_ms=math.nan),
}


@pytest.mark.parametrize("counts", BAD.values(), ids=BAD)
def test_a_broken_candidate_never_passes(counts):
    decided, reason = verdict(LIMITS, counts)
    assert decided == "failed" and reason


def test_a_good_candidate_passes_and_not_before_the_end():
    assert verdict(LIMITS, GOOD)[0] == "passed"
    assert verdict(LIMITS, ShadowCounts(samples=9, agreement=9.0)) == ("running", "9 of 10 samples")
    assert verdict(LIMITS, ShadowCounts(samples=10, errors=1, agreement=9.0))[0] == "passed"
    assert verdict(ShadowLimits(samples=1, max_errors=1), ShadowCounts(samples=1, errors=1))[0] == "failed"


@pytest.fixture
def pair(registry, files):
    for i in range(2):
        registry.add("it", files(str(i)), f"1.{i}.0")
    registry.promote("it@1.0.0", force=True)
    return registry


def test_counts_of_servers_are_added_and_a_pass_validates(pair):
    run = pair.start_shadow("it@1.1.0", samples=4)
    half = ShadowCounts(samples=2, agreement=2.0, largest_difference=0.25, skipped=1)
    assert add(pair.database, run.id, half).verdict == "running"
    done = add(pair.database, run.id, half)
    assert (done.verdict, done.counts.samples, done.counts.skipped, done.counts.largest_difference) == (
        "passed", 4, 2, 0.25)  # fmt: skip
    assert add(pair.database, run.id, half) is None  # it has ended
    assert pair.get("it@1.1.0").state == "validated" and pair.promote("it@1.1.0").previous == "1.0.0"


def test_a_failed_candidate_is_not_promoted_without_force(pair):
    pair.evaluate("it@1.1.0", {"m": 1.0})
    run = pair.start_shadow("it@1.1.0")
    assert add(pair.database, run.id, ShadowCounts(samples=1, errors=1, not_finite=1)).verdict == "failed"
    with pytest.raises(InvalidTransitionError, match="failed shadow: 1 of 1 samples"):
        pair.promote("it@1.1.0")
    assert pair.get("it").version == "1.0.0"
    assert pair.promote("it@1.1.0", force=True).changed


def test_runs_that_are_stopped_or_lose_their_baseline_have_not_passed(pair, files):
    with pytest.raises(NotFoundError, match="no shadow run"):
        pair.stop_shadow("it")
    assert pair.shadow("it") is None
    run = pair.start_shadow("it@1.1.0", samples=2)
    with pytest.raises(InvalidTransitionError, match="under way"):
        pair.start_shadow("it@1.1.0")
    assert pair.stop_shadow("it").verdict == "stopped"
    pair.start_shadow("it@1.1.0", samples=2)
    pair.add("it", files("2"), "1.2.0", evaluations={"m": 1})
    pair.promote("it@1.2.0")
    assert pair.shadow("it").verdict == "stopped" and "moved" in pair.shadow("it").reason
    with pytest.raises(InvalidTransitionError, match="no evaluation"):
        pair.promote("it@1.1.0")
    with pytest.raises(InvalidTransitionError, match="already"):
        pair.start_shadow("it@1.2.0")
    assert run.id < pair.shadow("it").id


@pytest.mark.parametrize(
    "limits", [{"share": 0.0}, {"share": 2}, {"samples": 0}, {"samples": 1.5}, {"max_errors": -1}, {"more": 1}]
)
def test_limits_are_checked(limits, pair):
    with pytest.raises(InputError, match=next(iter(limits))):
        pair.start_shadow("it@1.1.0", **limits)
