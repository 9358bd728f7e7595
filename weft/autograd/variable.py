"""Eager variables over the catalogue: calling an op on one computes the result and notes, on a tape, how to go back.

A `Variable` is what ops call symbolic (weft/ops/registry.py), with a value. Its `record` runs the op's reference and
keeps a node (tape.py) where a gradient will be wanted, which is the op's `vjp`. While a function is compiled, the same
calls record a program instead (compilation.py).

Values are never changed in place: optimisers replace them. What a node has kept therefore stays what was computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.autograd.tape import MODE, Node, OnTape, walk_back
from weft.errors import InputError, ShapeError, UnsupportedError
from weft.ops.elementwise import add as add_op
from weft.ops.elementwise import mul, scale
from weft.ops.gather import reshape as reshape_op
from weft.ops.gather import take_rows
from weft.ops.reduce import pool
from weft.ops.registry import Op, Symbolic, catalogue
from weft.ops.spec import Spec, spec_of
from weft.ops.training import product

__all__ = ["Parameter", "Variable"]


class Variable(Symbolic, OnTape):
    """An array, float32, float64 or int32, with the gradient of a later result in `grad`.

    `requires_grad` says whether one is wanted; results of ops have it where an operand has. Python numbers and lists
    become float32.
    """

    changes = False  # whether the value is replaced between calls of a compiled function

    def __init__(self, value: Any, *, requires_grad: bool = False, name: str = "") -> None:
        self._value = _array(value)
        if requires_grad and self._value.dtype.kind != "f":
            raise InputError("autograd", "is for floats", field="requires_grad", given=self._value.dtype)
        self.requires_grad = requires_grad
        self.name = name
        self.grad = None
        self.node = None
        self.place = 0

    @property
    def known(self) -> bool:
        """Whether there is a value: while a function is compiled, its arguments and results have none."""
        return True

    @property
    def value(self) -> np.ndarray:
        """The array; replace it, do not change it."""
        if MODE.recorder is not None and self.changes:  # the program would keep what it is now
            raise unreadable()
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        new = np.ascontiguousarray(value, self._value.dtype)
        if new.shape != self._value.shape:
            raise ShapeError("autograd", f"must stay {self._value.shape}", field=self.name or "value", given=new.shape)
        self._value = new

    @property
    def spec(self) -> Spec:  # type: ignore[override]
        return spec_of(self._value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._value.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def item(self) -> float:
        """The only element."""
        if self.size != 1:
            raise InputError("item", "needs a variable of one element", given=self.shape)
        return float(self.value.reshape(-1)[0])

    def detach(self) -> Variable:
        """The same value, from which no gradient goes back."""
        if MODE.recorder is not None and self.changes:
            return MODE.recorder.made_anew(lambda: self.value, self.shape)
        return Variable(self.value)

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad = None

    def cast(self, dtype: Any) -> None:
        """Keep the value in another type of float; the gradient is forgotten. Integers stay."""
        if self._value.dtype.kind == "f":
            self._value, self.grad = self._value.astype(dtype), None

    def record(self, op: Op, operands: Sequence[Symbolic | None], attrs: dict[str, Any]) -> Any:
        given: list[Any] = list(operands)
        strange = next((one for one in given if one is not None and not isinstance(one, Variable)), None)
        if strange is not None:
            raise InputError(op.name, f"got a variable and a {type(strange).__name__} together")
        recorder = MODE.recorder
        if recorder is not None and any(one is not None and recorder.concerns(one) for one in given):
            return recorder.record(op, given, attrs)
        return _evaluated(op, given, attrs)

    def backward(self, grad: Any = None, *, keep: bool = False) -> None:
        """Add to `grad` of every variable that this one depends on, and that requires one, its gradient.

        `grad` is this variable's own gradient; it may be left out where there is one element. The tape is given up
        afterwards, unless `keep`.
        """
        if not self.requires_grad:
            advice = "use a variable with requires_grad=True in its computation, outside no_grad()"
            raise InputError("backward", "nothing that this variable depends on requires a gradient", advice=advice)
        if grad is None and self.size != 1:
            advice = "reduce the variable to a loss of one element, or pass backward(grad)"
            raise InputError("backward", "is needed: the variable has several elements", field="grad", advice=advice)
        first = np.ones(self.shape) if grad is None else np.asarray(grad, np.float64)
        if first.shape != self.shape:
            raise ShapeError("backward", f"must be {self.shape}", field="grad", given=first.shape)
        walk_back(self, first, keep)

    def __add__(self, other: Any) -> Variable:
        return add(self, other)

    def __sub__(self, other: Any) -> Variable:
        return add(self, -as_variable(other, self))

    def __rsub__(self, other: Any) -> Variable:
        return add(-self, other)

    def __mul__(self, other: Any) -> Variable:
        return multiply(self, other)

    def __truediv__(self, number: float) -> Variable:
        if not isinstance(number, (int, float, np.number)):
            raise UnsupportedError("autograd", "a variable is divided by numbers only: no op divides by a variable")
        return self * (1.0 / float(number))

    def __neg__(self) -> Variable:
        return self * -1.0

    def __matmul__(self, other: Variable) -> Variable:
        """[..., K] @ [K, N] -> [..., N]"""
        return product(self, transposed(other))

    def __getitem__(self, key: Any) -> Variable:
        """As numpy's, by slices and integers or arrays of them; a single element is [1]."""
        return picked(self, np.asarray(np.arange(self.size).reshape(self.shape)[key]))

    __radd__ = __add__
    __rmul__ = __mul__
    __array_ufunc__ = None  # numpy's operators leave the work to those above

    def reshape(self, *shape: int) -> Variable:
        """The same elements under another shape; one size may be -1."""
        if shape.count(-1) == 1:
            rest = math.prod(size for size in shape if size != -1)
            shape = tuple(self.size // rest if size == -1 and rest else size for size in shape)
        if self.dtype.kind == "i":
            return self._integers_as(shape)
        return reshape_op(self, shape=shape)

    def _integers_as(self, shape: tuple[int, ...]) -> Variable:
        """No op reshapes integers: their shape only says where results go."""
        if math.prod(shape) != self.size:
            raise ShapeError("reshape", f"must have the {self.size} elements", field="shape", given=shape)
        return Variable(self.value.reshape(shape))

    def sum(self, axis: int | None = None) -> Variable:
        """The sum of all elements [1], or over one axis, which is then gone."""
        mean = self.mean(axis)
        return mean * float(self.size // mean.size)

    def mean(self, axis: int | None = None) -> Variable:
        """The mean of all elements [1], or over one axis, which is then gone."""
        return reduced(self, axis, "mean")

    def max(self, axis: int | None = None) -> Variable:
        """The largest element [1], or that of every row along one axis. Of equal ones the first has the gradient."""
        return reduced(self, axis, "max")

    def __repr__(self) -> str:
        kept = ", requires_grad" if self.requires_grad else ""
        return f"Variable({np.array2string(self.value, threshold=20, precision=4)}, {self.dtype}{kept})"


class Parameter(Variable):
    """A variable that is trained. Modules find theirs by this type."""

    changes = True

    def __init__(self, value: Any, name: str = "") -> None:
        super().__init__(value, requires_grad=True, name=name)


def unreadable() -> UnsupportedError:
    """What reading a value is while a function is traced."""
    advice = "return the variable and read its value outside, or do not compile the function"
    return UnsupportedError("compiled", "a compiled function cannot read values while it is traced", advice=advice)


def as_variable(value: Any, like: Variable | None = None) -> Variable:
    """`value` as a variable, an array as one without a gradient; floats get the type of `like`."""
    if isinstance(value, Variable):
        return value
    array = np.asarray(value)
    return Variable(array.astype(like.dtype) if like is not None and array.dtype.kind == "f" else value)


def constant(array: Any, like: Variable) -> Variable:
    """Floats that a function knows, in the type of `like`."""
    return Variable(np.asarray(array, like.dtype))


def made_anew(make: Callable[[], np.ndarray], shape: tuple[int, ...], like: Variable) -> Variable:
    """What `make` returns, floats of this shape in the type of `like`; a compiled function asks at every call.

    For what is not computed by ops: masks of dropout, statistics that change between calls.
    """
    if MODE.recorder is not None:
        return MODE.recorder.made_anew(make, shape)
    return constant(make(), like)


def assign(target: Variable, result: Variable) -> None:
    """Give `target` the value of `result`; a compiled function does at every call."""
    if MODE.recorder is not None:
        MODE.recorder.assign(target, result)
    else:
        target.value = result.value


def add(x: Any, y: Any) -> Variable:
    """x + y, shapes as numpy broadcasts them."""
    x, y = _pair(x, y)
    return add_op(x, y)


def multiply(x: Any, y: Any) -> Variable:
    """x * y, shapes as numpy broadcasts them."""
    if isinstance(y, (int, float, np.number)) and isinstance(x, Variable):
        return scale(x, by=float(y))
    x, y = _pair(x, y)
    return mul(x, y)


def _pair(x: Any, y: Any) -> tuple[Variable, Variable]:
    """Both as variables of one shape, or y a row of x: ops broadcast rows by themselves."""
    x = as_variable(x, y if isinstance(y, Variable) else None)
    y = as_variable(y, x)
    if y.shape == x.shape or y.shape == x.shape[-1:]:
        return x, y
    if x.shape == y.shape[-1:]:
        return y, x
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        raise ShapeError("autograd", f"cannot be combined with {x.shape}", field="shape", given=y.shape) from None
    return broadcast(x, shape), broadcast(y, shape)


def broadcast(x: Variable, shape: tuple[int, ...]) -> Variable:
    """x repeated to this shape, as numpy broadcasts."""
    if x.shape == shape:
        return x
    try:
        index = np.broadcast_to(np.arange(x.size).reshape(x.shape), shape)
    except ValueError:
        raise ShapeError("broadcast", f"must broadcast to {shape}", field="shape", given=x.shape) from None
    return picked(x, index)


def transposed(x: Variable, axes: tuple[int, ...] | None = None) -> Variable:
    """x with its axes in this order, by default turned around."""
    return picked(x, np.arange(x.size).reshape(x.shape).transpose(axes))


def picked(x: Variable, index: np.ndarray) -> Variable:
    """The elements of x, counted through, at these indices: an array of the index's shape.

    Runs of neighbours that all places of the result's last axes have are moved as rows.
    """
    if not index.size:
        raise ShapeError("autograd", "must select at least one element", field="index", given=index.shape)
    shape = index.shape or (1,)
    width = 1
    for trailing in range(len(shape), 0, -1):
        wide = math.prod(shape[len(shape) - trailing :])
        runs = index.reshape(-1, wide)
        if x.size % wide == 0 and (runs[:, 0] % wide == 0).all() and (runs == runs[:, :1] + np.arange(wide)).all():
            width = wide
            break
    rows = Variable((index.reshape(-1, width)[:, 0] // width).astype(np.int32))
    return take_rows(x.reshape(x.size // width, width), rows).reshape(*shape)


def take(x: Variable, rows: Any) -> Variable:
    """Rows of x [T, D] at `rows`, an array of any shape [...] -> [..., D]"""
    rows = as_variable(rows)
    if rows.dtype.kind != "i":
        raise InputError("autograd", "must be integers", field="rows", given=rows.dtype)
    found = take_rows(x, rows.reshape(rows.size))
    return found if rows.ndim == 1 else found.reshape(*rows.shape, x.shape[-1])


def reduced(x: Variable, axis: int | None, mode: str) -> Variable:
    """The mean or largest of all elements [1], or over one axis, which is then gone."""
    if axis is None:
        while x.ndim > 1:  # axis by axis: shorter sums have smaller errors
            x = reduced(x, -1, mode)
        return reduced(x, 0, mode)
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError("autograd", f"must be an axis of {x.shape}", field="axis", given=axis)
    axis %= x.ndim
    before, count, after = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    rest = (*x.shape[:axis], *x.shape[axis + 1 :]) or (1,)
    if mode == "mean" and after == 1:  # a product sums all rows at once
        return product(x.reshape(before, count), constant(np.full((1, count), 1.0 / count), x)).reshape(*rest)
    starts = Variable(np.arange(0, before * count + 1, count, dtype=np.int32))
    return pool(x.reshape(before * count, after), starts, mode=mode).reshape(*rest)


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Variable):
        raise InputError("autograd", "a variable cannot hold another one", advice="use its .value, or .detach()")
    array = np.asarray(value)
    if array.dtype.kind == "f":
        wanted: Any = array.dtype if isinstance(value, (np.ndarray, np.generic)) else np.float32
        wanted = wanted if wanted in (np.float32, np.float64) else np.float32
    elif array.dtype.kind in "iub":
        wanted = np.int32
        if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
            raise InputError("autograd", "integers must fit 32 bits", given=array.max())
    else:
        raise InputError("autograd", "a variable holds floats or integers", given=array.dtype)
    return np.ascontiguousarray(array, wanted).reshape(array.shape or (1,))


def _evaluated(op: Op, operands: list[Variable | None], attrs: dict[str, Any]) -> Any:
    values = [None if one is None else one.value for one in operands]
    computed = op(*values, **attrs)
    results = [Variable(value) for value in (computed if isinstance(computed, tuple) else (computed,))]
    if MODE.gradients and any(one is not None and one.requires_grad for one in operands):
        node = Node(op.name, operands, len(results), lambda *grads: _gradients(op, grads, values, attrs))
        node.attach(results)
    return results[0] if len(results) == 1 else tuple(results)


def _gradients(op: Op, grads: Sequence[np.ndarray], values: list[Any], attrs: dict[str, Any]) -> Sequence[Any]:
    """The gradients of an op's operands, in float64, by its `vjp`."""
    catalogue()  # with it come all gradients
    if op.gradient is None:
        why = op.gradient_refused or "nobody has written it"
        raise UnsupportedError("backward", f"{op.name} has no gradient: {why}")
    wide = [one.astype(np.float64) if one is not None and one.dtype.kind == "f" else one for one in values]
    return op.gradient(grads[0] if len(grads) == 1 else list(grads), *wide, **attrs)
