"""Drift: verdicts that chance does not give, a detector with the wanted rate of false alarms, maps between models."""

import math

import numpy as np
import pytest
from soaking import times

from weft.errors import FormatError, InputError, ShapeError
from weft.transport import drift
from weft.transport.drift.gauges import gauges_text
from weft.transport.drift.page import page
from weft.transport.drift.watching import BET, alarm_height

RNG = np.random.default_rng(11)
X = RNG.standard_normal((90, 12)).astype("f")
QUICK = {"permutations": 99, "sample": 40, "threads": 1}


def test_halves_of_one_set_do_not_drift_and_shifted_ones_do() -> None:
    same = drift.compare(X[:45], X[45:], **QUICK)
    moved = drift.compare(X[:45], X[45:] + 1.0, **QUICK)
    assert not same.drifted and same.verdict.p > 0.01
    assert moved.drifted and moved.verdict.p == 0.01 and moved.verdict.effect > 5
    assert moved.distance > same.distance and moved.converged
    assert len(moved.items) == 45 and moved.summary["max"] >= moved.summary["mean"]


@pytest.mark.soak
def test_p_values_are_uniform_where_nothing_changed() -> None:
    found = []
    for seed in range(times(300, 20)):
        rng = np.random.default_rng(seed)
        a, b = rng.standard_normal((2, 16, 6))
        found.append(drift.compare(a, b, permutations=19, level=0.05, sample=16, threads=1, seed=seed).verdict.p)
    drawn = np.array(found)
    assert abs(drawn.mean() - 0.525) < 4 * math.sqrt(1 / 12 / len(drawn))
    assert (drawn <= 0.05).mean() < 0.05 + 4 * math.sqrt(0.05 * 0.95 / len(drawn))


def test_pairs() -> None:
    turned = X.copy()
    turned[7] += 3
    same = drift.compare(X, X, paired=True, **QUICK)
    assert same.verdict.p == 1 and not same.drifted and same.summary["max"] == 0
    other = drift.compare(X, turned, paired=True, ids=([f"t{i}" for i in range(90)],) * 2, **QUICK)
    assert other.worst(1)[0].id == "t7" and other.worst(1)[0].outlier and not other.drifted
    assert other.worst(1)[0].distance == pytest.approx(3 * math.sqrt(12), rel=1e-5)
    shifted = drift.compare(X, X + 0.4, paired=True, **QUICK)
    assert shifted.drifted


def test_a_page_holds_everything_and_escapes_it() -> None:
    found = drift.compare(
        X[:45], X[45:] + 1, ids=([f"<{i}>" for i in range(45)], [f"b{i}" for i in range(45)]), **QUICK
    )
    html = page(found, ("a<b", "c"))
    assert html.count("<circle") == 90 and html.count("<svg") == 3
    assert "a&lt;b" in html and "<0>" not in html and "http" not in html
    assert "Drift: of 99 random relabellings 0" in html


def test_evidence_reaches_its_height_as_often_as_wanted() -> None:
    """The height is that of a simulation: another one, with other numbers, must agree."""
    height, rng, streams, highest = alarm_height(0.05, 50), np.random.default_rng(3), 4000, 0.0
    evidence, highest = np.zeros(streams), np.zeros(streams)
    for _ in range(50):
        evidence = np.maximum(evidence, 0) + math.log(BET) + (BET - 1) * np.log(rng.random(streams))
        highest = np.maximum(highest, evidence)
    assert abs((highest >= height).mean() - 0.05) < 0.015
    assert alarm_height(0.01, 50) > height and alarm_height(0.05, 200) > height


def stream(seed: int, shift: float, count: int, d: int = 16) -> list[drift.Signal]:
    rng = np.random.default_rng(seed)
    options = {"horizon": 40, "permutations": 39, "measure": False, "false_alarms": 0.05}
    detector = drift.Detector(rng.standard_normal((128, d)).astype("f"), seed=seed, **options)
    return detector.observe_all(rng.standard_normal((count, d)).astype("f") + shift)


@pytest.mark.soak
def test_false_alarms_are_as_rare_as_wanted() -> None:
    streams = times(1000, 10)
    alarms = sum(any(s.state == "drift" for s in stream(seed, 0.0, 640)) for seed in range(streams))
    expected, spread = 0.05 * streams, math.sqrt(0.05 * 0.95 * streams)
    assert alarms <= expected + 4 * spread
    assert streams < 200 or alarms >= expected - 4 * spread


def test_a_shift_is_found() -> None:
    delays = []
    for seed in range(3):
        signals = stream(seed, 0.5, 400)
        delays.append(next((s.seen for s in signals if s.state == "drift"), None))
    assert all(delay is not None and delay <= 200 for delay in delays), delays


def test_the_founding_signals() -> None:
    detector = drift.Detector(horizon=20, permutations=19, threads=1)
    rng = np.random.default_rng(0)
    signals = detector.observe_all(rng.standard_normal((128 + 128, 4)).astype("f"))
    assert signals[0] == drift.Signal("warming", 1, 127) and signals[126].wait == 1
    assert signals[127].state == "skipped" and signals[127].wait == 16
    assert signals[143].state in ("stable", "drift") and signals[144].state == "skipped" and signals[144].wait == 15
    assert signals[143].divergence is None and signals[-1].divergence == detector.last_divergence
    assert detector.last_divergence is not None and detector.last_divergence >= 0
    text = gauges_text(signals[-1], detector)
    assert "weft_drift_vectors_seen 256\n" in text and "weft_drift_divergence" in text
    detector.reset_reference()
    assert detector.last_divergence is None and detector.observe(np.ones(4)).state == "warming"
    assert drift.Detector(window=5).window == 128


def rotated(n: int = 120, d: int = 10, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    old = rng.standard_normal((n, d)) * np.linspace(2, 0.3, d)
    old /= np.linalg.norm(old, axis=1, keepdims=True)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return old, old @ turn + noise * rng.standard_normal((n, d)), turn


@pytest.mark.parametrize("method", ["procrustes", "linear"])
def test_alignment_finds_a_rotation(method: str) -> None:
    old, new, turn = rotated()
    found = drift.align(old, new, method=method)
    assert found.recall > 0.85 and found.held_out == 24 and found.rows == 120
    assert np.abs(found(old) - (old @ turn)).max() < 0.1
    assert np.linalg.norm(found(old), axis=1) == pytest.approx(1, abs=1e-6)
    unrelated = drift.align(old, np.random.default_rng(9).standard_normal(new.shape), method=method)
    assert unrelated.recall < 0.3


def test_alignment_without_pairs() -> None:
    old, _, _ = rotated()
    angle = 0.3
    turn = np.eye(10)
    turn[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    new = (old @ turn)[np.random.default_rng(4).permutation(120)]
    found = drift.align(old, new, method="transport", paired=False, threads=1)
    before, after = np.abs(old - old @ turn).max(), np.abs(found(old) - old @ turn).max()
    assert after < before / 2


def test_alignments_are_kept(tmp_path: object) -> None:
    old, new, _ = rotated()
    found = drift.align(old, new[:, :7])
    path = f"{tmp_path}/map.npz"
    found.save(path)
    again = drift.Alignment.load(path)
    assert np.array_equal(again(old), found(old)) and again.recall == found.recall and again(old).shape == (120, 7)
    np.savez(path, matrix=new)
    with pytest.raises(FormatError, match="weft drift align"):
        drift.Alignment.load(path)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: drift.compare(X, X[:, :3]), ShapeError, "weft drift align"),
        (lambda: drift.compare(X, X[:9], paired=True), ShapeError, "as many rows"),
        (lambda: drift.compare(X[:1], X), InputError, "at least two"),
        (lambda: drift.compare(X, X, permutations=19), InputError, "at least 99"),
        (lambda: drift.compare(X, X, level=2), InputError, "between 0 and 1"),
        (lambda: drift.Detector(X), InputError, "at least 128"),
        (lambda: drift.Detector(false_alarms=0), InputError, "between 0 and 1"),
        (lambda: drift.Detector().observe([[1.0]]), ShapeError, "vector"),
        (lambda: drift.Detector().observe([math.nan]), InputError, "finite"),
        (lambda: drift.align(X, X[:5]), ShapeError, "one row per item"),
        (lambda: drift.align(X, X, method="magic"), InputError, "procrustes"),
    ],
)
def test_what_drift_refuses(call: object, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        call()
