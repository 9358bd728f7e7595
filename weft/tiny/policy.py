"""A network that learns from rewards which of several choices to make: leave-one-out policy updates.

Several choices are drawn for each row and rewarded. The baseline of a choice is the mean reward of the row's others, so
that it needs no second network and its expectation is that of the true gradient (REINFORCE with leave-one-out).
Routers collapse to one choice if nothing holds them: the balance loss is the Switch Transformer's, N Σ fᵢ Pᵢ with the
share fᵢ of choices and the mean chance Pᵢ; the z loss is the mean of logsumexp(logits)², which keeps logits small.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from weft import autograd as ag
from weft.errors import BackendError, InputError, ShapeError
from weft.frozen import frozen
from weft.tiny.layers import Layer, checked_rows, classifies
from weft.tiny.logistic import log_softmax
from weft.tiny.network import Tiny
from weft.tiny.training import logits_of


@frozen
class Update:
    """One update: the mean reward, the three losses before it, and the share of each choice."""

    reward: float
    policy: float
    balance: float
    z: float
    shares: tuple[float, ...]


class Policy:
    """`choose` draws choices for rows, `learn` moves the network towards those whose rewards were better than the
    others of their row. `network` is the network as it is now.

    samples       choices drawn for a row, at least two
    rate          of Adam
    balance, z    weights of the two losses
    seed          of what is drawn
    """

    def __init__(
        self,
        network: Tiny,
        *,
        samples: int = 4,
        rate: float = 1e-3,
        balance: float = 0.01,
        z: float = 0.001,
        seed: int = 0,
    ) -> None:
        if not classifies(network._built()):
            what = f"{network.architecture} has no softmax at its end"
            raise InputError("tiny", what, field="network", advice="build it with .softmax(choices)")
        if type(samples) is not int or samples < 2:
            what = "must be at least 2: a choice is compared with the others of its row"
            raise InputError("tiny", what, field="samples", given=samples)
        for name, value, least in (("rate", rate, 1e-300), ("balance", balance, 0.0), ("z", z, 0.0)):
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= least):
                raise InputError("tiny", "must be a number from 0 on", field=name, given=value)
        self.samples, self.balance, self.z = samples, float(balance), float(z)
        self.network = Tiny.of(network.layers, classes=network.classes)
        self._draws = np.random.Generator(np.random.PCG64(seed))
        self.parameters = [ag.Parameter(value) for layer in network.layers for value in (layer.weight, layer.bias)]
        self._optimiser = ag.Adam(self.parameters, lr=rate)
        self._loss = ag.compiled(_loss_of(network.layers, self.parameters, self.z))

    def choose(self, rows: Any) -> np.ndarray:
        """Choices drawn by their chances.  [n, inputs] -> [n, samples] of whole numbers from 0"""
        chances = self.network(np.atleast_2d(np.asarray(rows))).astype(np.float64)
        edges = np.cumsum(chances, axis=1)
        drawn = self._draws.random((len(chances), self.samples)) * edges[:, -1:]
        return (drawn[:, :, None] >= edges[:, None, :-1]).sum(axis=2)

    def loss(self, rows: Any, choices: Any, rewards: Any) -> tuple[Any, Update]:
        """The loss of choices [n, samples] with these rewards as a variable, and its parts."""
        x, picked, paid = self._checked(rows, choices, rewards)
        count, outputs = len(x), self.network.outputs
        # of each choice: its reward less the mean of the row's others
        gain = (paid - paid.mean(axis=1, keepdims=True)) * (picked.shape[1] / (picked.shape[1] - 1))
        towards = np.zeros((count, outputs))
        np.add.at(towards, (np.arange(count)[:, None], picked), -gain / picked.size)
        shares = np.bincount(picked.ravel(), minlength=outputs) / picked.size
        spread = np.broadcast_to(shares * outputs / count, towards.shape)
        logits = self.network.logits(x).astype(np.float64)
        logs = log_softmax(logits)
        parts = float((logs * towards).sum()), float((np.exp(logs) * spread).sum())
        z = float(np.mean((logits - logs)[:, 0] ** 2))  # logsumexp, in every column
        update = Update(float(paid.mean()), *parts, z, tuple(shares.tolist()))
        return self._loss(x, towards.astype(np.float32), (self.balance * spread).astype(np.float32)), update

    def learn(self, rows: Any, choices: Any, rewards: Any) -> Update:
        """One update by the rewards [n, samples] of what `choose` has drawn for rows."""
        loss, update = self.loss(rows, choices, rewards)
        loss.backward()
        if not all(np.isfinite(one.grad).all() for one in self.parameters if one.grad is not None):
            self._optimiser.zero_grad()
            raise BackendError("tiny", "a gradient has NaN or infinity", advice="lower the rate, or scale the rewards")
        self._optimiser.step()
        self._optimiser.zero_grad()
        values = [np.asarray(one.value, np.float32) for one in self.parameters]
        layers = [
            replace(layer, weight=weight.copy(), bias=bias.copy())
            for layer, weight, bias in zip(self.network.layers, values[::2], values[1::2])
        ]
        self.network = Tiny.of(layers, classes=self.network.classes)
        return update

    def _checked(self, rows: Any, choices: Any, rewards: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = checked_rows(rows, self.network.inputs)
        picked, paid = np.asarray(choices), np.asarray(rewards, np.float64)
        if picked.ndim != 2 or picked.shape[0] != len(x) or picked.shape[1] < 2 or picked.dtype.kind not in "iu":
            what = f"must be whole numbers [{len(x)}, samples], two samples or more"
            raise ShapeError("tiny", what, field="choices", given=f"{picked.dtype} {list(picked.shape)}")
        if picked.size and not (picked.min() >= 0 and picked.max() < self.network.outputs):
            what = f"must be from 0 to {self.network.outputs - 1}"
            raise InputError("tiny", what, field="choices", given=int(picked.max()))
        if paid.shape != picked.shape or not np.isfinite(paid).all():
            raise ShapeError("tiny", f"must be finite numbers {list(picked.shape)}", field="rewards", given=paid.shape)
        return x, picked, paid


def _loss_of(layers: tuple[Layer, ...], parameters: list[Any], z: float) -> Any:
    forward = logits_of(layers, parameters)

    def loss(x: Any, towards: Any, spread: Any) -> Any:
        logits = forward(x)
        total = ag.log_sum_exp(logits)
        aimed = (ag.log_softmax(logits) * towards).sum() + (ag.softmax(logits) * spread).sum()
        return aimed + (total * total).sum() * (z / logits.shape[0])

    return loss
