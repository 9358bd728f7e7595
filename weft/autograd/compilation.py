"""`@compiled`: a function of variables becomes a program, once per shape; a call is one step of a backend.

Parameters that the function uses are inputs of the program, read at every call, and their gradients outputs; `backward`
on the result of a call hands them out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.autograd.tape import MODE, Node
from weft.autograd.tracing import SEGMENTS, Traced, Tracer
from weft.autograd.variable import Variable, as_variable
from weft.backends import open_backend
from weft.backends.base import Backend, Executable
from weft.backends.reference import ReferenceBackend
from weft.errors import InputError, ShapeError, UnsupportedError
from weft.graph.grad import GRAD, INTO
from weft.graph.passes import decompose
from weft.graph.plan import plan
from weft.graph.program import Program
from weft.runtime.threads import plan_threads


class Plan:
    """A traced function, compiled for a backend."""

    def __init__(self, tracer: Tracer, outputs: tuple[Any, ...], alone: bool, backend: Backend) -> None:
        self._outputs, self._alone, self._tracer = outputs, alone, tracer
        program, self._wrt = tracer.program(outputs)
        # Without the passes for models: one takes rows before elementwise ops, and a convolution takes a row often.
        self.program = plan(decompose(program, backend.supports))
        wanted = {value.name for value in self.program.weights}
        weights = {name: value for name, value in tracer.weights.items() if name in wanted}
        self._executable: Executable = backend.compile(self.program, weights, {})
        self._inputs = [value.name for value in self.program.inputs]
        self._limits = _limits(self.program)
        self._zeros = {INTO + name: self._zero(INTO + name) for name in self._wrt}

    def _zero(self, name: str) -> np.ndarray:
        shape: Any = self.program.table[name].shape
        return np.zeros(shape, self._tracer.dtype)

    def holds(self) -> bool:
        """Whether modules and parameters are in the mode that they were traced in."""
        return all(getattr(thing, name) == value for thing, name, value in self._tracer.flags)

    def run(self, arguments: dict[str, np.ndarray], variables: dict[str, Any]) -> Any:
        """The results for these arrays; `variables` are the arguments that they come from."""
        for name, one in self._tracer.stand_ins.items():
            one.value = arguments[name]
        given = {name: _writable(self._given(name, arguments)) for name in self._inputs}
        self._check_integers(given)
        found = self._executable.run(given)
        results = [
            Variable(np.asarray(found[f"out{number}"], one.dtype)) if isinstance(one, Traced) else one
            for number, one in enumerate(self._outputs)
        ]
        for number, (target, _) in enumerate(self._tracer.updates):
            target.value = found[f"new{number}"]
        if self._wrt:
            actual = {id(one): variables[name] for name, one in self._tracer.stand_ins.items()}
            trained = [actual.get(id(one), one) for one in (self._tracer.trained[name] for name in self._wrt)]
            _hand_out(results[0], trained, [found[GRAD + name] for name in self._wrt])
        return results[0] if self._alone else tuple(results)

    def _given(self, name: str, arguments: dict[str, np.ndarray]) -> np.ndarray:
        if name in arguments:
            array = arguments[name]
            return array.reshape(-1) if array.dtype.kind == "i" else array
        if name in self._zeros:
            return self._zeros[name]
        if name.startswith(SEGMENTS):
            return np.asarray([0, int(name.partition(".")[2])], np.int32)
        return self._tracer.bound[name]()

    def _check_integers(self, given: dict[str, np.ndarray]) -> None:
        """Kernels trust the rows and segments that they are given."""
        for name, (most, whole) in self._limits.items():
            array = given[name]
            inside = array.min() >= 0 and array.max() <= most
            if not inside:
                wrong = int(array.min() if array.min() < 0 else array.max())
                raise InputError("compiled", f"must be 0 to {most}", field=_told(name), given=wrong)
            if whole and (array[0] != 0 or array[-1] != most or (np.diff(array) < 0).any()):
                raise InputError("compiled", f"must rise from 0 to {most}", field=_told(name), given=array.tolist())


def _hand_out(loss: Variable, trained: list[Variable], gradients: list[np.ndarray]) -> None:
    """Make `loss` the result of a node whose gradients are known: they are multiplied by that of the loss."""

    def back(grad: np.ndarray) -> list[np.ndarray]:
        by = float(grad.reshape(-1)[0])
        return [found.astype(np.float64).reshape(one.shape) * by for found, one in zip(gradients, trained)]

    Node("compiled", trained, 1, back).attach([loss])


def _writable(array: np.ndarray) -> np.ndarray:
    """The core takes no arrays that are read-only, as those of mapped files are."""
    return array if array.flags.writeable else array.copy()


def _limits(program: Program) -> dict[str, tuple[int, bool]]:
    """The largest number that each integer input may hold, and whether it has to rise to it from zero."""
    found: dict[str, tuple[int, bool]] = {}
    for instr in program.body:
        for operand, name in zip(instr.meaning.operands, instr.inputs):
            if name is None or operand.role != "integers" or program.table[name].kind != "input":
                continue
            if operand.name == "segments":
                tokens = 1 if instr.op == "pool_back" else 0  # the operand that has all rows
                most: Any = (program.table[str(instr.inputs[tokens])].shape[0], True)
            elif instr.op == "put_rows":
                most = (program.table[instr.outputs[0]].shape[0] - 1, False)
            elif instr.op == "take_rows":
                most = (program.table[str(instr.inputs[0])].shape[0] - 1, False)
            else:
                raise UnsupportedError("compiled", f"{operand.name} of {instr.op} cannot be an argument")
            found[name] = min(found.get(name, most), most)
    return found


def _told(name: str) -> str:
    """What an input is called in an error: arguments by their place, from 0."""
    return f"argument {name[1:]}" if name.startswith("x") else "indices"


MAX_PLANS = 64  # of a function; the one that was used longest ago is given up


class Compiled:
    """A function whose calls run as one program. Made by `compiled`."""

    def __init__(self, function: Callable[..., Any], backend: str | Backend | None, threads: int | None) -> None:
        functools.update_wrapper(self, function)
        self._function, self._backend, self._threads = function, backend, threads
        self._plans: dict[Any, list[Plan]] = {}
        self._opened: dict[Any, Backend] = {}

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    @property
    def programs(self) -> list[Program]:
        """The programs that calls have been traced into so far."""
        return [one.program for plans in self._plans.values() for one in plans]

    def __call__(self, *arguments: Any) -> Any:
        if MODE.recorder is not None:  # part of another compiled function
            return self._function(*arguments)
        given = [self._array(one) for one in arguments]
        kinds = {one.dtype for one in given if one is not None and one.dtype.kind == "f"}
        if len(kinds) > 1:
            raise InputError("compiled", "arguments must be all float32 or all float64", given=sorted(map(str, kinds)))
        dtype = kinds.pop() if kinds else None
        shapes = [
            one if array is None else (array.shape, array.dtype.kind, _wanted(one))
            for one, array in zip(arguments, given)
        ]
        chosen = self._planned((dtype, MODE.gradients, *shapes), lambda: self._traced(arguments, given, dtype))
        arrays = {f"x{number}": array for number, array in enumerate(given) if array is not None}
        return chosen.run(arrays, {f"x{number}": one for number, one in enumerate(arguments)})

    def _planned(self, key: Any, make: Callable[[], Plan]) -> Plan:
        """The plan for these shapes and settings, for modules and parameters in the mode they are in."""
        try:
            known = self._plans.pop(key, [])
        except TypeError:
            advice = "pass arrays, variables, or values that can be keys of a dictionary"
            raise InputError("compiled", "cannot be compared between calls", field="arguments", given=key[2:],
                             advice=advice) from None  # fmt: skip
        self._plans[key] = known  # now the one that was used last
        chosen = next((one for one in known if one.holds()), None)
        if chosen is None:
            chosen = make()
            known.append(chosen)
            if len(self.programs) > MAX_PLANS:
                del self._plans[next(iter(self._plans))]
        return chosen

    def _traced(self, arguments: Sequence[Any], given: Sequence[np.ndarray | None], dtype: Any) -> Plan:
        tracer = Tracer(getattr(self._function, "__name__", "function"), dtype, MODE.gradients)
        passed = [
            one if array is None else tracer.argument(array, number, _wanted(one))
            for number, (one, array) in enumerate(zip(arguments, given))
        ]
        with _recording(tracer):
            results = self._function(*passed)
        outputs = results if isinstance(results, tuple) else (results,)
        if not outputs or not all(isinstance(one, Variable) for one in outputs):
            raise InputError("compiled", "the function must return a variable or a tuple of them", given=results)
        if not any(isinstance(one, Traced) for one in outputs):
            raise InputError("compiled", "the result depends on no argument and no parameter")
        return Plan(tracer, outputs, not isinstance(results, tuple), self._open(tracer.dtype))

    def _open(self, dtype: Any) -> Backend:
        if dtype not in self._opened:
            self._opened[dtype] = self._made(dtype)
        return self._opened[dtype]

    @property
    def _in_numpy(self) -> bool:
        return self._backend == "reference" or isinstance(self._backend, ReferenceBackend)

    def _made(self, dtype: Any) -> Backend:
        if self._in_numpy:
            return ReferenceBackend(wide=dtype == np.float64)
        if dtype == np.float64:
            what = "this backend computes in float32, and there are float64 variables"
            raise UnsupportedError("compiled", what, advice='use float32, or compiled(backend="reference")')
        return open_backend(self._backend, threads=plan_threads(self._threads).count)

    def _array(self, argument: Any) -> np.ndarray | None:
        """The array of an argument; None for a setting. Arrays become float32 where the backend computes in it."""
        if not isinstance(argument, (Variable, np.ndarray)):
            return None
        array = as_variable(argument).value
        if not array.size:
            raise ShapeError("compiled", "an argument must not be empty", given=array.shape)
        narrow = not self._in_numpy and isinstance(argument, np.ndarray) and array.dtype.kind == "f"
        return array.astype(np.float32, copy=False) if narrow else array


def compiled(
    function: Callable[..., Any] | None = None, *, backend: str | Backend | None = None, threads: int | None = None
) -> Any:
    """Run `function` as a program: traced at the first call with arguments of new shapes, then one step of a backend.

    Arguments are arrays, variables, or values that decide what is traced. The function returns a variable or a tuple of
    them; where the first has one element, it is the loss, and its `backward()` gives the gradients of all parameters
    that the function used. Others have no gradient. A module's train() and eval() are noticed.

    `backend` is "cpu" (float32) or "reference" (numpy, float64 too).
    """
    if function is None:
        return functools.partial(compiled, backend=backend, threads=threads)
    return Compiled(function, backend, threads)


@contextmanager
def _recording(tracer: Tracer) -> Iterator[None]:
    before, MODE.recorder = MODE.recorder, tracer
    try:
        yield
    finally:
        MODE.recorder = before


def _wanted(argument: Any) -> bool:
    return isinstance(argument, Variable) and argument.requires_grad
