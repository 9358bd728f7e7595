"""The head is scikit-learn's logistic regression; its probabilities can be trusted; rows decide, not their order."""

from pathlib import Path

import numpy as np
import pytest

from weft.classify.measures import calibration_error, measured, threshold_for
from weft.errors import InputError
from weft.tiny.calibration import choose_c, fit_temperature
from weft.tiny.logistic import Head, fit_head, log_softmax

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "classify" / "head.npz"


@pytest.mark.parametrize("case", ["three", "two", "many", "few"])
def test_the_head_is_that_of_scikit_learn(case):
    with np.load(GOLDEN) as golden:
        x, y, c = golden[f"{case}_x"], golden[f"{case}_y"], float(golden[f"{case}_c"])
        coef, intercept, log_p = golden[f"{case}_coef"], golden[f"{case}_intercept"], golden[f"{case}_log_p"]
    head = fit_head(x, y, int(y.max()) + 1, c=c)
    weight, bias = head.weight.astype(np.float64), head.bias.astype(np.float64)
    if case == "two":  # one vector there, two opposite ones here
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    else:
        intercept = intercept - intercept.mean()
        bias = bias - bias.mean()
    assert np.abs(weight - coef).max() <= 2e-5 * np.abs(coef).max()
    assert np.abs(bias - intercept).max() <= 2e-5 * max(1.0, np.abs(intercept).max())
    assert np.abs(log_softmax(head.logits(x)) - log_p).max() <= 1e-4


def clusters(seed: int, labels: int, each: int, size: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of length 1 around a centre for each label, all of them near one direction, as those of texts are."""
    rng = np.random.default_rng(seed)
    y = np.arange(labels * each) % labels
    x = 0.5 * rng.normal(size=(labels, size))[y] + spread * rng.normal(size=(len(y), size)) + rng.normal(size=size)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), y


@pytest.mark.parametrize("size, c", [(24, 1e-3), (24, 10.0), (24, 1e5), (300, 0.1), (300, 30.0)])
def test_the_gradient_at_the_head_is_zero(size, c):
    """Also for more dimensions than rows, which are turned to as many axes as there are rows, and for a large c."""
    x, y = clusters(3, 9, 12, size, 0.4)
    head = fit_head(x, y, 9, c=c)
    weight, wide = head.weight.astype(np.float64), x.astype(np.float64)
    missed = np.exp(log_softmax(head.logits(x))) - np.eye(9)[y]
    steepest = c * np.abs(np.eye(9)[y].T @ wide - wide.sum(axis=0) / 9).max()
    assert np.abs(c * missed.T @ wide + weight).max() <= 2e-5 * max(steepest, np.abs(weight).max())
    assert np.abs(c * missed.sum(axis=0)).max() <= 2e-5 * max(steepest, np.abs(weight).max())


def test_c_is_chosen_by_rows_that_were_not_learnt():
    """Strong where labels are clear, weak where they are noise: near the best one of texts not seen at all."""
    found = {}
    for name, spread, flipped in (("clear", 0.2, 0.0), ("noisy", 0.6, 0.5)):
        x, y = clusters(5, 6, 110, 16, spread)
        rng = np.random.default_rng(6)
        y = np.where(rng.random(len(y)) < flipped, rng.integers(0, 6, len(y)), y)
        texts = [f"text {n}" for n in range(120)]
        found[name] = choose_c(texts, x[:120], y[:120], 6)
        losses = {}
        for c in (0.03, 0.3, 3.0, 30.0, 300.0, found[name]):
            logits = fit_head(x[:120], y[:120], 6, c=c).logits(x[120:])
            logs = log_softmax(logits / fit_temperature(logits, y[120:]))
            losses[c] = -logs[np.arange(540), y[120:]].mean()
        assert losses[found[name]] <= 1.05 * min(losses.values()) + 0.002, losses
        assert found[name] == choose_c(texts[::-1], x[:120][::-1], y[:120][::-1], 6)
    assert found["clear"] > found["noisy"]


def test_a_head_has_the_same_bits_every_time_and_a_text_whatever_is_beside_it():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 16)).astype(np.float32), np.arange(90) % 5
    one, two = fit_head(x, y, 5), fit_head(x.copy(), y.copy(), 5)
    assert one.weight.tobytes() == two.weight.tobytes() and one.bias.tobytes() == two.bias.tobytes()
    whole = one.logits(x)
    assert all(whole[i].tobytes() == one.logits(x[i : i + 1])[0].tobytes() for i in range(90))


def test_probabilities_count_as_so_many_copies_of_each_label():
    rng = np.random.default_rng(1)
    x, quarters = rng.normal(size=(30, 6)), rng.multinomial(4, [0.5, 0.3, 0.2], size=30)
    soft = fit_head(x, quarters / 4, 3, c=2.0)
    copies = np.concatenate([np.repeat(np.arange(3), row) for row in quarters])
    hard = fit_head(np.repeat(x, 4, axis=0), copies, 3, c=0.5)
    assert np.abs(soft.weight - hard.weight).max() <= 1e-5 and np.abs(soft.bias - hard.bias).max() <= 1e-5
    for wrong in (quarters / 5, quarters * -1.0, np.full((30, 3), np.nan)):
        with pytest.raises(InputError, match="must be probabilities"):
            fit_head(x, wrong, 3)


def test_separable_data_converges_and_strong_weights_too():
    x = np.eye(6, dtype=np.float32)[np.arange(60) % 6]
    for c in (1e-4, 1.0, 1e4):
        head = fit_head(x, np.arange(60) % 6, 6, c=c)
        assert (head.logits(x).argmax(axis=1) == np.arange(60) % 6).all()


@pytest.mark.parametrize(
    "x, y, count, c, said",
    [
        (np.ones((3, 2)), [0, 1], 2, 1.0, "a label each"),
        (np.ones((2, 2)), [0, 0], 2, 1.0, "each with an example"),
        (np.ones((2, 2)), [0, 0], 1, 1.0, "at least two"),
        (np.full((2, 2), np.nan), [0, 1], 2, 1.0, "finite"),
        (np.ones((2, 2)), [0, 1], 2, 0.0, "c must be"),
    ],
)
def test_what_cannot_be_learnt_is_refused(x, y, count, c, said):
    with pytest.raises(InputError, match=said):
        fit_head(x, y, count, c=c)


def test_the_temperature_is_the_one_that_made_the_labels():
    rng = np.random.default_rng(1)
    logits = 3 * rng.normal(size=(20_000, 4))
    for truth in (0.5, 1.0, 3.0):
        p = np.exp(log_softmax(logits / truth))
        labels = (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1)
        assert fit_temperature(logits, labels) == pytest.approx(truth, rel=0.05)
    sure = np.exp(log_softmax(logits / 3.0)).max(axis=1)
    best = logits.argmax(axis=1)
    assert calibration_error(sure, best == labels) < 0.02  # and probabilities are then the share that is right
    assert calibration_error(np.exp(log_softmax(logits)).max(axis=1), best == labels) > 0.2


def test_the_threshold_is_the_lowest_that_keeps_the_precision():
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4], [0.55, 0.45]])
    labels = np.array([0, 1, 1, 0, 1])
    assert threshold_for(p, labels, 1.0) == 0.8
    assert threshold_for(p, labels, 0.75) == 0.6
    assert threshold_for(p, labels, 0.6) == 0.55
    assert threshold_for(p, 1 - p.argmax(axis=1), 0.5) is None
    found = measured(p, labels, 0.65)
    assert found.accuracy == 0.6 and found.answered == 0.6 and found.answered_accuracy == pytest.approx(2 / 3)
    assert found.confusion == [[2, 0], [2, 1]] and found.confused(["a", "b"]) == [("b", "a", 2)]


def test_logits_of_no_vector():
    assert Head(np.ones((2, 3), np.float32), np.zeros(2, np.float32)).logits(np.empty((0, 3))).shape == (0, 2)
