"""Optimisers: SGD, Adam, AdamW and RMSProp over groups of parameters, and the clipping of gradients.

Each is a rule for one parameter (`_change`) over arrays that it keeps between steps. Values are replaced, never changed
in place. All arithmetic is in the parameter's own type and in a fixed order, so a run that is taken up has the bits of
one that ran through.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.autograd.variable import Variable
from weft.errors import BackendError, InputError, WeightError

Arrays = dict[str, np.ndarray]


class Optimiser:
    """Changes parameters by their gradients. `groups` are parameters that share options.

    `parameters` is a list of parameters, or of groups: {"params": [...], "lr": 0.01, ...}; options that a group does
    not have are the optimiser's. Options may be changed between steps: `optimiser.groups[0]["lr"] = 0.001`.
    """

    def __init__(self, parameters: Iterable[Any], **options: Any) -> None:
        self.options = options
        self.groups = _groups(type(self).__name__, list(parameters), options)
        self.steps = 0
        self._kept: list[Arrays] = [{} for _ in self.parameters]
        for group in self.groups:
            self._check(group)
            group["base_lr"] = group["lr"]

    @property
    def parameters(self) -> list[Variable]:
        return [one for group in self.groups for one in group["params"]]

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for one in self.parameters:
            one.zero_grad()

    def step(self) -> None:
        """Change every parameter that has a gradient; the others stay."""
        if all(one.grad is None for one in self.parameters):
            advice = "call backward() on a loss that depends on them first"
            raise InputError(type(self).__name__, "no parameter has a gradient", advice=advice)
        self.steps += 1
        kept = iter(self._kept)
        for group in self.groups:
            for one in group["params"]:
                memory = next(kept)
                if one.grad is not None:
                    one.value = self._change(one.value, one.grad, memory, group)

    def scale_rate(self, factor: float) -> None:
        """Set every group's rate to its first rate times `factor`."""
        for group in self.groups:
            group["lr"] = group["base_lr"] * factor

    def state_dict(self) -> Arrays:
        """What is kept between steps, by the number of the parameter, and the number of steps."""
        found = {f"{number}.{name}": value for number, one in enumerate(self._kept) for name, value in one.items()}
        rates = np.asarray([[group["lr"], group["base_lr"]] for group in self.groups], np.float64)
        return {**found, "steps": np.asarray([self.steps], np.int64), "rates": rates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, with the same parameters."""
        arrays = {name: np.array(value) for name, value in state.items()}
        parameters, rates = self.parameters, arrays.pop("rates", None)
        steps = arrays.pop("steps", None)
        if steps is None or rates is None or rates.shape != (len(self.groups), 2):
            raise WeightError("load_state_dict", "is not the state of this optimiser and its groups", field="state")
        kept: list[Arrays] = [{} for _ in parameters]
        for name, value in arrays.items():
            number, _, what = name.partition(".")
            fits = number.isdigit() and int(number) < len(parameters)
            if not fits or value.shape not in (parameters[int(number)].shape, (1,)):
                raise WeightError(
                    "load_state_dict", "fits no parameter of this optimiser", field=name, given=value.shape
                )
            kept[int(number)][what] = value
        self._kept, self.steps = kept, int(steps[0])
        for group, (rate, base) in zip(self.groups, rates.tolist()):
            group["lr"], group["base_lr"] = rate, base

    def _check(self, group: dict[str, Any]) -> None:
        _at_least(type(self).__name__, group, 0.0, "lr", "weight_decay")

    def _change(self, value: np.ndarray, grad: np.ndarray, kept: Arrays, group: dict[str, Any]) -> np.ndarray:
        """The new value of a parameter; `kept` is what this rule remembers of it."""
        raise NotImplementedError


def _groups(where: str, given: list[Any], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not given:
        raise InputError(where, "must have at least one", field="parameters", given=given)
    groups = given if all(isinstance(one, dict) for one in given) else [{"params": given}]
    made, seen = [], set()
    for number, group in enumerate(groups):
        unknown = sorted(group.keys() - options.keys() - {"params"})
        if unknown:
            what = f"options are {', '.join(options)}"
            raise InputError(where, what, field="group", index=number, given=unknown)
        members = list(group.get("params", ()))
        for one in members:
            if not isinstance(one, Variable) or not one.requires_grad:
                raise InputError(where, "must be variables that require a gradient", field="parameters", given=one)
            if id(one) in seen:
                raise InputError(where, "has a parameter that came before", field="group", index=number)
            seen.add(id(one))
        if not members:
            raise InputError(where, "has no parameters", field="group", index=number)
        made.append({**options, **group, "params": members})
    return made


def _at_least(where: str, group: Mapping[str, Any], least: float, *fields: str) -> None:
    for field in fields:
        value = group[field]
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= least):
            raise InputError(where, f"must be a number of at least {least:g}", field=field, given=value)


def _share(where: str, field: str, value: Any) -> None:
    if not (isinstance(value, (int, float)) and 0.0 <= value < 1.0):
        raise InputError(where, "must be 0 or more and below 1", field=field, given=value)


class SGD(Optimiser):
    """Steps against the gradient, with momentum and Nesterov's form of it."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.0,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        _share("SGD", "momentum", group["momentum"])
        if group["nesterov"] and not group["momentum"]:
            raise InputError("SGD", "must be above 0 with nesterov", field="momentum", given=group["momentum"])

    def _change(self, value: np.ndarray, grad: np.ndarray, kept: Arrays, group: dict[str, Any]) -> np.ndarray:
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * value
        if group["momentum"]:
            before = kept.get("momentum")
            kept["momentum"] = grad.copy() if before is None else group["momentum"] * before + grad
            grad = grad + group["momentum"] * kept["momentum"] if group["nesterov"] else kept["momentum"]
        return value - group["lr"] * grad


class Adam(Optimiser):
    """Adam; `weight_decay` goes through the gradient."""

    decoupled = False

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        _at_least(type(self).__name__, group, 0.0, "eps")
        if not isinstance(group["betas"], Sequence) or len(group["betas"]) != 2:
            raise InputError(type(self).__name__, "must be two numbers", field="betas", given=group["betas"])
        for beta in group["betas"]:
            _share(type(self).__name__, "betas", beta)

    def _change(self, value: np.ndarray, grad: np.ndarray, kept: Arrays, group: dict[str, Any]) -> np.ndarray:
        (beta1, beta2), lr = group["betas"], group["lr"]
        if group["weight_decay"]:
            if self.decoupled:
                value = value * (1.0 - lr * group["weight_decay"])
            else:
                grad = grad + group["weight_decay"] * value
        # Its own count: a parameter may get its first gradient later than others.
        count = kept["count"] = kept.get("count", np.zeros(1, np.int64)) + 1
        kept["first"] = beta1 * kept.get("first", np.zeros_like(value)) + (1.0 - beta1) * grad
        kept["second"] = beta2 * kept.get("second", np.zeros_like(value)) + (1.0 - beta2) * grad * grad
        unbiased1, unbiased2 = (1.0 - beta ** int(count[0]) for beta in (beta1, beta2))
        root = np.sqrt(kept["second"]) / math.sqrt(unbiased2) + group["eps"]
        return value - (lr / unbiased1) * (kept["first"] / root)


class AdamW(Adam):
    """Adam with a decay of the parameters that does not go through the gradient."""

    decoupled = True

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)


class RMSProp(Optimiser):
    """Steps over the root of the mean square of the gradients so far; `centred` uses their variance instead."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        *,
        momentum: float = 0.0,
        centred: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum, "centred": centred}
        super().__init__(parameters, **options, weight_decay=weight_decay)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        _at_least("RMSProp", group, 0.0, "eps")
        for field in ("alpha", "momentum"):
            _share("RMSProp", field, group[field])

    def _change(self, value: np.ndarray, grad: np.ndarray, kept: Arrays, group: dict[str, Any]) -> np.ndarray:
        alpha = group["alpha"]
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * value
        spread = kept["square"] = alpha * kept.get("square", np.zeros_like(value)) + (1.0 - alpha) * grad * grad
        if group["centred"]:
            kept["mean"] = alpha * kept.get("mean", np.zeros_like(value)) + (1.0 - alpha) * grad
            spread = spread - kept["mean"] * kept["mean"]
        change = grad / (np.sqrt(spread) + group["eps"])
        if group["momentum"]:
            change = kept["momentum"] = group["momentum"] * kept.get("momentum", np.zeros_like(value)) + change
        return value - group["lr"] * change


def grad_norm(parameters: Iterable[Variable]) -> float:
    """The length of all gradients together, summed in float64."""
    squares = (float(np.sum(np.square(one.grad, dtype=np.float64))) for one in parameters if one.grad is not None)
    return math.sqrt(sum(squares))


def clip_grad_norm(parameters: Iterable[Variable], most: float) -> float:
    """Scale the gradients down so that their length together is at most `most`; returns the length they had."""
    found = list(parameters)
    if not most > 0:
        raise InputError("clip_grad_norm", "must be above zero", field="most", given=most)
    norm = grad_norm(found)
    if not math.isfinite(norm):
        advice = "use a smaller rate, or look for broken rows in the data"
        raise BackendError("clip_grad_norm", "the gradient is not finite", advice=advice)
    if norm > most:
        for one in found:
            if one.grad is not None:
                one.grad = one.grad * one.dtype.type(most / (norm + 1e-6))
    return norm


def clip_grad_value(parameters: Iterable[Variable], most: float) -> None:
    """Move every element of the gradients to between -most and most."""
    if not most > 0:
        raise InputError("clip_grad_value", "must be above zero", field="most", given=most)
    for one in parameters:
        if one.grad is not None:
            one.grad = np.clip(one.grad, -most, most)
