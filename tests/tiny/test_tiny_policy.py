"""Leave-one-out policy updates: losses by their definition, gradients by differences, and routers that learn."""

import numpy as np
import pytest

from weft.errors import InputError
from weft.tiny import Policy, Tiny


def by_definition(layers, x, choices, rewards):
    """The three losses in float64, choice by choice."""
    for weight, bias, kind in layers:
        x = x @ weight.T + bias
        if kind == "tanh":
            x = np.tanh(x)
    top = x.max(axis=1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(x - top).sum(axis=1))
    logs = x - total[:, None]
    count, samples, outputs = len(x), choices.shape[1], x.shape[1]
    policy = 0.0
    for row in range(count):
        for k in range(samples):
            others = [rewards[row, j] for j in range(samples) if j != k]
            policy -= (rewards[row, k] - sum(others) / len(others)) * logs[row, choices[row, k]] / (count * samples)
    shares = [np.mean(choices == i) for i in range(outputs)]
    balance = outputs * sum(share * np.exp(logs[:, i]).mean() for i, share in enumerate(shares))
    return np.array([policy, balance, np.mean(total**2)])


def numbers(seed=0):
    net = Tiny(4, seed=2).tanh(6).softmax(3)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((5, 4)).astype(np.float32)
    return net, x, rng.integers(0, 3, (5, 4)), rng.standard_normal((5, 4))


@pytest.mark.parametrize(("paid", "balance", "z"), [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.5, 0.2)])
def test_losses_are_their_definition_and_gradients_those_of_differences(paid, balance, z):
    net, x, choices, rewards = numbers()
    rewards = rewards * paid
    policy = Policy(net, balance=balance, z=z)
    loss, update = policy.loss(x, choices, rewards)
    weights = np.array([1.0, balance, z])
    wide = [[one.weight.astype(np.float64), one.bias.astype(np.float64), one.activation] for one in net.layers]
    wanted = by_definition(wide, x.astype(np.float64), choices, rewards)
    np.testing.assert_allclose([update.policy, update.balance, update.z], wanted, rtol=2e-5, atol=1e-6)
    assert float(loss.value[0]) == pytest.approx(float(weights @ wanted), rel=2e-5, abs=1e-6)
    assert sum(update.shares) == pytest.approx(1)
    loss.backward()
    for number, parameter in enumerate(policy.parameters):
        array = wide[number // 2][number % 2]
        for place in np.ndindex(array.shape):
            kept, sides = array[place], []
            for step in (1e-5, -1e-5):
                array[place] = kept + step
                sides.append(weights @ by_definition(wide, x.astype(np.float64), choices, rewards))
            array[place] = kept
            assert parameter.grad[place] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=2e-3, abs=3e-6)


def test_choices_are_drawn_by_their_chances_and_by_the_seed():
    net, x, _, _ = numbers()
    drawn = Policy(net, samples=4000).choose(x)
    for row, chances in zip(drawn, net(x)):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 4000, chances, atol=0.04)
    assert np.array_equal(Policy(net, seed=5).choose(x), Policy(net, seed=5).choose(x))


def reward_of(x, choices):
    """1 for the sign of the first number, and little else."""
    return (choices == (x[:, :1] > 0)).astype(float)


def test_a_router_learns_what_pays():
    rng = np.random.default_rng(0)
    policy = Policy(Tiny(3).tanh(8).softmax(2), rate=0.04)
    first = None
    for _ in range(60):
        x = rng.standard_normal((32, 3)).astype(np.float32)
        choices = policy.choose(x)
        update = policy.learn(x, choices, reward_of(x, choices))
        first = first or update.reward
    x = rng.standard_normal((500, 3)).astype(np.float32)
    assert first < 0.7 and np.mean(policy.network(x).argmax(1) == (x[:, 0] > 0)) > 0.93


def test_balance_keeps_all_choices_in_use():
    """One choice pays a little more than the others: without the loss only that is left."""
    shares = {}
    for weight in (0.0, 1.0):
        rng = np.random.default_rng(1)
        policy = Policy(Tiny(3).softmax(4), rate=0.1, balance=weight)
        for _ in range(70):
            x = rng.standard_normal((32, 3)).astype(np.float32)
            choices = policy.choose(x)
            update = policy.learn(x, choices, 0.2 * (choices == 2))
        shares[weight] = max(update.shares)
    assert shares[0.0] > 0.8 and shares[1.0] < 0.55


def test_equal_rewards_change_nothing_and_wrong_ones_are_refused():
    net, x, choices, rewards = numbers()
    assert abs(Policy(net).loss(x, choices, np.full_like(rewards, 3.0))[1].policy) < 1e-12
    policy = Policy(net)
    for given in (
        (x, choices[:, :1], rewards[:, :1]),
        (x, choices + 2, rewards),
        (x, choices.astype(float), rewards),
        (x, choices, rewards[:, :2]),
        (x, choices, rewards * np.nan),
        (x[:, :3], choices, rewards),
    ):
        with pytest.raises(InputError):
            policy.learn(*given)
    for made in (lambda: Policy(Tiny(2).linear(2)), lambda: Policy(net, samples=1), lambda: Policy(net, z=-1.0)):
        with pytest.raises(InputError):
            made()
