"""Tiny networks: forward pass, gradients, learning and files, against numbers computed by hand or differences."""

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from weft.errors import BackendError, FormatError, InputError, NotFoundError, ShapeError, UnsupportedError
from weft.tiny import Layer, Tiny
from weft.tiny.calibration import fit_temperature
from weft.tiny.consolidation import fisher
from weft.tiny.fann import from_bytes, to_bytes
from weft.tiny.training import Recipe, Trainee

DIGITS = Path(__file__).resolve().parent.parent / "golden" / "autograd" / "digits.npz"
KINDS = ("linear", "sigmoid", "tanh", "relu", "leaky_relu", "gelu")


def every_kind(seed=0):
    """A network with every activation inside and a softmax at its end."""
    net = Tiny(5, seed=seed)
    for kind in KINDS:
        net = getattr(net, kind)(7)
    return net.softmax(3)


def by_hand(net, x):
    """The outputs in float64, by the definition of each activation, unit by unit."""
    kinds = {
        "linear": lambda v, _: v,
        "sigmoid": lambda v, _: 1 / (1 + math.exp(-v)),
        "tanh": lambda v, _: math.tanh(v),
        "relu": lambda v, _: max(v, 0.0),
        "leaky_relu": lambda v, slope: v if v > 0 else slope * v,
        "gelu": lambda v, _: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
    }
    values = [float(one) for one in x]
    for layer in net.layers:
        sums = [
            sum(float(w) * v for w, v in zip(row, values)) + float(bias) for row, bias in zip(layer.weight, layer.bias)
        ]
        if layer.activation == "softmax":
            powers = [math.exp(v - max(sums)) for v in sums]
            return [power / sum(powers) for power in powers]
        values = [kinds[layer.activation](v, layer.slope) for v in sums]
    return values


def test_the_forward_pass_is_the_definition():
    net = every_kind()
    rows = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    found = net(rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [by_hand(net, row) for row in rows], rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(net(rows[2]), found[2], rtol=1e-6)
    assert net(np.full((1, 5), 1e6)).sum() == pytest.approx(1)  # nothing overflows


def test_the_same_layers_and_seed_have_the_same_weights():
    one, same, other = Tiny(784).relu(128).softmax(10), Tiny(784).relu(128).softmax(10), Tiny(784, seed=1).relu(128)
    assert all(np.array_equal(a.weight, b.weight) for a, b in zip(one.layers, same.layers))
    assert not np.array_equal(one.layers[0].weight, other.layers[0].weight)
    assert one.layers[0].weight.std() == pytest.approx(math.sqrt(2 / (784 + 128)), rel=0.01)
    assert not one.layers[0].bias.any()
    assert one.architecture == "784 -> ReLU(128) -> Softmax(10)" and one.parameters == 784 * 128 + 128 + 1280 + 10


@pytest.mark.parametrize("classifies", [True, False])
def test_gradients_are_those_of_differences(classifies):
    net = every_kind() if classifies else every_kind().of(every_kind().layers[:-1])
    rng = np.random.default_rng(1)
    x = rng.standard_normal((6, 5)).astype(np.float32)
    wanted = rng.dirichlet(np.ones(3), 6) if classifies else rng.standard_normal((6, 7))
    trainee = Trainee(net.layers, None, Recipe())
    trainee._loss(x, wanted.astype(np.float32)).backward()

    def loss(layers):
        """In float64, whose differences are exact enough."""
        values = x.astype(np.float64)
        for layer in layers:
            values = values @ layer[0].T + layer[1]
            kind, slope = layer[2], layer[3]
            if kind == "softmax":
                shifted = values - values.max(axis=1, keepdims=True)
                return -(wanted * (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))).sum() / len(x)
            values = {
                "linear": values,
                "sigmoid": 1 / (1 + np.exp(-values)),
                "tanh": np.tanh(values),
                "relu": np.maximum(values, 0),
                "leaky_relu": np.where(values > 0, values, slope * values),
                "gelu": values * 0.5 * (1 + np.vectorize(math.erf)(values / math.sqrt(2))),
            }[kind]
        return 0.5 * ((values - wanted) ** 2).sum() / len(x)

    wide = [
        [layer.weight.astype(np.float64), layer.bias.astype(np.float64), layer.activation, layer.slope]
        for layer in net.layers
    ]
    for number, parameter in enumerate(trainee.parameters):
        array = wide[number // 2][number % 2]
        for place in [tuple(index) for index in np.argwhere(np.ones(array.shape))[:: max(1, array.size // 5)]]:
            kept, step = array[place], 1e-5
            array[place] = kept + step
            above = loss(wide)
            array[place] = kept - step
            below = loss(wide)
            array[place] = kept
            assert parameter.grad[place] == pytest.approx((above - below) / (2 * step), rel=1e-3, abs=2e-6)


def test_digits_are_read():
    with np.load(DIGITS) as file:
        x, y = file["images"].reshape(-1, 64).astype(np.float32) / 16, file["digits"].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    net = Tiny(64).relu(64).softmax(10).fit(x[:1437], y[:1437], epochs=25, rate=3e-3, valid=0.1, calibrate=True)
    assert net.score(x[1437:], y[1437:]) > 0.97
    assert net.temperature != 1.0 and net.history[-1].valid < net.history[0].valid
    again = Tiny(64).relu(64).softmax(10).fit(x[:1437], y[:1437], epochs=2, rate=3e-3)
    third = Tiny(64).relu(64).softmax(10).fit(x[:1437], y[:1437], epochs=2, rate=3e-3)
    assert all(np.array_equal(a.weight, b.weight) for a, b in zip(again.layers, third.layers))  # the same bits


def blobs(count=120, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = np.array([[0, 3], [3, -2], [-3, -2]])
    return (centres[labels] + rng.standard_normal((count, 2))).astype(np.float32), np.array(["a", "b", "c"])[labels]


def test_learning_stops_early_and_keeps_the_best():
    x, y = blobs()
    net = Tiny(2).tanh(16).softmax(3).fit(x, y, epochs=400, rate=0.1, valid=0.3, patience=3, optimiser="sgd")
    losses = [epoch.valid for epoch in net.history]
    assert len(losses) < 400 and losses.index(min(losses)) == len(losses) - 4
    assert list(net.predict(x[:3])) == [str(one) for one in net.predict(x[:3])] and set(net.predict(x)) == {
        "a",
        "b",
        "c",
    }
    assert net.predict_proba(x).shape == (120, 3)


def test_rows_count_as_their_class_says():
    x, y = blobs()
    y = np.where(np.arange(120) % 2, "a", "b")  # nothing to learn but how often each comes
    plain = Tiny(2).softmax(2).fit(x, y, epochs=60, rate=0.02)
    heavy = Tiny(2).softmax(2).fit(x, y, epochs=60, rate=0.02, class_weight={"a": 9.0})
    assert plain.predict_proba(x)[:, 0].mean() == pytest.approx(0.5, abs=0.05)
    assert heavy.predict_proba(x)[:, 0].mean() == pytest.approx(0.9, abs=0.05)
    rare = np.where(np.arange(120) % 10, "a", "b")
    even = Tiny(2).softmax(2).fit(x, rare, epochs=60, rate=0.02, class_weight="balanced")
    assert even.predict_proba(x)[:, 0].mean() == pytest.approx(0.5, abs=0.07)


def test_soft_labels_and_smoothing_are_learnt():
    x = np.zeros((50, 2), np.float32)
    soft = np.tile([0.7, 0.3], (50, 1))
    net = Tiny(2).softmax(2).fit(x, soft, epochs=150, rate=0.05)
    assert net(x[0]) == pytest.approx([0.7, 0.3], abs=0.01)
    smooth = Tiny(2).softmax(2).fit(x, np.zeros(50, int), epochs=150, rate=0.1, smoothing=0.2)
    assert smooth(x[0]) == pytest.approx([0.9, 0.1], abs=0.01)


def test_numbers_are_predicted():
    x = np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32)
    y = x @ [1.0, -2.0, 0.5] + 3
    assert Tiny(3).linear(1).fit(x, y, epochs=80, rate=0.05).score(x, y) > 0.999


def test_the_guard_finds_gradients_that_are_no_numbers():
    x, y = blobs()
    wild = {"epochs": 8, "rate": 1e30, "optimiser": "sgd", "momentum": 0.0}
    with pytest.raises(BackendError, match="NaN or infinity"):
        Tiny(2).linear(8).softmax(3).fit(x, y, **wild)
    skipped = Tiny(2).linear(8).softmax(3).fit(x, y, guard="skip", **wild)
    assert sum(epoch.guarded for epoch in skipped.history) > 0


def test_temperature_is_the_least_loss():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2000, 4)) * 3
    powers = np.exp(logits / 2.5)
    wanted = powers / powers.sum(axis=1, keepdims=True)  # made under a temperature of 2.5
    assert fit_temperature(logits, wanted) == pytest.approx(2.5, rel=1e-6)


def test_the_fisher_information_is_that_of_single_gradients():
    net = Tiny(3).gelu(4).leaky_relu(4, 0.2).softmax(3)
    x = np.random.default_rng(2).standard_normal((5, 3)).astype(np.float32)
    expected = [np.zeros(value.shape) for layer in net.layers for value in (layer.weight, layer.bias)]
    for row in x:
        chances = net(row)
        for chosen in range(3):
            trainee = Trainee(net.layers, None, Recipe())
            trainee._loss(row[None], np.eye(3, dtype=np.float32)[chosen][None]).backward()
            for total, parameter in zip(expected, trainee.parameters):
                total += chances[chosen] * np.asarray(parameter.grad, np.float64) ** 2 / len(x)
    for found, wanted in zip(fisher(net.layers, x), expected):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=1e-9)


def test_an_earlier_task_is_kept():
    """The second task would turn the first one around; held, the network still knows it."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((200, 6)).astype(np.float32)
    first, second = x.copy(), x.copy()
    first[:, 3:], second[:, :3] = 0, 0  # each task has its own inputs
    y1, y2 = (first[:, 0] > 0).astype(int), (second[:, 3] + 0.5 * second[:, 4] > 0).astype(int)
    net = Tiny(6).tanh(12).softmax(2).fit(first, y1, epochs=60, rate=0.02)
    held = net.consolidation(first, strength=200.0)
    numbers = [value for layer in net.layers for value in (layer.weight, layer.bias)]
    assert held.penalty(numbers) == 0 and not any(change.any() for change in held.gradients(numbers))
    moved = [value + 0.01 for value in numbers]
    step = sum(float((g * 0.01).sum()) for g in held.gradients(moved))
    assert held.penalty(moved) == pytest.approx(step / 2, rel=1e-4)
    net.fit(second, y2, epochs=60, rate=0.02, consolidation=held)
    assert net.score(second, y2) > 0.9 and net.score(first, y1) > 0.9


def test_the_bytes_of_the_founding_format_are_those_computed_by_hand():
    layers = [
        Layer(
            np.array([[1.0, -2.0], [0.5, 0.25], [3.0, 4.0]], np.float32), np.array([0.0, 1.0, -1.0], np.float32), "relu"
        ),
        Layer(np.array([[1.0, 2.0, 3.0]], np.float32), np.array([0.125], np.float32), "leaky_relu", 0.25),
    ]
    expected = bytes.fromhex(
        "46414e4e" "01000000" "02000000"
        "02000000" "03000000" "03"
        "0000803f" "000000c0" "0000003f" "0000803e" "00004040" "00008040"
        "00000000" "0000803f" "000080bf"
        "03000000" "01000000" "04" "0000803e"
        "0000803f" "00000040" "00004040" "0000003e"
    )  # fmt: skip
    assert to_bytes(layers) == expected
    read = Tiny.of(from_bytes(expected))
    assert read.architecture == "2 -> ReLU(3) -> LeakyReLU(1)" and read.layers[1].slope == 0.25
    assert to_bytes(read.layers) == expected


@pytest.mark.parametrize("name", ["net.fann", "net.tiny"])
def test_a_saved_network_says_the_same(tmp_path, name):
    x, y = blobs()
    net = (
        Tiny(2).leaky_relu(5, 0.1).softmax(3).fit(x, y if name == "net.tiny" else np.unique(y, return_inverse=True)[1])
    )
    net.save(tmp_path / name)
    read = Tiny.load(tmp_path / name)
    assert np.array_equal(read(x), net(x)) and np.array_equal(read.predict(x), net.predict(x))
    assert (tmp_path / name).stat().st_size < 1000


def test_what_the_founding_format_cannot_hold_is_refused(tmp_path):
    x, y = blobs()
    with pytest.raises(UnsupportedError, match="gelu"):
        Tiny(2).gelu(3).softmax(2).save(tmp_path / "a.fann")
    with pytest.raises(UnsupportedError, match="names of classes"):
        Tiny(2).softmax(3).fit(x, y, epochs=1).save(tmp_path / "a.fann")
    assert not (tmp_path / "a.fann").exists()


def damaged():
    good = to_bytes(Tiny(2).relu(3).softmax(2).layers)
    second = 12 + 9 + 4 * 9
    yield b"", "ends inside"
    yield b"FANX" + good[4:], "FANN"
    yield good[:4] + struct.pack("<I", 2) + good[8:], "version"
    yield good[:-1], "ends inside"
    yield good + b"\0", "1 bytes after"
    yield good[:8] + struct.pack("<I", 1 << 31) + good[12:], "softmax, which is for the last"
    yield (
        good[:8] + struct.pack("<I", 3) + good[12:20] + b"\x03" + good[21 : second + 8] + b"\x03" + good[second + 9 :],
        "ends inside",
    )
    yield good[:12] + struct.pack("<I", 0) + good[16:], "0 inputs"
    yield good[:12] + struct.pack("<II", 1 << 31, 1 << 31) + good[20:], "100,000,000"
    yield good[:20] + b"\x09" + good[21:], "activation 9"
    yield good[:20] + b"\x05" + good[21:], "softmax"
    yield good[:second] + struct.pack("<I", 4) + good[second + 4 :], "after 3 outputs"
    yield good[:21] + struct.pack("<f", math.nan) + good[25:], "not finite"
    yield good[:8] + struct.pack("<I", 0), "no layers"


@pytest.mark.parametrize(("data", "words"), list(damaged()), ids=lambda one: one if isinstance(one, str) else "")
def test_damaged_files_are_refused(data, words, tmp_path):
    with pytest.raises(FormatError, match=words):
        from_bytes(data)
    (tmp_path / "x.tiny").write_bytes(data)
    with pytest.raises(FormatError):
        Tiny.load(tmp_path / "x.tiny")
    with pytest.raises(NotFoundError):
        Tiny.load(tmp_path / "nothing.fann")


def test_what_is_wrong_is_said():
    x, y = blobs()
    with pytest.raises(InputError, match="no layers"):
        Tiny(2)(x)
    with pytest.raises(InputError, match="softmax, which is for the last"):
        Tiny(2).softmax(3).relu(2)
    for width in (0, -1, 2.5, "3", True):
        with pytest.raises(InputError):
            Tiny(2).relu(width)
    net = Tiny(2).softmax(3)
    with pytest.raises(ShapeError, match=r"\[rows, 2\]"):
        net(np.ones((4, 3)))
    with pytest.raises(InputError, match="finite"):
        net(np.array([[1.0, math.nan]]))
    with pytest.raises(ShapeError, match="as many"):
        net.fit(x, y[:5])
    with pytest.raises(InputError, match="4 classes"):
        net.fit(x, np.arange(120) % 4)
    with pytest.raises(InputError, match="probabilities"):
        net.fit(x, np.ones((120, 3)))
    for option in (
        {"rate": 0},
        {"epochs": 0},
        {"guard": "hope"},
        {"valid": 1.0},
        {"optimiser": "lion"},
        {"smoothing": -1},
    ):
        with pytest.raises(InputError, match=next(iter(option))):
            net.fit(x, y, **option)
    with pytest.raises(InputError, match="held out"):
        net.fit(x[:1], [0], valid=0.9)
    with pytest.raises(InputError, match="not learnt"):
        net.fit(x, y, calibrate=True)
    with pytest.raises(InputError, match="no softmax"):
        Tiny(2).linear(1).predict_proba(x)
    with pytest.raises(InputError, match="no class"):
        net.fit(x, y, class_weight={"z": 2})
