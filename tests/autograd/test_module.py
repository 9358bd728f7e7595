"""Modules find what they hold, save and load it, and begin with the values that their seed gives."""

import numpy as np
import pytest

from weft import autograd as ag
from weft.autograd.modules import initialise
from weft.errors import InputError, ShapeError, UnsupportedError, WeightError
from weft.weights import open_safetensors


class Net(ag.Module):
    def __init__(self):
        self.first = ag.Linear(4, 3, seed=1)
        self.rest = [ag.Linear(3, 3, seed=2), {"norm": ag.BatchNorm1d(3)}]
        self.tied = self.first
        self.scale = ag.Parameter(np.ones(3, np.float32))
        self.notes = ["not a module", 3]

    def forward(self, x):
        return self.rest[1]["norm"](self.rest[0](self.first(x))) * self.scale


NAMES = [
    "first.weight",
    "first.bias",
    "rest.0.weight",
    "rest.0.bias",
    "rest.1.norm.weight",
    "rest.1.norm.bias",
    "scale",
]


def test_parameters_are_found_by_name_and_once():
    net = Net()
    assert list(net.named_parameters()) == NAMES
    assert set(net.state_dict()) == {*NAMES, "rest.1.norm.running_mean", "rest.1.norm.running_var"}
    assert repr(net) == "Net(first, rest.0, rest.1.norm, tied; 36 parameters)"
    assert [type(one).__name__ for one in net.modules()][:2] == ["Net", "Linear"]


def test_train_and_eval_reach_all_modules():
    net = Net().eval()
    assert not any(one.training for one in net.modules())
    assert all(one.training for one in net.train().modules())


def test_what_is_saved_is_loaded(tmp_path):
    rng = np.random.default_rng(0)
    net, other = Net(), Net()
    net(rng.standard_normal((5, 4)).astype(np.float32))  # moves the statistics
    for one in net.parameters():
        one.value = rng.standard_normal(one.shape)
    net.save(tmp_path / "net.safetensors")
    other.load(tmp_path / "net.safetensors")
    for name, value in net.state_dict().items():
        assert np.array_equal(other.state_dict()[name], value), name
    with open_safetensors(tmp_path / "net.safetensors") as file:
        assert set(file.tensors) == set(net.state_dict())


def test_a_state_that_does_not_fit_changes_nothing():
    net = Net()
    before = net.state_dict()
    state = {**before, "scale": np.zeros(4)}
    with pytest.raises(WeightError, match=r"scale must be \(3,\): got \(4,\)"):
        net.load_state_dict(state)
    del state["scale"]
    with pytest.raises(WeightError, match=r"missing \['scale'\], left over \['more'\]"):
        net.load_state_dict({**state, "more": np.zeros(1)})
    assert all(np.array_equal(value, before[name]) for name, value in net.state_dict().items())


def test_types_are_changed_together():
    net = Net().to(np.float64)
    assert {value.dtype for value in net.state_dict().values()} == {np.dtype(np.float64)}
    assert net(np.ones((2, 4))).dtype == np.float64
    with pytest.raises(InputError, match=r"x must be float64, as the parameters are.*module.to"):
        net(ag.Variable(np.ones((2, 4), np.float32)))
    with pytest.raises(InputError, match="dtype must be float32 or float64"):
        net.to(np.float16)


def test_seeds_decide_first_values():
    same, other = ag.Conv2d(2, 3, 3, seed=5).state_dict(), ag.Conv2d(2, 3, 3, seed=6).state_dict()
    assert np.array_equal(same["weight"], ag.Conv2d(2, 3, 3, seed=5).weight.value)
    assert not np.array_equal(same["weight"], other["weight"])
    ag.seed(4)
    first = ag.Linear(3, 3).weight.value, ag.Linear(3, 3).weight.value
    ag.seed(4)
    assert np.array_equal(ag.Linear(3, 3).weight.value, first[0]) and not np.array_equal(*first)


def test_initialisers_have_their_spread():
    shape = (200, 300)
    for made, std in {
        "xavier_uniform": (2 / 500) ** 0.5, "xavier_normal": (2 / 500) ** 0.5,
        "kaiming_uniform": (2 / 300) ** 0.5, "kaiming_normal": (2 / 300) ** 0.5,
    }.items():  # fmt: skip
        values = getattr(initialise, made)(shape, seed=0)
        assert values.dtype == np.float32 and abs(values.std() / std - 1) < 0.02 and abs(values.mean()) < 0.01, made
    assert initialise.fans((8, 3, 3, 4)) == (36, 72)
    assert np.abs(initialise.uniform(shape, 2, 3, seed=0) - 2.5).max() <= 0.5
    assert abs(initialise.normal(shape, 1.0, 0.5, seed=0).mean() - 1.0) < 0.01
    for rows, cols in ((4, 7), (7, 4)):
        q = initialise.orthogonal((rows, cols), seed=1).astype(np.float64)
        short = q @ q.T if rows < cols else q.T @ q
        np.testing.assert_allclose(short, np.eye(4), atol=1e-6)
    assert not initialise.zeros((2,)).any() and initialise.ones((2,)).all()
    for wrong in (lambda: initialise.xavier_normal((3,)), lambda: initialise.uniform((2,), 2, 1),
                  lambda: initialise.normal((2,), std=-1)):  # fmt: skip
        with pytest.raises(InputError):
            wrong()


def test_dropout_keeps_the_mean_and_is_gone_in_use():
    x = np.ones((100, 100), np.float32)
    layer = ag.Dropout(0.25)
    ag.seed(1)
    found = layer(x).value
    assert set(np.unique(found).round(5)) == {0.0, np.float32(1 / 0.75).round(5)} and abs(found.mean() - 1) < 0.02
    assert not np.array_equal(found, layer(x).value)
    ag.seed(1)
    assert np.array_equal(found, layer(x).value)
    assert np.array_equal(layer.eval()(x).value, x)


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: ag.Linear(0, 3), "inputs must be a whole number of at least 1"),
        (lambda: ag.Linear(4, 3)(np.ones((2, 5))), "x must have 4 channels"),
        (lambda: ag.Embedding(4, 2)(np.asarray([4])), "must be 0 to 3: got 4"),
        (lambda: ag.Conv2d(3, 4, 0), "kernel must be a whole number of at least 1, or two"),
        (lambda: ag.Conv2d(3, 4, (2, 2, 2)), "kernel must be"),
        (lambda: ag.Conv2d(3, 4, 3)(np.ones((1, 5, 5, 2))), "x must have 3 channels"),
        (lambda: ag.Conv2d(3, 4, 3)(np.ones((5, 5, 3))), r"x must be \[images, height, width, channels\]"),
        (lambda: ag.Conv2d(1, 4, 3)(np.ones((1, 2, 5, 1))), r"x must be at least \(3, 3\) high and wide"),
        (lambda: ag.MaxPool2d(2, padding=2)(np.ones((1, 4, 4, 1))), "padding must be at most half of the window"),
        (lambda: ag.MaxPool2d(2)(np.ones((4, 4))), "x must be"),
        (lambda: ag.GlobalAvgPool2d()(np.ones((4, 4))), "x must be"),
        (lambda: ag.BatchNorm1d(3)(np.ones((1, 3))), r"must have two rows or more in training.*eval\(\)"),
        (lambda: ag.BatchNorm1d(3)(np.ones((4, 2))), "x must have 3 channels"),
        (lambda: ag.BatchNorm2d(3)(np.ones((4, 3))), r"x must be \[images"),
        (lambda: ag.BatchNorm1d(3, momentum=0), "momentum must be above 0"),
        (lambda: ag.LSTMCell(3, 4)(np.ones((2, 2))), r"x must be \[rows, 3\]"),
        (lambda: ag.GRUCell(3, 4)(np.ones((2, 3)), np.ones((2, 3))), r"state must be \[2, 4\]"),
        (lambda: ag.LSTM(3, 4)(np.ones((2, 3))), r"x must be \[rows, time, inputs\]"),
        (lambda: ag.MultiHeadAttention(8, 3), "heads must divide the size 8"),
        (lambda: ag.MultiHeadAttention(8, 2)(np.ones((2, 3, 4))), r"x must be \[batch, tokens, 8\]"),
        (lambda: ag.MultiHeadAttention(8, 2)(np.ones((5, 8)), lengths=[2, 2]), "lengths must have a sum of 5"),
        (lambda: ag.Dropout(1.0), "p must be 0 or more and below 1"),
        (lambda: ag.Activation("swish"), "activation must be one of"),
        (lambda: ag.cross_entropy(np.ones((2, 3)), [0, 3]), "targets must be classes, 0 to 2: got 3"),
        (lambda: ag.cross_entropy(np.ones((2, 3)), [0.0, 1.0]), "targets must be integers"),
        (lambda: ag.cross_entropy(np.ones((2, 3)), [0, 1], label_smoothing=1.0), "label_smoothing must be"),
        (lambda: ag.cross_entropy(np.ones((2, 3)), [0, 1], weight=[1, 2]), r"weight must be \[3\]"),
        (lambda: ag.cross_entropy(np.ones((2, 3)), [1, 1], ignore=1), "no row counts"),
        (lambda: ag.cross_entropy(np.ones((2, 3)), [1, 1], reduction="max"), "reduction must be one of"),
        (lambda: ag.mse(np.ones((2, 3)), np.ones((3, 2))), r"target must be \(2, 3\)"),
        (lambda: ag.huber(np.ones(2), np.ones(2), delta=0), "delta must be above zero"),
        (lambda: ag.kl_divergence(np.ones((1, 2)), np.ones((1, 2))), "target must be probabilities"),
    ],
)
def test_bad_shapes_and_settings_are_input_errors(call, complaint):
    with pytest.raises(InputError, match=complaint) as error:
        call()
    assert isinstance(error.value, ShapeError) or error.value.field


def test_a_module_without_a_function_says_so():
    with pytest.raises(UnsupportedError, match=r"Module has no forward\(\)"):
        ag.Module()(1)


def test_images_of_other_libraries_are_turned():
    assert ag.channels_last(np.zeros((2, 3, 4, 5))).shape == (2, 4, 5, 3)
