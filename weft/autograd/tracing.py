"""Tracing a function of variables: the calls of ops that a tape would keep become instructions of a program.

A matrix of `product` and a row of `add` are trained as they are (weft/graph/grad.py). Any other use of a parameter
reads a copy, zero plus the parameter as one long row, which is a buffer and has the gradient of whatever op uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.autograd.tape import MODE
from weft.autograd.variable import Variable, broadcast, take, unreadable
from weft.dtype import DTYPES
from weft.errors import InputError, UnsupportedError
from weft.graph.grad import differentiate
from weft.graph.passes import dead_code
from weft.graph.program import Instr, Program, Value, arrange
from weft.graph.tensor import Tensor
from weft.graph.trace import Trace
from weft.ops.elementwise import add
from weft.ops.registry import Op
from weft.ops.spec import Spec
from weft.ops.training import product

FIRST, SEED, SEGMENTS = "out0", "seed", "segments"
ROWS_AS_THEY_ARE = ("add", "mul")  # ops whose second operand may be one row for all


class Traced(Variable):
    """A variable of a function that is being traced: a shape and a type, no value.

    `held` is one that depends on parameters and was computed without gradients: none may go back through it.
    """

    held = False

    def __init__(self, tensor: Tensor, dtype: Any, requires_grad: bool) -> None:
        self.tensor = tensor
        self.requires_grad = requires_grad
        self.name, self.grad, self.node, self.place = "", None, None, 0
        self._dtype = np.dtype(np.int32 if tensor.dtype.name == "i32" else dtype)

    @property
    def known(self) -> bool:
        return False

    @property  # type: ignore[misc]
    def value(self) -> np.ndarray:
        raise unreadable()

    @property
    def spec(self) -> Spec:  # type: ignore[override]
        return self.tensor.spec

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def detach(self) -> Variable:
        tracer: Any = MODE.recorder
        return tracer.held_back(self) if self.requires_grad else self

    def backward(self, grad: Any = None, *, keep: bool = False) -> None:
        advice = "return the loss and call backward() on the result"
        raise UnsupportedError("compiled", "backward() cannot be called inside a compiled function", advice=advice)

    def __repr__(self) -> str:
        return f"Traced({self.spec})"


class Integers(Traced):
    """An argument of integers: one long row in the program, whatever shape the function sees."""

    def __init__(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__(tensor, np.int32, False)
        self._shape = shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def _integers_as(self, shape: tuple[int, ...]) -> Variable:
        return Integers(self.tensor, shape)


class View(Traced):
    """A parameter under another shape. A product takes it as it is, other ops take a copy."""

    def __init__(self, tracer: Tracer, base: Variable, shape: tuple[int, ...]) -> None:
        self._tracer, self._base, self._shape = tracer, base, shape
        self.requires_grad = True
        self.name, self.grad, self.node, self.place = base.name, None, None, 0
        self._dtype = base.dtype

    @property
    def spec(self) -> Spec:  # type: ignore[override]
        return Spec(self._shape)

    @property
    def tensor(self) -> Tensor:  # type: ignore[override]
        return self._tracer.copy_of(self._base).reshape(*self._shape)

    def direct(self) -> Tensor:
        return self._tracer.direct_of(self._base, self._shape)


class Tracer:
    """Records one call of a function. `bound` says where each input's value comes from at a call."""

    def __init__(self, name: str, dtype: Any, gradients: bool) -> None:
        self.trace = Trace(name)
        self._dtype = dtype  # None until a float is seen, where all arguments are integers
        self.gradients = gradients
        self.bound: dict[str, Callable[[], np.ndarray]] = {}
        self.weights: dict[str, np.ndarray] = {}
        self.trained: dict[str, Variable] = {}
        self.stand_ins: dict[str, Variable] = {}
        self.updates: list[tuple[Variable, Traced]] = []
        self.flags: list[tuple[Any, str, Any]] = []  # what the trace holds for: an object, its attribute, the value
        self._known: dict[tuple[int, str], Tensor] = {}
        self._kept: list[Variable] = []  # whose ids are keys

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self._dtype is None else np.dtype(self._dtype)

    # What variables call (weft/autograd/tape.py: Recorder).

    def concerns(self, variable: Any) -> bool:
        return isinstance(variable, Traced) or variable.requires_grad or variable.changes

    def record(self, op: Op, operands: list[Any], attrs: dict[str, Any]) -> Any:
        depends = self.gradients and any(
            isinstance(one, Traced) and (one.requires_grad or one.held) for one in operands
        )
        if MODE.gradients:
            operands = [self.held_back(one) if isinstance(one, Traced) and one.held else one for one in operands]
        if op.name == "reshape" and not isinstance(operands[0], Traced) and self._depends(operands[0]):
            op.infer([operands[0].spec], attrs)
            return View(self, operands[0], attrs["shape"])
        if op.name in ROWS_AS_THEY_ARE and self._needs_copies(op, *operands):
            operands = [operands[0], broadcast(operands[1], operands[0].shape)]
        if op.name == "product" and operands[0].ndim == 1:  # sums over a batch are of rows
            return self.record(op, [operands[0].reshape(1, -1), operands[1]], attrs).reshape(-1)
        if op.name == "product" and self._computed(operands[1]):
            return self._pairs(operands[0], operands[1])
        trained = any(one is not None and self._depends(one) for one in operands)
        rows = operands[0].ndim > 1
        tensors = [None if one is None else self._tensor(op, i, one, rows) for i, one in enumerate(operands)]
        results = op(*tensors, **attrs)
        made = [Traced(one, self.dtype, trained) for one in (results if isinstance(results, tuple) else (results,))]
        for one in made:
            one.held = depends and not trained
        return made[0] if len(made) == 1 else tuple(made)

    def held_back(self, variable: Traced) -> Traced:
        """The same value, from which no gradient goes back.

        A product with the value as its matrix: `back` has the gradient of a matrix for trained inputs only.
        """
        one, count = np.ones((1, 1), self.dtype), variable.size
        matrix = variable.tensor.reshape(count, 1)
        row: Tensor = product(self._input((1, 1), "f32", lambda: one), matrix)
        return Traced(row.reshape(*variable.shape), self.dtype, False)

    def made_anew(self, make: Callable[[], np.ndarray], shape: tuple[int, ...]) -> Traced:
        return Traced(self._input(shape, "f32", lambda: self._floats(make())), self.dtype, False)

    def assign(self, target: Variable, result: Variable) -> None:
        assert isinstance(result, Traced)
        self.updates.append((target, result))

    def enter(self, module: Any) -> None:
        self.flags.append((module, "training", module.training))

    # Values of the program.

    def argument(self, array: np.ndarray, number: int, wanted: bool) -> Any:
        """The variable that stands for an argument; where a gradient is wanted it is used as parameters are."""
        if wanted and self.gradients:
            self.stand_ins[f"x{number}"] = Variable(array, requires_grad=True)
            return self.stand_ins[f"x{number}"]
        if array.dtype.kind == "i":
            return Integers(self.trace.input(f"x{number}", (array.size,), "i32"), array.shape)
        return Traced(self.trace.input(f"x{number}", array.shape), self.dtype, False)

    def _computed(self, matrix: Variable) -> bool:
        """Whether a matrix has a gradient, and none that `product` could train."""
        return self._depends(matrix) and isinstance(matrix, Traced) and not isinstance(matrix, View)

    def _pairs(self, x: Variable, matrix: Variable) -> Variable:
        """x [..., K] times a computed matrix [N, K]: all pairs of rows, multiplied and summed.

        This takes N times the memory of x. `back` of product has no gradient of a matrix, of these ops it has.
        """
        inner, outer, rows = x.shape[-1], matrix.shape[0], x.size // x.shape[-1]
        left = take(x.reshape(rows, inner), np.repeat(np.arange(rows), outer))
        right = take(matrix, np.tile(np.arange(outer), rows))
        return (left * right).sum(1).reshape(*x.shape[:-1], outer)

    def _depends(self, variable: Variable) -> bool:
        """Whether the variable has a gradient in this trace, here and now."""
        return self.gradients and MODE.gradients and variable.requires_grad

    def _needs_copies(self, op: Op, x: Variable, y: Variable) -> bool:
        """Whether y is one row for all whose gradient the op does not have."""
        row = self._depends(y) and y.shape != x.shape
        return row and (op.name == "mul" or isinstance(y, Traced))

    def _tensor(self, op: Op, index: int, variable: Variable, rows: bool) -> Tensor:
        role, depends = op.operands[index].role, self._depends(variable)
        if role == "weight" and (isinstance(variable, Traced) or variable.requires_grad or variable.changes):
            what = f"{op.operands[index].name} of {op.name} must be a constant in a compiled function"
            raise UnsupportedError("compiled", what, advice="use the functions and modules of weft.autograd")
        matrix = op.name == "product" and index == 1
        if matrix and isinstance(variable, View):
            return variable.direct()
        if isinstance(variable, Traced):
            return variable.tensor
        if not depends:
            return self._constant(variable, role)
        if matrix or (op.name == "add" and index == 1 and variable.ndim == 1 and rows):
            return self.direct_of(variable, variable.shape)
        return self.copy_of(variable)

    def direct_of(self, variable: Variable, shape: tuple[int, ...]) -> Tensor:
        """A parameter as an input, which an op trains."""
        return self._once(variable, f"as {shape}", lambda one: self._declared(one, shape))

    def copy_of(self, variable: Variable) -> Tensor:
        """A parameter as a buffer, which has the gradient of any op."""
        return self._once(variable, "copy", self._copy)

    def _once(self, variable: Variable, use: str, make: Callable[[Variable], Tensor]) -> Tensor:
        key = (id(variable), use)
        if key not in self._known:
            if self._dtype is None and variable.requires_grad:
                self._dtype = variable.dtype
            if variable.dtype.kind == "f" and variable.dtype != self.dtype:
                what = f"must be {self.dtype}, as the arguments are"
                raise InputError("compiled", what, field=variable.name or "parameter", given=variable.dtype)
            self._known[key] = make(variable)
            self._kept.append(variable)
        return self._known[key]

    def _constant(self, variable: Variable, role: str) -> Tensor:
        if role == "weight":
            return self._once(variable, "weight", self._weight)
        if variable.changes:
            flags = [(variable, name, getattr(variable, name)) for name in ("requires_grad", "dtype")]
            self.flags += [flag for flag in flags if flag not in self.flags]
        kind = "i32" if variable.dtype.kind == "i" else "f32"
        return self._once(variable, "input", lambda one: self._input(one.shape, kind, lambda: one.value))

    def _weight(self, variable: Variable) -> Tensor:
        """A constant that an op takes as a weight: its value at the trace stays."""
        name = f"w{len(self.weights)}"
        self.weights[name] = variable.value.astype(np.float32)
        return self.trace.weight(name, variable.shape)

    def _input(self, shape: tuple[int, ...], kind: str, value: Callable[[], np.ndarray]) -> Tensor:
        name = f"c{len(self.bound)}"
        self.bound[name] = value
        return self.trace.input(name, shape, kind)

    def _copy(self, variable: Variable) -> Tensor:
        zeros = np.zeros((1, variable.size), self.dtype)
        empty = self._input(zeros.shape, "f32", lambda: zeros)
        copied: Tensor = add(empty, self._declared(variable, (variable.size,)))
        return copied.reshape(*variable.shape)

    def _declared(self, variable: Variable, shape: tuple[int, ...]) -> Tensor:
        name = f"p{len(self.trained)}"
        self.trained[name] = variable
        self.bound[name] = lambda: variable.value.reshape(shape)
        self.flags += [(variable, "requires_grad", True), (variable, "dtype", variable.dtype)]
        return self.trace.input(name, shape, "f32")

    def _floats(self, value: Any) -> np.ndarray:
        return np.asarray(value, self.dtype)

    def program(self, outputs: Sequence[Any]) -> tuple[Program, list[str]]:
        """The program of the outputs, with gradients where there is a loss, and the names of what is trained."""
        for number, one in enumerate(outputs):
            if isinstance(one, Traced):
                self.trace.output(f"out{number}", one.tensor)
        for number, (_, result) in enumerate(self.updates):
            self.trace.output(f"new{number}", result.tensor)
        first = outputs[0]
        loss = isinstance(first, Traced) and first.requires_grad and first.size == 1
        if not loss:
            return dead_code(self.trace.program()), []
        self.trace.input(SEED, first.shape)
        self.trace.input(SEGMENTS, (2,), "i32")
        self.bound[SEED] = lambda: np.ones(first.shape, self.dtype)
        program = self.trace.program()
        wrt = [name for name in self.trained if name in _leading_to(program, FIRST)]
        return with_own_segments(differentiate(program, wrt, seeds={FIRST: SEED})), wrt


def _leading_to(program: Program, name: str) -> set[str]:
    """The values that a value depends on."""
    found = {name}
    for instr in reversed(program.body):
        if found.intersection(instr.outputs):
            found.update(instr.operands)
    return found


def with_own_segments(program: Program) -> Program:
    """Sums of gradients over a batch read segments of their own number of rows: `segments.ROWS`, [0, ROWS].

    In a model all rows are tokens; in a small network a layer may have one row per pixel and the next one per image.
    """
    values, body = {name: value for name, value in program.table.items() if name != SEGMENTS}, []
    for instr in program.body:
        inputs = list(instr.inputs)
        if SEGMENTS in inputs:
            name = f"{SEGMENTS}.{program.table[str(inputs[0])].shape[0]}"
            values[name] = Value(name, "input", DTYPES["i32"], (2,))
            inputs[inputs.index(SEGMENTS)] = name
        body.append(Instr(instr.op, tuple(inputs), instr.outputs, instr.attrs))
    return arrange(program.name, values.values(), body)
