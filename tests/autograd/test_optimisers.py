"""Optimisers, schedules and clipping take PyTorch's path, and are taken up where they were left."""

import numpy as np
import pytest

from weft import autograd as ag
from weft.errors import BackendError, InputError, WeightError

MAKERS = {
    "sgd": lambda groups: ag.SGD(groups, 0.1),
    "sgd.momentum": lambda groups: ag.SGD(groups, 0.1, 0.9, weight_decay=0.01),
    "sgd.nesterov": lambda groups: ag.SGD(groups, 0.1, 0.9, nesterov=True),
    "adam": lambda groups: ag.Adam(groups, 0.05, (0.8, 0.95), weight_decay=0.1),
    "adamw": lambda groups: ag.AdamW(groups, 0.05, weight_decay=0.1),
    "rmsprop": lambda groups: ag.RMSProp(groups, 0.02),
    "rmsprop.centred": lambda groups: ag.RMSProp(groups, 0.02, momentum=0.5, centred=True, weight_decay=0.1),
}


def start(training, name, dtype):
    """Two parameters in two groups, the second with half the rate, and the gradients of every step."""
    case = training["optimiser"]
    pair = [ag.Parameter(case[f"param.{part}"].astype(dtype)) for part in ("first", "second")]
    rate = MAKERS[name]([pair[0]]).groups[0]["lr"]
    made = MAKERS[name]([{"params": [pair[0]]}, {"params": [pair[1]], "lr": rate / 2}])
    gradients = list(zip(case["x.first"].astype(dtype), case["x.second"].astype(dtype)))
    return pair, made, gradients


def walk(pair, made, gradients):
    path = []
    for grads in gradients:
        for one, grad in zip(pair, grads):
            one.grad = grad
        made.step()
        path.append(np.concatenate([one.value.reshape(-1) for one in pair]))
    return np.asarray(path)


@pytest.mark.parametrize("dtype, limit", [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("name", MAKERS)
def test_the_path_is_pytorchs(training, name, dtype, limit):
    found = walk(*start(training, name, dtype))
    wanted = training[f"optimiser.{name}"]["out"]
    assert found.dtype == dtype and np.abs(found - wanted).max() <= limit * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_goes_on_to_the_bit(training, name):
    pair, made, gradients = start(training, name, np.float32)
    whole = walk(pair, made, gradients)
    pair, made, _ = start(training, name, np.float32)
    walk(pair, made, gradients[:5])
    others, other, _ = start(training, name, np.float32)
    for one, value in zip(others, pair):
        one.value = value.value
    other.load_state_dict(made.state_dict())
    assert np.array_equal(walk(others, other, gradients[5:]), whole[5:])


def test_schedules_are_pytorchs(training):
    wanted = training["schedule"]
    made = {
        "step": ag.StepDecay(7, 0.5),
        "cosine": ag.Cosine(29, 0.1),
        "line": ag.Line(20, 0.2),
        "warm": ag.WarmUp(6, ag.Cosine(24), start=0.1),
    }
    for name, schedule in made.items():
        np.testing.assert_allclose(
            [0.1 * schedule.at(step) for step in range(30)], wanted[name], rtol=1e-9, err_msg=name
        )
    plateau = ag.Plateau(0.3, 2, cooldown=1, lowest=0.02)
    np.testing.assert_allclose([0.1 * plateau.observe(value) for value in wanted["observed"]], wanted["plateau"])


def test_a_schedule_sets_the_rate_of_every_group():
    a, b = ag.Parameter(np.ones(2)), ag.Parameter(np.ones(2))
    made = ag.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], 0.1)
    made.scale_rate(0.5)
    made.scale_rate(0.1)
    assert [group["lr"] for group in made.groups] == [0.1 * 0.1, 0.5 * 0.1]


def test_clipping_is_pytorchs(training):
    for name in ("clip_norm.0.5", "clip_norm.100", "clip_value"):
        case = training[name]
        pair = [ag.Parameter(np.zeros_like(case[part], np.float64)) for part in ("x.0", "x.1")]
        for one, part in zip(pair, ("x.0", "x.1")):
            one.grad = case[part].astype(np.float64)
        if name == "clip_value":
            ag.clip_grad_value(pair, 0.4)
        else:
            norm = ag.clip_grad_norm(pair, float(name.removeprefix("clip_norm.")))
            np.testing.assert_allclose(norm, case["norm"])
        np.testing.assert_allclose(np.concatenate([one.grad.reshape(-1) for one in pair]), case["out"], rtol=1e-12)


def test_what_an_optimiser_refuses():
    one = ag.Parameter(np.ones(3))
    with pytest.raises(InputError, match="parameters must have at least one"):
        ag.SGD([])
    with pytest.raises(InputError, match="group 1 has a parameter that came before"):
        ag.SGD([{"params": [one]}, {"params": [one]}])
    with pytest.raises(InputError, match=r"group 0 options are lr, momentum, nesterov, weight_decay.*'rate'"):
        ag.SGD([{"params": [one], "rate": 1}])
    with pytest.raises(InputError, match="must be variables that require a gradient"):
        ag.SGD([np.ones(3)])
    with pytest.raises(InputError, match="lr must be a number of at least 0"):
        ag.Adam([one], lr=-1)
    with pytest.raises(InputError, match="betas must be 0 or more and below 1"):
        ag.AdamW([one], betas=(0.9, 1.0))
    with pytest.raises(InputError, match="momentum must be above 0 with nesterov"):
        ag.SGD([one], nesterov=True)
    made = ag.Adam([one])
    with pytest.raises(InputError, match=r"no parameter has a gradient; call backward\(\)"):
        made.step()
    with pytest.raises(WeightError, match="fits no parameter of this optimiser"):
        made.load_state_dict({**made.state_dict(), "7.first": np.ones(3)})
    with pytest.raises(WeightError, match="is not the state of this optimiser"):
        made.load_state_dict({})
    one.grad = np.full(3, np.nan)
    with pytest.raises(BackendError, match="the gradient is not finite"):
        ag.clip_grad_norm([one], 1.0)
    for wrong in (lambda: ag.StepDecay(0), lambda: ag.Cosine(5, 2.0), lambda: ag.WarmUp(3, 5), lambda: ag.Plateau(2.0)):
        with pytest.raises(InputError):
            wrong()
