"""Running a model into a program: a trace hands out symbolic inputs, weights and states, and records the ops called."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from weft.dtype import DType
from weft.errors import InputError
from weft.graph.program import NAME, Instr, Program, Value, arrange
from weft.graph.tensor import Tensor
from weft.graph.verify import verify
from weft.ops.elementwise import scale
from weft.ops.registry import Op, Symbolic
from weft.ops.spec import Shape, Spec, as_dtype


class Trace:
    """Records one model.

    with Trace("toy") as trace:
        ids = trace.input("ids", (T,), "i32")
        x = embedding(ids, trace.weight("embed.weight", (100, 64)))
        trace.output("hidden", x)
    program = trace.program()
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropout: float | None = 0.0  # the part that models leave out while they learn; None for their own rates
        self.sites = 0  # places where they do so
        # Of a rotated model, ends of the names of modules whose inputs are turned first, and strides: nn/layers.py
        self.turned: Mapping[str, int] = {}
        self.constants: dict[str, np.ndarray] = {}
        self._declared: dict[str, Tensor] = {}
        self._results: list[Tensor] = []
        self._body: list[tuple[Op, tuple[Tensor | None, ...], tuple[Tensor, ...], dict[str, Any]]] = []
        self._outputs: dict[str, Tensor] = {}

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and not self._outputs and not any(op.effect for op, *_ in self._body):
            raise InputError("trace", f"{self.name} has no output", advice="call trace.output(name, tensor)")

    # Declarations.

    def input(self, name: str, shape: Shape, dtype: str | DType = "f32") -> Tensor:
        """An array that every step supplies."""
        return self._declare(name, "input", Spec(tuple(shape), as_dtype(dtype)))

    def weight(self, name: str, shape: Shape, dtype: str | DType = "f32") -> Tensor:
        """A tensor of the model. Declaring it again returns the same one; shape and type must be the same."""
        return self._declare(name, "weight", Spec(tuple(shape), as_dtype(dtype)))

    def constant(self, name: str, values: np.ndarray) -> Tensor:
        """A float32 weight whose values the model knows (rope frequencies); `constants` keeps them for the loader."""
        values = np.ascontiguousarray(values, np.float32)
        known = self.constants.setdefault(name, values)
        if not np.array_equal(known, values):
            raise InputError("trace", f"the constant {name} is declared twice with different values")
        return self.weight(name, values.shape)

    def kv(self, name: str, shape: Shape, dtype: str | DType = "f32") -> Tensor:
        """The paged keys and values of one layer [heads, dim]."""
        return self._declare(name, "kv", Spec(tuple(shape), as_dtype(dtype)))

    def recurrent(self, name: str, shape: Shape, dtype: str | DType = "f32") -> Tensor:
        """The recurrent state of one layer: an array of this shape for each sequence."""
        return self._declare(name, "recurrent", Spec(tuple(shape), as_dtype(dtype)))

    def conv(self, name: str, shape: Shape, dtype: str | DType = "f32") -> Tensor:
        """The state of a causal convolution [channels, width]: the last width - 1 inputs of each sequence."""
        return self._declare(name, "conv", Spec(tuple(shape), as_dtype(dtype)))

    def table(self, name: str, shape: Shape, dtype: str | DType = "f32") -> Tensor:
        """The adapters of one weight [rows, cols]."""
        return self._declare(name, "table", Spec(tuple(shape), as_dtype(dtype)))

    def output(self, name: str, tensor: Tensor) -> None:
        """Make a tensor a result of the program."""
        if name in self._declared or name in self._outputs or not NAME.fullmatch(name):
            raise InputError("trace", "not a valid name for an output, or already used", given=name)
        self._outputs[name] = tensor

    def label(self, tensor: Tensor, label: str) -> Tensor:
        """Label a result; inputs, weights and states have their names already."""
        if not NAME.fullmatch(label):
            raise InputError("trace", "not a label", given=label, advice="use letters, digits and ._-/:")
        tensor.label = label
        return tensor

    def _declare(self, name: str, kind: str, spec: Spec) -> Tensor:
        if not NAME.fullmatch(name):
            raise InputError("trace", "not a name", given=name, advice="use letters, digits and ._-/:")
        known = self._declared.setdefault(name, Tensor(self, name, kind, spec))
        if (known.kind, known.spec) != (kind, spec):
            raise InputError(
                "trace", f"{name} is already declared as {known.kind} {known.spec}", given=f"{kind} {spec}"
            )
        return known

    # Recording.

    def record(self, op: Op, operands: Sequence[Symbolic | None], attrs: dict[str, Any]) -> Any:
        """Append an instruction; returns its results as ops do: one alone, several as a tuple, none as None."""
        given = tuple(self._own(op, operand) for operand in operands)
        if op.name == "reshape" and given[0] is not None and given[0].kind != "buffer":
            given = (scale(given[0], by=1.0),)  # a reshape shares its operand's slot, so the operand needs one
        specs = op.infer([None if tensor is None else tensor.spec for tensor in given], attrs)
        results = tuple(Tensor(self, f"%{len(self._results) + i}", "buffer", spec) for i, spec in enumerate(specs))
        self._results += results
        self._body.append((op, given, results, attrs))
        return None if not results else results[0] if len(results) == 1 else results

    def _own(self, op: Op, operand: Symbolic | None) -> Tensor | None:
        if operand is None:
            return None
        if not isinstance(operand, Tensor) or operand.trace is not self:
            raise InputError(op.name, f"the operand {operand!r} belongs to another trace")
        return operand

    @property
    def recorded(self) -> Sequence[tuple[Op, tuple[Tensor | None, ...], tuple[Tensor, ...], dict[str, Any]]]:
        """The ops so far, in order: each with its operands, results and attributes."""
        return tuple(self._body)

    def program(self) -> Program:
        """The verified program of what was recorded, unoptimised and unplanned."""
        renamed = self._place_outputs()
        values = [Value(t.name, t.kind, t.dtype, t.shape) for t in self._declared.values()]
        for tensor in self._results:
            name = renamed.get(tensor, f"{tensor.name}.{tensor.label}" if tensor.label else tensor.name)
            values.append(Value(name, "output" if tensor in renamed else "buffer", tensor.dtype, tensor.shape))
        final = {tensor: value.name for tensor, value in zip([*self._declared.values(), *self._results], values)}
        body = [
            Instr(
                op.name, tuple(None if t is None else final[t] for t in given), tuple(final[t] for t in results), attrs
            )
            for op, given, results, attrs in self._body
        ]
        program = arrange(self.name, values, body)
        verify(program)
        return program

    def _place_outputs(self) -> dict[Tensor, str]:
        """The name of the output that each tensor is written to.

        A tensor that cannot be one (declared, reshaped, or an output already) is copied, so that an output is always
        written by exactly one op and never shares its memory.
        """
        renamed: dict[Tensor, str] = {}
        for name, tensor in list(self._outputs.items()):
            reshaped = any(
                op.name == "reshape" and tensor in (*given, *results) for op, given, results, _ in self._body
            )
            if tensor.kind != "buffer" or reshaped or tensor in renamed:
                tensor = self._outputs[name] = scale(tensor, by=1.0)
            renamed[tensor] = name
        return renamed
