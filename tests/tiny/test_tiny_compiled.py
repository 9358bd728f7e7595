"""Networks in native code: the definition, one row and many with the same bits, int8, and what is refused."""

import gc
import weakref

import numpy as np
import pytest

from weft.backends.cpu import levels_present
from weft.errors import InputError, ShapeError, UnsupportedError
from weft.tiny import Compiled, Layer, Tiny
from weft.tiny.layers import NAMES, activated, logits

KINDS = tuple(NAMES)
LEVELS = levels_present()


def exact(net, rows):
    """The outputs in float64."""
    found = logits(net.layers, np.asarray(rows, np.float64))
    return activated(found / net.temperature if net.classifies else found, net.layers[-1])


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32)


def network(kind, seed=3):
    """Two inner layers of odd widths with one activation, which is also the last."""
    inner = "gelu" if kind == "softmax" else kind
    return getattr(getattr(getattr(Tiny(53, seed=seed), inner)(37), inner)(21), kind)(5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_native_outputs_are_the_definition_alone_and_among_others(kind, level, monkeypatch):
    monkeypatch.setenv("WEFT_ISA", level)
    net = network(kind)
    net.temperature = 1.7 if kind == "softmax" else 1.0
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((131, 53)).astype(np.float32)
    rows[::2] *= rng.random((66, 53)) < 0.2  # zeros are left out
    rows[3], rows[5] = 0.0, -0.0
    found = net(rows)
    np.testing.assert_allclose(found, exact(net, rows), rtol=2e-5, atol=2e-6)
    for threads in (1, 3):
        made = net.compiled(threads=threads)
        assert np.array_equal(bits(made(rows)), bits(found))
        assert all(np.array_equal(bits(made.row(row)), bits(whole)) for row, whole in zip(rows, found))
        assert np.array_equal(bits(made(rows[40:103])), bits(found[40:103]))
    np.testing.assert_allclose(net.logits(rows), logits(net.layers, rows.astype(np.float64)), rtol=2e-5, atol=2e-5)


def test_int8_stays_within_its_steps_and_takes_a_quarter():
    net = Tiny(784, seed=1).relu(128).relu(64).softmax(10)
    rows = np.random.default_rng(0).random((300, 784)).astype(np.float32)
    plain, coded = net.compiled(), net.compiled(int8=True)
    found, wanted = coded(rows), exact(net, rows)
    assert 0 < np.abs(found - wanted).max() < 0.02
    assert np.mean(found.argmax(1) == wanted.argmax(1)) > 0.97
    assert coded.bytes < 0.26 * plain.bytes
    assert all(np.array_equal(bits(coded.row(row)), bits(whole)) for row, whole in zip(rows[:20], found))
    # one layer by hand: codes of weights and of the row, products of integers
    layer = Tiny(21, seed=2).linear(4).layers[0]
    row = rows[0, :21] - np.float32(0.5)
    scales = np.abs(layer.weight).max(1) / 127
    step = np.abs(row).max() / 127
    codes = np.rint(layer.weight / scales[:, None]) @ np.rint(row / step)
    np.testing.assert_allclose(Tiny.of([layer]).compiled(int8=True).row(row), codes * scales * step, rtol=1e-5)


def test_the_levels_agree_on_int8(monkeypatch):
    net, rows = network("relu"), np.random.default_rng(2).standard_normal((9, 53)).astype(np.float32)
    found = []
    for level in LEVELS:
        monkeypatch.setenv("WEFT_ISA", level)
        found.append(bits(net.compiled(int8=True)(rows)))
    assert all(np.array_equal(one, found[0]) for one in found)


def test_a_row_of_any_kind_is_taken_and_written_where_it_is_wanted():
    net = Tiny(4).tanh(6).softmax(3)
    run = net.compiled().row
    row = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
    wanted, out = run(row), np.empty(3, np.float32)
    assert run(row, out) is out and np.array_equal(out, wanted)
    spread = np.repeat(row, 2)[::2]
    for other in (row.astype(np.float64), row.tolist(), spread, row[None]):
        assert np.array_equal(run(other), wanted)
        assert np.array_equal(run(other, out), wanted)
    assert np.array_equal(net.predict_proba(row), wanted[None])
    assert len(net(np.zeros((0, 4)))) == 0


def test_rows_that_do_not_fit_are_refused():
    run = Tiny(4).softmax(3).compiled()
    rows = np.zeros((300, 4), np.float32)
    rows[217, 1] = np.inf
    with pytest.raises(InputError, match=r"finite numbers") as caught:
        run(rows)
    assert caught.value.index == 217
    with pytest.raises(InputError, match="finite numbers"):
        run.row(rows[217])
    with pytest.raises(ShapeError, match=r"\[4\]"):
        run.row(np.zeros(5, np.float32))
    with pytest.raises(InputError, match="one row"):
        run.row(np.zeros((2, 4), np.float32))
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    for out in (np.zeros(4, np.float32), np.zeros(3), frozen, [0, 0, 0]):
        with pytest.raises(InputError, match="writable float32"):
            run.row(np.zeros(4, np.float32), out)
    with pytest.raises(TypeError, match="takes a row"):
        run.row()
    with pytest.raises(UnsupportedError, match="65,536"):
        Tiny(70_000).softmax(2).compiled(int8=True)


def test_a_network_is_compiled_again_only_when_it_changed():
    net = Tiny(4).softmax(2)
    first = net.compiled()
    assert net.compiled() is first and net.compiled(threads=1) is not first
    net.fit(np.eye(4), [0, 1, 0, 1], epochs=1)
    assert net.compiled() is not first
    net.temperature = 2.0
    assert not np.array_equal(net.compiled().row(np.ones(4)), net.compiled(int8=True).row(np.ones(4)) * 2)
    assert net.compiled()._net.outputs == 2


def test_a_compiled_network_is_freed_and_keeps_nothing_it_was_made_of():
    weight = np.ones((2, 3), np.float32)
    made = Compiled([Layer(weight, np.zeros(2, np.float32))], 1.0, False)
    run = made.row
    weight[:] = 7
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None and np.array_equal(run(np.ones(3, np.float32)), [3, 3])


def test_weights_that_are_not_finite_give_what_they_are():
    made = Tiny.of([Layer(np.array([[np.inf, 1.0]], np.float32), np.zeros(1, np.float32))])
    assert np.isnan(made(np.zeros((1, 2))))  # infinity times zero: nothing is left out
    with pytest.raises(InputError, match="finite for int8"):
        made.compiled(int8=True)
