"""What a model's matrices are multiplied by, measured on a text: how much each of their columns matters.

The model computes the text in f32, and the inputs of every product come out as well. The mean of their squares is the
importance of a matrix's columns (llama.cpp's imatrix); the sums of their products are what error feedback needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends import open_backend
from weft.dtype import DTYPES
from weft.errors import InputError
from weft.frozen import frozen
from weft.graph.passes import dead_code, decompose, optimise
from weft.graph.plan import plan
from weft.graph.program import Instr, Program, Value, arrange
from weft.nn import Scope
from weft.nn.step import TracedStep
from weft.runtime.checkpoint import Checkpoint, open_checkpoint
from weft.runtime.prepared import prepare
from weft.runtime.programs import Programs
from weft.runtime.steps import build_step
from weft.runtime.tracing import CheckedTrace
from weft.weights.names import Gguf

if TYPE_CHECKING:
    from weft.backends.base import Executable

WINDOW = 512  # tokens that are computed together, as llama.cpp does
MEMORY = 512 << 20  # bytes of inputs that may come out of one step


@frozen(eq=False)
class Seen:
    """Of every column of a matrix, or of each matrix of a stack, the sum of its inputs' squares, and of how many."""

    squares: np.ndarray  # float64 [matrices, columns]
    counts: np.ndarray  # int64 [matrices]

    @property
    def mean(self) -> np.ndarray:
        """The importance: [columns], or [matrices, columns] of a stack; an expert that saw nothing has ones."""
        counts = np.maximum(self.counts, 1)[:, None]
        means = np.where(self.counts[:, None] > 0, self.squares / counts, 1.0)
        return means[0] if len(means) == 1 else means


@frozen
class _Product:
    """A product of the program: the value that is multiplied, the groups of its rows, and the tensors of its matrix."""

    x: str
    starts: str | None
    tensors: tuple[str, ...]
    columns: int
    matrices: int


class Calibration:
    """The products of a model and the windows of a text that go through them."""

    def __init__(
        self,
        model: Path | Checkpoint,
        text: str,
        *,
        tokens: int | None = None,
        threads: int = 1,
        window: int = WINDOW,
        backend: str | None = None,
    ) -> None:
        self.checkpoint = model if isinstance(model, Checkpoint) else open_checkpoint(model)
        self._programs = Programs(self.checkpoint, open_backend(backend, threads=threads), compute="f32")
        self._program, self._constants = self._traced()
        self._products = self._found()
        positions = getattr(self._programs.config, "max_position_embeddings", None) or window
        self.windows = self._cut(text, tokens, max(2, min(window, int(positions))))

    @property
    def tokens(self) -> int:
        """How many tokens are computed."""
        return sum(map(len, self.windows))

    def _cut(self, text: str, tokens: int | None, size: int) -> list[np.ndarray]:
        tokenizer = self.checkpoint.tokenizer()
        ids = tokenizer.encode(text, add_special=False)
        if len(ids) < 2:
            raise InputError("calibrate", "must have at least two tokens", field="text", given=len(ids))
        ids = ids if tokens is None else ids[:tokens]
        first = tokenizer.encode("")[:1] if tokenizer.bos_id is not None else []
        windows = [ids[at : at + size] for at in range(0, len(ids), size)]
        if len(windows) > 1 and len(windows[-1]) < size:
            windows.pop()  # a text's end has another mean than its windows
        if first == [tokenizer.bos_id]:
            windows = [[*first, *part[1:]] for part in windows]
        return [np.asarray(part, np.int32) for part in windows]

    def _traced(self) -> tuple[Program, Mapping[str, np.ndarray]]:
        programs, checkpoint = self._programs, self.checkpoint
        encodes = programs.module.KIND == "encoder"
        compute = programs.module.hidden_states if encodes else programs.module.forward
        with checkpoint.naming(), CheckedTrace(checkpoint.model_type, checkpoint) as trace:
            step = TracedStep(trace) if encodes else TracedStep(trace, whole=True)
            trace.output("result", compute(Scope(trace, checkpoint.stored), programs.config, step))
        return trace.program(), trace.constants

    def _found(self) -> list[_Product]:
        gguf: Gguf | None = self._programs.module.GGUF
        if gguf is None:
            what = f"GGUF has no models of type {self.checkpoint.model_type!r}"
            raise InputError("calibrate", what, field="model", given=str(self.checkpoint.path))
        gguf = gguf.of(self.checkpoint.config)
        found: list[_Product] = []
        taken: set[str] = set()
        for instr in self._program.body:
            if instr.op != "matmul":
                continue
            weight = str(instr.inputs[1])
            name = weight.partition(":")[0]
            one = gguf.gguf_name(name)
            tensors = tuple(part for part in (gguf.parts(name) or (one,)) if part is not None and part not in taken)
            if not tensors:
                continue  # another part of a matrix that has been met
            taken.update(tensors)
            shape = self._program.table[weight].shape
            stacked = instr.inputs[3] is not None
            sizes: tuple[Any, ...] = (shape[-1], shape[0] if stacked else 1)  # of a weight they are numbers
            found.append(_Product(str(instr.inputs[0]), instr.inputs[3], tensors, *map(int, sizes)))
        return found

    def importance(self, tell: Callable[[int, int], None] | None = None) -> dict[str, Seen]:
        """Of every matrix, by its name in a GGUF file; `tell` hears how many steps of how many are done."""
        found: dict[str, Seen] = {}
        groups = list(self._groups(self._products, lambda product: 4 * WINDOW * product.columns))
        for number, group in enumerate(groups):
            once = {product.x: product for product in group}  # several matrices may see the same
            sums = {x: self._zeros(product) for x, product in once.items()}
            for done, values in enumerate(self._run(group)):
                for x, product in once.items():
                    seen = sums[x]
                    for at, rows in enumerate(self._rows(product, values)):
                        seen.squares[at] += np.einsum("ij,ij->j", rows, rows, dtype=np.float64)
                        seen.counts[at] += len(rows)
                if tell is not None:
                    tell(number * len(self.windows) + done + 1, len(groups) * len(self.windows))
            found.update({name: sums[product.x] for product in group for name in product.tensors})
        return found

    @property
    def able(self) -> frozenset[str]:
        """The matrices that `moments` knows; those of experts are not among them."""
        return frozenset(name for one in self._products if one.matrices == 1 for name in one.tensors)

    def moments(self, names: Sequence[str], memory: int = 1 << 30) -> dict[str, np.ndarray]:
        """Of as many of these matrices, in order, as take `memory` at most the mean products of any two inputs, float32
        [columns, columns]; those of one value share an array."""
        by_name = {name: one for one in self._products if one.matrices == 1 for name in one.tensors}
        chosen: dict[str, _Product] = {}
        held = 0
        for name in (name for name in names if name in by_name):
            product = by_name[name]
            size = 0 if any(one.x == product.x for one in chosen.values()) else 12 * product.columns**2
            if chosen and held + size > memory:
                break
            held += size
            chosen[name] = product
        once = {product.x: product for product in chosen.values()}
        sums = {x: np.zeros((product.columns,) * 2, np.float64) for x, product in once.items()}
        for values in self._run(list(once.values())):
            for x, total in sums.items():
                rows = values[x].reshape(-1, len(total))
                total += rows.T @ rows
        means = {x: (total / self.tokens).astype(np.float32) for x, total in sums.items()}
        return {name: means[product.x] for name, product in chosen.items()}

    @staticmethod
    def _zeros(product: _Product) -> Seen:
        return Seen(np.zeros((product.matrices, product.columns)), np.zeros(product.matrices, np.int64))

    @staticmethod
    def _rows(product: _Product, values: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
        """The inputs of each matrix of a stack, or of the only one."""
        x = values[product.x].reshape(-1, product.columns)
        if product.starts is None:
            yield x
            return
        starts = values[product.starts]
        yield from (x[starts[at] : starts[at + 1]] for at in range(product.matrices))

    @staticmethod
    def _groups(
        products: Sequence[_Product], size: Callable[[_Product], int], memory: int = MEMORY
    ) -> Iterator[list[_Product]]:
        """The products in order, as many at a time as fit; those of one value stay together, since they share it."""
        group: list[_Product] = []
        held: dict[str, int] = {}
        for product in products:
            if product.x not in held and sum(held.values()) + size(product) > memory and group:
                yield group
                group, held = [], {}
            group.append(product)
            held[product.x] = size(product)
        if group:
            yield group

    def _run(self, group: Sequence[_Product]) -> Iterator[dict[str, np.ndarray]]:
        """The values of these products' inputs, window by window."""
        outputs = {product.x: f"seen.{number}" for number, product in enumerate(group)}
        starts = {product.starts: f"starts.{number}" for number, product in enumerate(group) if product.starts}
        executable, names = self._compiled(_with_outputs(self._program, outputs, starts))
        for ids in self.windows:
            given = build_step([ids], rows=np.arange(len(ids), dtype=np.int32)).arrays()
            if "types" in names:
                given["types"] = np.zeros(len(ids), np.int32)
            made = executable.run({name: given[name] for name in names})
            yield {value: made[name] for value, name in (*outputs.items(), *starts.items())}

    def _compiled(self, program: Program) -> tuple[Executable, tuple[str, ...]]:
        backend = self._programs.backend
        lowered = decompose(optimise(dead_code(program)), backend.supports)
        prepared = prepare(plan(lowered), dict(self._constants), {}, backend)
        return self._programs.compile(prepared, {}), prepared.inputs


def _with_outputs(program: Program, floats: Mapping[str, str], integers: Mapping[str, str]) -> Program:
    """The program with these values as its only outputs, and without what they do not need."""
    values = {name: value for name, value in program.table.items() if name != "result"}
    last = Value("result", "buffer", program.table["result"].dtype, program.table["result"].shape)
    body = [_renamed(instr, {"result": "%result"}) for instr in program.body]
    values["%result"] = Value("%result", "buffer", last.dtype, last.shape)
    for name, output in floats.items():
        values[output] = Value(output, "output", DTYPES["f32"], program.table[name].shape)
        body.append(Instr("scale", (name,), (output,), {"by": 1.0}))
    for name, output in integers.items():
        value = values.pop(name)
        values[output] = Value(output, "output", value.dtype, value.shape)
    body = [_renamed(instr, integers) for instr in body]
    return arrange(program.name, values.values(), body)


def _renamed(instr: Instr, names: Mapping[str, str]) -> Instr:
    inputs = tuple(names.get(name, name) if name is not None else None for name in instr.inputs)
    return Instr(instr.op, inputs, tuple(names.get(name, name) for name in instr.outputs), instr.attrs)
