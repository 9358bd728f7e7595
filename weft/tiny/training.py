"""How a tiny network learns: batches, an optimiser, a guard against gradients that are not numbers, early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from weft import autograd as ag
from weft.errors import BackendError, InputError, ShapeError
from weft.frozen import frozen
from weft.tiny.calibration import fit_temperature
from weft.tiny.consolidation import Consolidation
from weft.tiny.layers import Layer, classifies, logits

GUARDS = ("error", "sanitise", "skip")


@frozen
class Recipe:
    """How a network learns.

    optimiser, rate    "adam" (0.001) or "sgd" (0.01) with `momentum`; `decay` of the weights goes through the gradient
    epochs, batch      how often all rows are learnt, how many at a time; `shuffle` draws a new order for each epoch
    target             stop when the loss of an epoch is this small
    valid, patience    the part of the rows that is held out, and how many epochs without a better loss on it end the
                       learning; the best weights are kept
    guard              what becomes of a gradient that has NaN or infinity: "error", "sanitise" (those numbers count as
                       zero) or "skip" (the batch is left out)
    class_weight       what a row of each class counts: a mapping, "balanced", or None for one
    smoothing          the part of a label that is spread over all classes
    calibrate          find the temperature of the probabilities on the rows held out
    consolidation      what an earlier task needs, to be held
    seed               of the order of rows, and of which are held out
    """

    optimiser: str = "adam"
    rate: float | None = None
    momentum: float = 0.9
    decay: float = 0.0
    epochs: int = 100
    batch: int = 32
    shuffle: bool = True
    target: float = 0.0
    valid: float = 0.0
    patience: int = 10
    guard: str = "error"
    class_weight: Any = None
    smoothing: float = 0.0
    calibrate: bool = False
    consolidation: Consolidation | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("optimiser", self.optimiser in ("adam", "sgd"), "must be adam or sgd")
        self._check("guard", self.guard in GUARDS, f"must be one of {', '.join(GUARDS)}")
        for name in ("epochs", "batch", "patience"):
            self._check(name, type(getattr(self, name)) is int and getattr(self, name) >= 1, "must be at least 1")
        self._check("rate", self.rate is None or (_number(self.rate) and self.rate > 0), "must be above zero")
        for name in ("decay", "target"):
            self._check(name, _number(getattr(self, name)) and getattr(self, name) >= 0, "must be 0 or more")
        for name in ("momentum", "valid", "smoothing"):
            self._check(name, _number(getattr(self, name)) and 0 <= getattr(self, name) < 1, "must be 0 to below 1")
        if self.calibrate and not self.valid:
            what = "needs rows that were not learnt"
            raise InputError("tiny", what, field="calibrate", advice="hold some out, as with valid=0.1")

    def _check(self, name: str, right: bool, what: str) -> None:
        if not right:
            raise InputError("tiny", what, field=name, given=getattr(self, name))


@frozen
class Epoch:
    """One pass over all rows: the mean loss, that of the rows held out, and how many batches the guard left out or
    changed."""

    number: int
    loss: float
    valid: float | None = None
    guarded: int = 0


def fit(
    layers: tuple[Layer, ...], x: np.ndarray, targets: Any, classes: np.ndarray | None, recipe: Recipe
) -> tuple[tuple[Layer, ...], np.ndarray | None, float, list[Epoch]]:
    """The layers after learning, the classes of their outputs, the temperature, and the epochs."""
    wanted, classes, weights = _targets(layers, targets, classes, len(x), recipe)
    learnt, held = _parted(len(x), recipe)
    trainee = Trainee(layers, weights, recipe)
    best: tuple[float, list[np.ndarray]] | None = None
    history: list[Epoch] = []
    since = 0
    for number in range(1, recipe.epochs + 1):
        order = np.random.Generator(np.random.PCG64([recipe.seed, number])).permutation(learnt)
        loss, guarded = trainee.epoch(x, wanted, order if recipe.shuffle else learnt)
        valid = trainee.loss(x[held], wanted[held]) if len(held) else None
        history.append(Epoch(number, loss, valid, guarded))
        if valid is not None:
            if best is None or valid < best[0]:
                best, since = (valid, trainee.values()), 0
            else:
                since += 1
        if loss <= recipe.target or since >= recipe.patience:
            break
    values = best[1] if best is not None else trainee.values()
    found = tuple(
        replace(layer, weight=weight, bias=bias) for layer, weight, bias in zip(layers, values[::2], values[1::2])
    )
    heat = fit_temperature(logits(found, x[held]), wanted[held]) if recipe.calibrate else 1.0
    return found, classes, heat, history


class Trainee:
    """A network's numbers while they are trained, and its loss as one compiled program."""

    def __init__(self, layers: tuple[Layer, ...], weights: np.ndarray | None, recipe: Recipe) -> None:
        self._recipe = recipe
        self.parameters = [ag.Parameter(value) for layer in layers for value in (layer.weight, layer.bias)]
        rate = recipe.rate
        if recipe.optimiser == "adam":
            self._optimiser: ag.Optimiser = ag.Adam(self.parameters, lr=rate or 1e-3, weight_decay=recipe.decay)
        else:
            self._optimiser = ag.SGD(
                self.parameters, lr=rate or 0.01, momentum=recipe.momentum, weight_decay=recipe.decay
            )
        # A batch and one row are different programs: a loss is compiled for every number of rows that comes.
        self._loss = ag.compiled(_loss_of(layers, self.parameters))
        self._weights = weights

    def epoch(self, x: np.ndarray, wanted: np.ndarray, order: np.ndarray) -> tuple[float, int]:
        """Learn all rows once: their mean loss, and how many batches the guard saw."""
        total, counted, guarded = 0.0, 0.0, 0
        for start in range(0, len(order), self._recipe.batch):
            rows = order[start : start + self._recipe.batch]
            shares = self._shares(wanted[rows])
            loss = self._loss(x[rows], shares)
            loss.backward()
            seen, left_out = self._guarded()
            guarded += seen
            if not left_out:
                self._held_to()
                self._optimiser.step()
            self._optimiser.zero_grad()
            weight = float(np.abs(shares).sum()) if self._weights is not None else float(len(rows))
            total, counted = total + float(loss.value[0]) * weight, counted + weight
        return total / counted, guarded

    def loss(self, x: np.ndarray, wanted: np.ndarray) -> float:
        """The mean loss of rows that are not learnt."""
        with ag.no_grad():
            return float(self._loss(x, self._shares(wanted)).value[0])

    def values(self) -> list[np.ndarray]:
        return [np.asarray(one.value, np.float32) for one in self.parameters]

    def _shares(self, wanted: np.ndarray) -> np.ndarray:
        """What is wanted of each output, weighted so that the loss is a mean over what rows count."""
        if self._weights is None:
            return wanted
        counts = wanted @ self._weights
        return np.asarray(wanted * (counts * len(wanted) / counts.sum())[:, None], np.float32)

    def _guarded(self) -> tuple[int, bool]:
        """Whether a gradient has numbers that are none, and whether the batch is left out for it."""
        wrong = [one for one in self.parameters if one.grad is not None and not np.isfinite(one.grad).all()]
        if not wrong:
            return 0, False
        if self._recipe.guard == "error":
            advice = "lower the rate, scale the rows, or set guard to skip or sanitise"
            raise BackendError("tiny", "a gradient has NaN or infinity", advice=advice)
        for one in wrong:
            one.grad = np.nan_to_num(np.asarray(one.grad), nan=0.0, posinf=0.0, neginf=0.0)
        return 1, self._recipe.guard == "skip"

    def _held_to(self) -> None:
        held = self._recipe.consolidation
        if held is not None:
            for one, change in zip(self.parameters, held.gradients(self.values())):
                assert one.grad is not None
                one.grad = one.grad + change


def logits_of(layers: tuple[Layer, ...], parameters: list[Any]) -> Callable[[Any], Any]:
    """The outputs of rows that can be differentiated; those of a softmax before it. Parameters are the weight and the
    bias of each layer."""

    def forward(x: Any) -> Any:
        for number, layer in enumerate(layers):
            x = ag.linear(x, parameters[2 * number], parameters[2 * number + 1])
            if layer.activation == "leaky_relu":
                x = ag.leaky_relu(x, layer.slope)
            elif layer.activation not in ("linear", "softmax"):
                x = ag.activation(x, layer.activation)
        return x

    return forward


def _loss_of(layers: tuple[Layer, ...], parameters: list[Any]) -> Callable[[Any, Any], Any]:
    """The mean loss of a batch: cross entropy with what is wanted of each class, or half the squared distance."""

    forward = logits_of(layers, parameters)

    def loss(x: Any, wanted: Any) -> Any:
        x = forward(x)
        rows = x.shape[0]
        if layers[-1].activation == "softmax":
            return (ag.log_softmax(x) * wanted).sum() * (-1.0 / rows)
        offset = x - wanted
        return (offset * offset).sum() * (0.5 / rows)

    return loss


def _targets(
    layers: tuple[Layer, ...], targets: Any, known: np.ndarray | None, count: int, recipe: Recipe
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """What is wanted of each output, the classes, and what a row of each class counts."""
    given = np.asarray(targets)
    if len(given) != count:
        raise ShapeError("tiny", f"must be as many as there are rows, {count}", field="targets", given=len(given))
    outputs = layers[-1].outputs
    if not classifies(layers):
        wanted = np.asarray(given.reshape(count, -1), np.float32)
        if wanted.shape[1] != outputs or not np.isfinite(wanted).all():
            what = f"must be {outputs} finite numbers a row"
            raise ShapeError("tiny", what, field="targets", given=list(given.shape))
        return wanted, None, None
    if given.ndim == 2:
        wanted = np.asarray(given, np.float32)
        sums = wanted.sum(axis=1)
        if wanted.shape[1] != outputs or (wanted < 0).any() or not np.allclose(sums, 1, atol=1e-4):
            what = f"must be probabilities of {outputs} classes: rows of a sum of 1"
            raise InputError("tiny", what, field="targets", given=list(given.shape))
        classes = np.arange(outputs) if known is None else known
    else:
        found = np.unique(given)
        classes = found if known is None or not np.isin(found, known).all() else known
        if len(classes) > outputs or (len(classes) < outputs and classes.dtype.kind not in "iu"):
            what = f"has {len(classes)} classes, and the network {outputs} outputs"
            raise InputError("tiny", what, field="targets")
        if len(classes) < outputs:  # numbers of classes of which not all are there
            if classes.min() < 0 or classes.max() >= outputs:
                what = f"must be 0 to {outputs - 1} where not all classes are there"
                raise InputError("tiny", what, field="targets", given=int(classes.max()))
            classes = np.arange(outputs)
        wanted = np.eye(outputs, dtype=np.float32)[np.searchsorted(classes, given)]
    weights = _class_weights(recipe.class_weight, classes, wanted)
    if recipe.smoothing:
        wanted = wanted * np.float32(1 - recipe.smoothing) + np.float32(recipe.smoothing / outputs)
    return wanted, classes, weights


def _class_weights(given: Any, classes: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    if given is None:
        return None
    if given == "balanced":
        counts = wanted.sum(axis=0)
        return np.asarray(len(wanted) / (len(classes) * np.maximum(counts, 1e-12)), np.float64) * (counts > 0)
    if not isinstance(given, dict):
        raise InputError("tiny", 'must be a mapping, or "balanced"', field="class_weight", given=given)
    found = np.asarray([float(given.get(one, 1.0)) for one in classes.tolist()])
    unknown = [one for one in given if one not in classes.tolist()]
    if unknown or not np.isfinite(found).all() or (found < 0).any() or not found.any():
        what = f"has {unknown[0]!r}, which is no class" if unknown else "must be numbers from 0, not all of them 0"
        raise InputError("tiny", what, field="class_weight")
    return found


def _parted(count: int, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """The rows to learn and those to hold out."""
    if not count:
        raise InputError("tiny", "there are no rows", field="rows")
    if not recipe.valid:
        return np.arange(count), np.arange(0)
    held = max(1, round(recipe.valid * count))
    if held >= count:
        raise InputError("tiny", f"of {count} rows {held} are held out, and none is left", field="valid")
    order = np.random.Generator(np.random.PCG64([recipe.seed, 0])).permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
