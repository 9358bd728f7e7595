"""`Module`: named parameters and a function of them. What a module holds is found among its attributes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from weft.autograd.tape import MODE
from weft.autograd.variable import Parameter, Variable, as_variable
from weft.errors import InputError, UnsupportedError, WeightError

Same = TypeVar("Same", bound="Module")


class Buffer(Variable):
    """A variable of a module that is saved with it and not trained, as running statistics."""

    changes = True


class Module:
    """Parameters, buffers and other modules as attributes, and `forward`, a function of variables.

    Lists and dictionaries of modules count as attributes of their own: `self.layers[0].weight` is `layers.0.weight`.
    `training` says whether the module is being trained: dropout and batch norm compute something else then.
    """

    training = True

    def forward(self, *inputs: Any) -> Any:
        raise UnsupportedError("autograd", f"{type(self).__name__} has no forward()", advice="define it in the class")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if MODE.recorder is not None:
            MODE.recorder.enter(self)
        return self.forward(*inputs, **options)

    # What is in it.

    def children(self) -> Iterator[tuple[str, Any]]:
        """Modules, parameters and buffers of this module, with their names, in the order they were set."""
        for name, value in vars(self).items():
            yield from _held(name, value)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        yield self
        for _, child in self.children():
            if isinstance(child, Module):
                yield from child.modules()

    def named_variables(self, kind: type[Variable], prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Variables of this kind, each once, with their full names."""
        seen: set[int] = set()
        for name, one in self._all(kind, prefix):
            if id(one) not in seen:  # a parameter that two modules share is trained and saved once
                seen.add(id(one))
                yield name, one

    def _all(self, kind: type[Variable], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, child in self.children():
            if isinstance(child, Module):
                yield from child._all(kind, f"{prefix}{name}.")
            elif isinstance(child, kind):
                yield prefix + name, child

    def named_parameters(self) -> dict[str, Parameter]:
        """What is trained, by name."""
        return dict(self.named_variables(Parameter))

    def parameters(self) -> list[Parameter]:
        """What is trained."""
        return list(self.named_parameters().values())

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for one in self.parameters():
            one.zero_grad()

    # Modes and types.

    def train(self: Same, training: bool = True) -> Same:
        """Compute as in training, here and below."""
        for module in self.modules():
            module.training = training
        return self

    def eval(self: Same) -> Same:
        """Compute as in use: no dropout, and batch norm with its running statistics."""
        return self.train(False)

    def to(self: Same, dtype: Any) -> Same:
        """Parameters and buffers in this type, float32 or float64; gradients are forgotten."""
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise InputError("autograd", "must be float32 or float64", field="dtype", given=dtype)
        for _, one in self.named_variables(Variable):
            one.cast(dtype)
        return self

    # Saving.

    def state_dict(self) -> dict[str, np.ndarray]:
        """The values of all parameters and buffers, by name."""
        kept = dict(self.named_variables(Variable))
        return {name: one.value.copy() for name, one in kept.items() if isinstance(one, (Parameter, Buffer))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all parameters and buffers; WeightError where one is missing, left over or of another shape."""
        wanted = {name: one for name, one in self.named_variables(Variable) if isinstance(one, (Parameter, Buffer))}
        missing, over = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
        if missing or over:
            what = f"values do not belong to this module: missing {missing or 'none'}, left over {over or 'none'}"
            raise WeightError("load_state_dict", what)
        arrays = {name: np.asarray(value) for name, value in state.items()}
        for name, one in wanted.items():
            if arrays[name].shape != one.shape:
                raise WeightError("load_state_dict", f"must be {one.shape}", field=name, given=arrays[name].shape)
        for name, one in wanted.items():
            one.value = np.array(arrays[name])  # a copy: it may be a mapped file, or be changed by its owner

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and buffers to a safetensors file."""
        from weft.weights.safetensors import write_safetensors

        write_safetensors(path, self.state_dict(), {"format": "weft.autograd"})

    def load(self: Same, path: str | os.PathLike[str]) -> Same:
        """Set parameters and buffers from a safetensors file; returns the module."""
        from weft.weights.safetensors import open_safetensors

        with open_safetensors(path) as file:
            self.load_state_dict({name: file[name].numpy() for name in file.tensors})
        return self

    def __repr__(self) -> str:
        inside = [name for name, child in self.children() if isinstance(child, Module)]
        count = sum(one.size for one in self.parameters())
        return f"{type(self).__name__}({', '.join(inside)}; {count} parameters)"


def _held(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (Module, Parameter, Buffer)):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _held(f"{name}.{number}", one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _held(f"{name}.{key}", one)


class Sequential(Module):
    """Modules, or functions of one variable, one after another."""

    def __init__(self, *layers: Any) -> None:
        self.layers = list(layers)

    def children(self) -> Iterator[tuple[str, Any]]:
        yield from ((str(number), one) for number, one in enumerate(self.layers) if isinstance(one, Module))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def __getitem__(self, index: int) -> Any:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)


def given(x: Any, like: Variable) -> Variable:
    """An input of a module as a variable; arrays get the type of its parameters."""
    x = as_variable(x, like)
    if x.dtype.kind == "f" and x.dtype != like.dtype:
        advice = f"use x.astype('{like.dtype}'), or module.to('{x.dtype}')"
        raise InputError("autograd", f"must be {like.dtype}, as the parameters are", field="x", given=x.dtype,
                         advice=advice)  # fmt: skip
    return x
