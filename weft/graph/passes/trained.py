"""Weights that are trained: the program reads them as inputs."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from weft.dtype import DTYPES
from weft.errors import InputError, UnsupportedError
from weft.graph.program import Instr, Program, Value, arrange

if TYPE_CHECKING:
    import numpy as np

NORMS = ("rms_norm", "layer_norm")


def trainable(program: Program) -> dict[str, tuple[int, ...]]:
    """The weights that `with_trained` can make inputs, and their shapes; constants of the model are among them."""
    found = {}
    for value in program.weights:
        readers = program.readers[value.name]
        if len(readers) == 1 and _rewriting(program, program.body[readers[0]], value.name):
            found[value.name] = tuple(int(size) for size in value.shape)  # type: ignore[arg-type]
    return found


def with_trained(program: Program, names: Collection[str]) -> tuple[Program, dict[str, "np.ndarray"]]:
    """The program with the weights `names` as f32 inputs of the same names, and the constants it reads beside them.

    Ops that read weights only become ops that read arrays: a product, a look-up in a table; a norm becomes the norm
    with weights of one, then a product with its weights and a sum with its biases. Biases and activations must not be
    folded into products yet.
    """
    unknown = sorted(set(names) - {value.name for value in program.weights})
    if unknown:
        raise InputError("with_trained", "must be weights of the program", field="weights", given=unknown)
    rewriter = _Rewriter(program, names)
    for instr in program.body:
        rewriter.take(instr)
    return arrange(program.name, rewriter.values.values(), rewriter.body), rewriter.constants


def _rewriting(program: Program, instr: Instr, name: str) -> bool:
    """Whether the operand of an instruction can be an input."""
    at = instr.inputs.index(name)
    if instr.op == "matmul":
        plain = instr.inputs[2] is None and instr.inputs[3] is None and instr.attrs["activation"] == "none"
        return at == 1 and plain and len(program.table[name].shape) == 2
    if instr.op in ("add", "mul"):
        return at == 1 and len(program.table[name].shape) == 1
    return instr.op == "embedding" or instr.op in NORMS


class _Rewriter:
    def __init__(self, program: Program, names: Collection[str]) -> None:
        self.program, self.names = program, set(names)
        self.values = dict(program.table)
        self.body: list[Instr] = []
        self.constants: dict[str, np.ndarray] = {}
        for name in sorted(self.names):
            readers = program.readers[name]
            if len(readers) != 1:
                what = f"{name} is used {len(readers)} times in the model: the order of its sums would depend on steps"
                raise UnsupportedError("train", what, advice="leave it frozen")
            reader = program.body[readers[0]]
            if not _rewriting(program, reader, name):
                raise UnsupportedError("train", f"{name} cannot be trained: it is an operand of {reader.op}")
            self.values[name] = Value(name, "input", DTYPES["f32"], program.table[name].shape)

    def take(self, instr: Instr) -> None:
        trained = [name for name in instr.operands if name in self.names]
        if not trained or instr.op in ("add", "mul"):
            self.body.append(instr)
        elif instr.op == "matmul":
            self.body.append(Instr("product", (*instr.inputs[:2], None), instr.outputs, {}))
        elif instr.op == "embedding":
            self.body.append(Instr("take_rows", (instr.inputs[1], instr.inputs[0]), instr.outputs, {}))
        else:
            self._norm(instr)

    def _norm(self, instr: Instr) -> None:
        """A norm whose weight or bias is trained. What is not trained stays in the norm where it comes first."""
        x, weight, *bias = (str(name) for name in instr.inputs)
        shape = self.program.table[instr.outputs[0]].shape
        dim = int(shape[-1])  # type: ignore[arg-type]
        after: list[tuple[str, str]] = []
        if weight in self.names:
            after.append(("mul", weight))
            weight = self._constant("ones", dim)
        if bias and (after or bias[0] in self.names):
            after.append(("add", bias[0]))
            bias = [self._constant("zeros", dim)]
        for number, (op, operand) in enumerate([("", ""), *after]):
            last = number == len(after)
            result = instr.outputs[0] if last else f"%norm{len(self.body)}"
            if not last:
                self.values[result] = Value(result, "buffer", DTYPES["f32"], shape)
            inputs = (x, operand) if op else (x, weight, *bias)
            self.body.append(Instr(op or instr.op, inputs, (result,), {} if op else instr.attrs))
            x = result

    def _constant(self, kind: str, dim: int) -> str:
        import numpy as np

        make: Callable[..., np.ndarray] = np.ones if kind == "ones" else np.zeros
        name = f"trained.{kind}.{dim}"
        self.constants[name] = make(dim, np.float32)
        self.values[name] = Value(name, "weight", DTYPES["f32"], (dim,))
        return name
