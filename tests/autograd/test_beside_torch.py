"""Every module and loss has the results and gradients of PyTorch's, computed eagerly and as a program."""

import numpy as np
import pytest

from weft import autograd as ag
from weft.autograd.variable import as_variable

F32, F64 = np.float32, np.float64


def joined(pair):
    """Two variables [rows, D] side by side."""
    a, b = pair
    eye, none = np.eye(a.shape[1]), np.zeros((a.shape[1], a.shape[1]))
    left, right = (as_variable(np.concatenate(parts).astype(a.dtype)) for parts in ([eye, none], [none, eye]))
    return ag.linear(a, left) + ag.linear(b, right)


def batch_norm(kind, size):
    def make(case):
        made = kind(size).to(F64 if case["x"].dtype == F64 else F32)
        if "x.earlier" in case:
            with ag.no_grad():
                made(case["x.earlier"])
        return made

    return make


# Case -> the module, and how it is called where it is not with x alone.
MODULES = {
    "linear": (lambda case: ag.Linear(5, 3), None),
    "embedding": (lambda case: ag.Embedding(7, 4), None),
    "layer_norm": (lambda case: ag.LayerNorm(6), None),
    "rms_norm": (lambda case: ag.RMSNorm(6), None),
    "conv2d": (lambda case: ag.Conv2d(3, 4, (3, 2)), None),
    "conv2d.padded": (lambda case: ag.Conv2d(3, 4, (3, 2), padding=1), None),
    "conv2d.strided": (lambda case: ag.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)), None),
    "conv2d.dilated": (lambda case: ag.Conv2d(3, 4, (3, 2), dilation=2, padding=2), None),
    "max_pool2d": (lambda case: ag.MaxPool2d(2), None),
    "max_pool2d.overlapping": (lambda case: ag.MaxPool2d(3, stride=2, padding=1), None),
    "max_pool2d.wide": (lambda case: ag.MaxPool2d((2, 3), stride=(1, 2), padding=1), None),
    "avg_pool2d": (lambda case: ag.AvgPool2d(2), None),
    "avg_pool2d.overlapping": (lambda case: ag.AvgPool2d(3, stride=2, padding=1), None),
    "avg_pool2d.wide": (lambda case: ag.AvgPool2d((2, 3), stride=(1, 2), padding=1), None),
    "batch_norm1d": (batch_norm(ag.BatchNorm1d, 3), None),
    "batch_norm2d": (batch_norm(ag.BatchNorm2d, 3), None),
    "lstm_cell": (lambda case: ag.LSTMCell(3, 4), lambda m, v: joined(m(v["x"], (v["x.h"], v["x.c"])))),
    "gru_cell": (lambda case: ag.GRUCell(3, 4), lambda m, v: m(v["x"], v["x.h"])),
    "lstm": (lambda case: ag.LSTM(3, 4), lambda m, v: m(v["x"])[0]),
    "gru": (lambda case: ag.GRU(3, 4), lambda m, v: m(v["x"])[0]),
    "attention": (lambda case: ag.MultiHeadAttention(8, 2), None),
    "attention.causal": (lambda case: ag.MultiHeadAttention(8, 2, causal=True), None),
    "transformer": (lambda case: ag.TransformerBlock(8, 2, 12), None),
    "transformer.post": (lambda case: ag.TransformerBlock(8, 2, 12, norm_first=False), None),
    "softmax": (lambda case: ag.Sequential(ag.softmax), None),
    "log_softmax": (lambda case: ag.Sequential(ag.log_softmax), None),
    "leaky_relu": (lambda case: ag.Sequential(lambda x: ag.leaky_relu(x, 0.1)), None),
    **{
        f"activation.{kind}": (lambda case, kind=kind: ag.Activation(kind), None)
        for kind in ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "softplus", "relu2")
    },
}

CLASSES = np.asarray([1.0, 0.5, 2.0, 1.0, 0.25])
LOSSES = {
    "cross_entropy": ag.cross_entropy,
    "cross_entropy.smooth": lambda x, t: ag.cross_entropy(x, t, label_smoothing=0.1),
    "cross_entropy.sum": lambda x, t: ag.cross_entropy(x, t, reduction="sum"),
    "cross_entropy.weighted": lambda x, t: ag.cross_entropy(x, t, weight=CLASSES, label_smoothing=0.2),
    "cross_entropy.ignored": lambda x, t: ag.cross_entropy(x, t, ignore=4),
    "mse": ag.mse,
    "l1": ag.l1,
    "huber": lambda x, t: ag.huber(x, t, delta=0.7),
    "cosine_distance": ag.cosine_distance,
    "bce_with_logits": ag.bce_with_logits,
    "bce_with_logits.heavy": lambda x, t: ag.bce_with_logits(x, t, positive_weight=3.0),
    "kl_divergence": ag.kl_divergence,
    "hinge": ag.hinge,
}
NEED_VALUES = ("cross_entropy.weighted", "cross_entropy.ignored", "kl_divergence")  # of targets: not in a program

# How a module is run: the type, the backend where it is compiled, and the largest error over the largest number.
WAYS = {
    "eager f64": (F64, None, 1e-12),
    "eager f32": (F32, None, 1e-5),
    "reference f64": (F64, "reference", 1e-12),
    "cpu f32": (F32, "cpu", 1e-5),
}


def near(found, wanted, limit, what):
    error = np.abs(np.asarray(found, F64) - wanted).max() / max(1.0, np.abs(wanted).max())
    assert found.shape == wanted.shape and error <= limit, (what, error)


def as_type(case, dtype):
    return {name: value.astype(dtype) if value.dtype.kind == "f" else value for name, value in case.items()}


def run(function, backend, *arguments):
    """The loss, with its gradients, and the result."""
    loss, out = (function if backend is None else ag.compiled(function, backend=backend))(*arguments)
    loss.backward()
    return loss, out


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_pytorchs(modules, name, way):
    dtype, backend, limit = WAYS[way]
    case, wanted = as_type(modules[name], dtype), modules[name]
    make, call = MODULES[name]
    module = make(case).to(dtype)
    parameters = module.named_parameters()
    given = {part.removeprefix("param."): value for part, value in case.items() if part.startswith("param.")}
    assert set(parameters) == set(given)
    for part, value in given.items():
        parameters[part].value = value
    named = {
        part: ag.Variable(value, requires_grad=True) for part, value in case.items() if part in ("x", "x.h", "x.c")
    }
    inputs = list(named.values()) or [case["ids"]]

    def forward(*values):
        out = module(*values[:1]) if call is None else call(module, dict(zip(named, values)))
        return (out * as_variable(case["r"])).sum(), out

    _, out = run(forward, backend, *inputs)
    near(out.value, wanted["out"], limit, "out")
    for part, one in {**parameters, **named}.items():
        near(one.grad, wanted[f"grad.{part}"], limit, part)
    if name.startswith("batch_norm"):
        near(module.running_mean.value, wanted["mean"], limit, "mean")
        near(module.running_var.value, wanted["var"], limit, "var")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["1d", "2d"])
def test_batch_norm_in_use_has_the_running_statistics(modules, kind, way):
    dtype, backend, limit = WAYS[way]
    before, wanted = modules[f"batch_norm{kind}"], modules[f"batch_norm{kind}.eval"]
    case = as_type(wanted, dtype)
    module = (ag.BatchNorm1d if kind == "1d" else ag.BatchNorm2d)(3).to(dtype).eval()
    for part in ("weight", "bias"):
        module.named_parameters()[part].value = case[f"param.{part}"]
    x = ag.Variable(case["x"], requires_grad=True)

    def forward(x):
        out = module(x)
        return (out * as_variable(case["r"])).sum(), out

    function = forward if backend is None else ag.compiled(forward, backend=backend)
    function(x)  # a program that was traced before the statistics changed must see them
    module.running_mean.value, module.running_var.value = before["mean"], before["var"]
    loss, out = function(x)
    loss.backward()
    near(out.value, wanted["out"], limit, "out")
    for part, one in {**module.named_parameters(), "x": x}.items():
        near(one.grad, wanted[f"grad.{part}"], limit, part)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_pytorchs(modules, name, way):
    dtype, backend, limit = WAYS[way]
    if backend is not None and name in NEED_VALUES:
        pytest.skip("needs the targets' values: test_compiled.py")
    wanted, case = modules[name], as_type(modules[name], dtype)
    x = ag.Variable(case["x"], requires_grad=True)

    def forward(x, target):
        loss = LOSSES[name](x, target)
        return loss, loss

    loss, _ = run(forward, backend, x, case["target"])
    near(loss.value.reshape(()), wanted["out"], limit, "loss")
    near(x.grad, wanted["grad.x"], limit, "x")


@pytest.mark.parametrize("name", [name for name in MODULES if name != "embedding"])
def test_gradients_are_slopes(modules, name):
    """Of every module, by differences in float64, whatever PyTorch says."""
    case = as_type(modules[name], F64)
    make, call = MODULES[name]
    module = make(case).to(F64)
    named = {
        part: ag.Variable(value, requires_grad=True) for part, value in case.items() if part in ("x", "x.h", "x.c")
    }

    def loss():
        out = module(named["x"]) if call is None else call(module, named)
        return (out * as_variable(case["r"])).sum()

    assert ag.check_gradients(loss, [*module.parameters(), *named.values()]) < 1e-7


def test_a_wrong_gradient_would_be_noticed():
    x = ag.Variable(np.ones((2, 3)), requires_grad=True)
    other = ag.Variable(np.ones((2, 3)))

    def loss():
        other.value = x.value  # hidden from the tape
        return (x * other).sum()

    assert ag.check_gradients(loss, [x]) > 0.1


def test_sequences_of_different_lengths_are_attended_without_padding():
    block = ag.TransformerBlock(8, 2, 12, seed=1).to(F64)
    rng = np.random.default_rng(0)
    texts = [rng.standard_normal((length, 8)) for length in (4, 1, 6)]
    together = block(np.concatenate(texts), lengths=[4, 1, 6]).value
    apart = np.concatenate([block(text[None]).value[0] for text in texts])
    np.testing.assert_allclose(together, apart, atol=1e-12)
