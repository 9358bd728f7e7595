"""AdamW, schedules, clipping and the order of lessons, against formulas written out."""

import math

import numpy as np
import pytest

from weft.errors import BackendError, InputError
from weft.train.optimiser import AdamW, Schedule, clip
from weft.train.order import batches, shuffled


@pytest.mark.parametrize(("shape", "decay"), [((5, 10), 0.1), ((50,), 0.0)])  # biases and norms do not decay
def test_adamw_is_its_formula(shape, decay, monkeypatch):
    monkeypatch.setattr("weft.train.optimiser.BLOCK", 16)
    rng = np.random.default_rng(0)
    rule = AdamW(beta1=0.8, beta2=0.95, eps=1e-6, decay=0.1)
    value = rng.standard_normal(shape).astype(np.float32)
    parameters = {"w": value.copy()}
    means = rule.start(parameters)
    exact, first, second = value.astype(np.float64), np.zeros(shape), np.zeros(shape)
    for number in range(1, 31):
        gradient = rng.standard_normal(shape).astype(np.float32)
        rate = 0.01 * number
        rule.step(number, rate, parameters, {"w": gradient}, means)
        first = 0.8 * first + 0.2 * gradient
        second = 0.95 * second + 0.05 * np.square(gradient.astype(np.float64))
        exact *= 1 - rate * decay
        exact -= rate * (first / (1 - 0.8**number)) / (np.sqrt(second / (1 - 0.95**number)) + 1e-6)
    np.testing.assert_allclose(parameters["w"], exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_adamw_rounds_every_operation_by_itself(threads, monkeypatch):
    """The bits of the formula in numpy's float32, whatever the blocks and the threads."""
    monkeypatch.setattr("weft.train.optimiser.BLOCK", 37)
    rng = np.random.default_rng(1)
    value, first, second, change = (rng.standard_normal((30, 35)).astype(np.float32) for _ in range(4))
    second = np.square(second)
    rule, number, rate = AdamW(decay=0.01), 7, 2e-3
    parameters, means = {"w": value.copy()}, ({"w": first.copy()}, {"w": second.copy()})
    rule.step(number, rate, parameters, {"w": change}, means, threads)

    first = first * np.float32(0.9) + np.float32(1.0 - 0.9) * change
    second = second * np.float32(0.999) + np.float32(1.0 - 0.999) * change * change
    root = np.sqrt(second) / np.float32(math.sqrt(1.0 - 0.999**number)) + np.float32(1e-8)
    value = value * np.float32(1.0 - rate * 0.01) - np.float32(rate / (1.0 - 0.9**number)) * (first / root)
    for found, wanted in ((parameters, value), (means[0], first), (means[1], second)):
        np.testing.assert_array_equal(found["w"], wanted)


def test_norms_do_not_depend_on_threads():
    gradient = {"a": np.random.default_rng(2).standard_normal(1 << 20).astype(np.float32)}
    wanted = math.sqrt(np.sum(np.square(gradient["a"], dtype=np.float64)))
    assert clip(gradient, 0, 1) == clip(gradient, 0, 3) == pytest.approx(wanted, rel=1e-14)


def test_schedules_rise_and_fall():
    cosine = Schedule(2.0, 110, "cosine", 10)
    assert [cosine.at(step) for step in (0, 5, 10, 60, 110)] == pytest.approx([0, 1.0, 2.0, 1.0, 0.0])
    linear = Schedule(2.0, 110, "linear", 10)
    assert [linear.at(step) for step in (0, 10, 35, 110)] == pytest.approx([0, 2.0, 1.5, 0.0])
    assert {Schedule(2.0, 9, "constant").at(step) for step in range(9)} == {2.0}


@pytest.mark.parametrize(
    "options, what",
    [
        ({"kind": "sine"}, "schedule must be one of constant, linear, cosine"),
        ({"rate": 0.0}, "rate must be above zero"),
        ({"rate": math.nan}, "rate must be above zero"),
        ({"warmup": 11}, "warmup must be 0 to 10 steps"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(options, what):
    with pytest.raises(InputError, match=what):
        Schedule(**{"rate": 1.0, "steps": 10, **options})


def test_clipping_keeps_the_direction():
    gradient = {"a": np.full(4, 3.0, np.float32), "b": np.full(4, 4.0, np.float32)}
    assert clip(gradient, 0) == clip({name: value.copy() for name, value in gradient.items()}, 20.0) == 10.0
    assert clip(gradient, 1.0) == 10.0
    np.testing.assert_allclose(gradient["a"], 0.3, rtol=1e-5)
    np.testing.assert_allclose(gradient["b"], 0.4, rtol=1e-5)
    with pytest.raises(BackendError, match="the gradient is not finite"):
        clip({"a": np.array([np.inf], np.float32)}, 1.0)


def test_the_order_is_a_function_of_seed_and_epoch():
    assert shuffled(8, 7, 1) == [7, 0, 6, 1, 4, 5, 3, 2]  # on every machine
    orders = {tuple(shuffled(20, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9 and all(sorted(order) == list(range(20)) for order in orders)


def test_batches_hold_what_fits():
    lengths = [5, 4, 9, 30, 1, 1]
    assert list(batches(lengths, range(6), 10)) == [[0, 1], [2], [3], [4, 5]]
    assert list(batches(lengths, [3, 0, 5, 4], 10)) == [[3], [0, 5, 4]]
    assert list(batches(lengths, [0, 1, 4], 6)) == [[0], [1, 4]]
    assert [sorted(n for batch in batches(lengths, shuffled(6, 1, e), 12) for n in batch) for e in range(3)] == [
        list(range(6))
    ] * 3
    with pytest.raises(InputError, match="batch_tokens must be at least 1"):
        list(batches(lengths, range(6), 0))


def test_threads_change_no_bit():
    shapes = {"table": (900, 700), "norm": (700,), "matrix": (650, 300)}

    def run(threads: int) -> list[bytes]:
        draw = np.random.default_rng(5)
        rule = AdamW(decay=0.01)
        parameters = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        means, norms = rule.start(parameters), []
        for number in range(1, 4):
            gradient = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            norms.append(clip(gradient, 1.0, threads))
            rule.step(number, 1e-3, parameters, gradient, means, threads)
        return [np.float64(norms).tobytes(), *(value.tobytes() for value in parameters.values())]

    alone = run(1)
    assert all(run(threads) == alone for threads in (2, 3, 16))
