"""LSTM and GRU: cells of one step, and layers over sequences. Weights are laid out as in PyTorch, gate under gate."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.autograd import functions
from weft.autograd.modules.layers import bounded, sizes
from weft.autograd.modules.module import Module, given
from weft.autograd.randomness import generator
from weft.autograd.variable import Variable, as_variable, constant, take
from weft.errors import ShapeError
from weft.ops.elementwise import activate


class _Cell(Module):
    """Products of the input and of the state, one gate beside the other."""

    gates = 0

    def __init__(self, inputs: int, size: int, bias: bool = True, *, seed: int | None = None) -> None:
        sizes(type(self).__name__, inputs=inputs, size=size)
        rng, wide = generator(seed), self.gates * size
        self.inputs, self.size = inputs, size
        self.weight_ih = bounded((wide, inputs), size, rng)
        self.weight_hh = bounded((wide, size), size, rng)
        self.bias_ih = bounded((wide,), size, rng) if bias else None
        self.bias_hh = bounded((wide,), size, rng) if bias else None

    def _checked(self, x: Any) -> Variable:
        x = given(x, self.weight_ih)
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ShapeError(type(self).__name__, f"must be [rows, {self.inputs}]", field="x", given=x.shape)
        return x

    def _state(self, state: Any, x: Variable) -> Variable:
        wanted = (x.shape[0], self.size)
        if state is None:
            return constant(np.zeros(wanted), x)
        state = given(state, self.weight_hh)
        if state.shape != wanted:
            raise ShapeError(type(self).__name__, f"must be {list(wanted)}", field="state", given=state.shape)
        return state

    def _split(self, x: Variable) -> list[Variable]:
        """[rows, gates * size] as one variable for each gate."""
        flat = x.reshape(x.shape[0] * self.gates, self.size)
        return [take(flat, np.arange(gate, flat.shape[0], self.gates)) for gate in range(self.gates)]

    def _parts(self, x: Variable, h: Variable) -> tuple[Variable, Variable]:
        """What comes from the input and what from the state, all gates together."""
        from_x = functions.linear(x, self.weight_ih, self.bias_ih)
        return from_x, functions.linear(h, self.weight_hh, self.bias_hh)


class LSTMCell(_Cell):
    """One step.  x [rows, inputs], state (h, c), each [rows, size], zeros if absent -> (h, c)"""

    gates = 4

    def forward(self, x: Any, state: tuple[Any, Any] | None = None) -> tuple[Variable, Variable]:
        x = self._checked(x)
        h, c = (self._state(one, x) for one in (state or (None, None)))
        from_x, from_h = self._parts(x, h)
        enter, forget, new, out = self._split(from_x + from_h)
        kept = activate(forget, kind="sigmoid") * c
        c = kept + activate(enter, kind="sigmoid") * activate(new, kind="tanh")
        return activate(out, kind="sigmoid") * activate(c, kind="tanh"), c


class GRUCell(_Cell):
    """One step.  x [rows, inputs], h [rows, size], zeros if absent -> h"""

    gates = 3

    def forward(self, x: Any, h: Any = None) -> Variable:
        x = self._checked(x)
        h = self._state(h, x)
        (reset_x, keep_x, new_x), (reset_h, keep_h, new_h) = map(self._split, self._parts(x, h))
        reset, keep = activate(reset_x + reset_h, kind="sigmoid"), activate(keep_x + keep_h, kind="sigmoid")
        new = activate(new_x + reset * new_h, kind="tanh")
        return new + keep * (h - new)


class _Layer(Module):
    """A cell over the time axis: x [rows, time, inputs] -> [rows, time, size] and the last state."""

    cell: Any

    def forward(self, x: Any, state: Any = None) -> tuple[Variable, Any]:
        x = as_variable(x, self.cell.weight_ih)
        if x.ndim != 3:
            raise ShapeError(type(self).__name__, "must be [rows, time, inputs]", field="x", given=x.shape)
        rows, time, inputs = x.shape
        steps = []
        for step in range(time):
            now = take(x.reshape(rows * time, inputs), np.arange(step, rows * time, time))
            state = self.cell(now, state)
            h = state[0] if isinstance(state, tuple) else state
            steps.append(h.reshape(rows, 1, h.shape[1]))
        return functions.concat(steps, 1), state


class LSTM(_Layer):
    """An LSTM over sequences; returns every step's h, and the last (h, c)."""

    def __init__(self, inputs: int, size: int, bias: bool = True, *, seed: int | None = None) -> None:
        self.cell = LSTMCell(inputs, size, bias, seed=seed)


class GRU(_Layer):
    """A GRU over sequences; returns every step's h, and the last h."""

    def __init__(self, inputs: int, size: int, bias: bool = True, *, seed: int | None = None) -> None:
        self.cell = GRUCell(inputs, size, bias, seed=seed)
