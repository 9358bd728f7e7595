"""What a backend is: it lays out weights, keeps states, and compiles programs to executables.

The runtime knows nothing else of a backend. Which layouts it has, how a page looks in memory and which arithmetic is
fast are its own affair.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

from weft.errors import BackendError, InputError

if TYPE_CHECKING:
    import numpy as np

    from weft.dtype import DType
    from weft.graph.program import Program
    from weft.ops.state import AdapterArray, KvArray, SlotArray


class WantedWeight(NamedTuple):
    """A weight that a program reads: its shape in the file, and the backend's name for the layout it needs."""

    name: str
    shape: tuple[int, ...]
    layout: str


class WantedState(NamedTuple):
    """A state that a program reads and writes; `kind` is "kv", "recurrent" or "conv"."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]


class WantedTable(NamedTuple):
    """The adapters of a weight [rows, cols], or of a stack of `matrices` of them."""

    name: str
    rows: int
    cols: int
    matrices: int | None = None


class Planned(Protocol):
    """A planned program: a Program, or one from the program cache, whose JSON is parsed only where it has to be."""

    parsed: ClassVar[bool]  # whether `program` is there already

    @property
    def json(self) -> str: ...

    @property
    def program(self) -> Program: ...


class StoredTensor(Protocol):
    """A tensor of a checkpoint; `row_order`, when given, says which stored row each row is."""

    @property
    def view(self) -> Any:
        """With dtype, shape, made, buffer() and numpy()."""

    @property
    def row_order(self) -> Any: ...

    @property
    def plus_one(self) -> bool: ...

    def rows(self, first: int, end: int) -> StoredTensor: ...

    def numpy(self) -> np.ndarray: ...


class Source(Protocol):
    """Where weights come from: a checkpoint."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor: ...

    def matrices(self, name: str, shape: tuple[int, ...]) -> Sequence[StoredTensor]:
        """The matrices of a stack [count, rows, cols], wherever they are."""

    def buffers(self, *, soon: bool = False) -> list[memoryview]:
        """The files, mapped; to be read as a whole `soon`."""


class Loading(Protocol):
    """Weights that are being laid out, perhaps by other threads."""

    def finish(self) -> None:
        """Return when all are; nothing may run before."""


class Loaded:
    """The Loading of a backend that lays weights out at once."""

    def finish(self) -> None:
        pass


class Weights(ABC):
    """The weights of one checkpoint as a backend keeps them, shared by all its programs."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Any] = {}  # by name and layout

    @abstractmethod
    def load(self, wanted: Sequence[WantedWeight], source: Source, constants: Mapping[str, bytes]) -> Loading:
        """Lay out those that are not there yet. `constants` are float32 values of weights that are in no file."""

    def bound(self, wanted: Iterable[WantedWeight]) -> dict[str, Any]:
        """The backend's own weights by name, for `compile`."""
        return {weight.name: self._kept[weight.name, weight.layout] for weight in wanted}

    def limit_stacks(self, nbytes: int, names: Iterable[str], source: Source) -> None:
        """Before they are loaded: keep at most so much of these of `Backend.stacks` in memory, what was used last."""
        raise BackendError("load", "this backend keeps all experts in memory", advice="use the cpu backend")

    @property
    def stack_counts(self) -> Mapping[str, int]:
        """After `limit_stacks`: matrices that were in memory when a step needed them ("hits") or were not ("misses"),
        those that are now ("resident"), their "bytes", and the "budget"; before, nothing."""
        return {}

    @property
    def nbytes(self) -> int:
        """Memory of those laid out so far."""
        return sum(weight.nbytes for weight in self._kept.values())


class States(ABC):
    """All states of a model: `pages` pages of its keys and values, `slots` slots of its recurrent states.

    A page as bytes is its part in each layer, in the program's order; so is a slot. Reading and writing them is for the
    thread that runs the steps, between two steps.
    """

    def __init__(self, layers: Mapping[str, Any], kinds: Mapping[str, str], pages: int, slots: int) -> None:
        self.layers = layers  # what `compile` is given
        self.counts = {"page": pages, "slot": slots}
        self._parts = {
            "page": [layer for name, layer in layers.items() if kinds[name] == "kv"],
            "slot": [layer for name, layer in layers.items() if kinds[name] != "kv"],
        }

    @abstractmethod
    def part_bytes(self, layer: Any, what: str) -> int:
        """The size of a page or slot in one layer."""

    @abstractmethod
    def read_part(self, layer: Any, what: str, index: int, out: memoryview) -> None: ...

    @abstractmethod
    def write_part(self, layer: Any, what: str, index: int, data: memoryview) -> None: ...

    def of(self, what: str) -> list[Any]:
        """The layers that have pages, or those that have slots."""
        return self._parts[what]

    def read_page(self, page: int) -> bytes:
        return self._read("page", page)

    def write_page(self, page: int, data: bytes | bytearray | memoryview) -> None:
        self._write("page", page, data)

    def copy_page(self, source: int, target: int) -> None:
        self._write("page", target, self._read("page", source))

    def read_slot(self, slot: int) -> bytes:
        return self._read("slot", slot)

    def write_slot(self, slot: int, data: bytes | bytearray | memoryview) -> None:
        self._write("slot", slot, data)

    def _read(self, what: str, index: int) -> bytes:
        self._check(what, index)
        out = bytearray(sum(self.part_bytes(layer, what) for layer in self._parts[what]))
        for layer, part in self._cut(what, memoryview(out)):
            self.read_part(layer, what, index, part)
        return bytes(out)

    def _write(self, what: str, index: int, data: bytes | bytearray | memoryview) -> None:
        self._check(what, index)
        given = memoryview(data).cast("B")
        wanted = sum(self.part_bytes(layer, what) for layer in self._parts[what])
        if len(given) != wanted:
            raise InputError("state", f"a {what} has {wanted} bytes: got {len(given)}")
        for layer, part in self._cut(what, given):
            self.write_part(layer, what, index, part)

    def _cut(self, what: str, data: memoryview) -> Iterator[tuple[Any, memoryview]]:
        start = 0
        for layer in self._parts[what]:
            size = self.part_bytes(layer, what)
            yield layer, data[start : start + size]
            start += size

    def _check(self, what: str, index: int) -> None:
        count = self.counts[what]
        if not 0 <= index < count:
            raise InputError("state", f"{what}s are 0 to {count - 1}: got {index}")


class AdapterWeights(NamedTuple):
    """What an adapter does to one weight (ops/state.py: AdapterPart), as the backend's own weights.

    Each has `nbytes`; matrices have `dense()`, vectors `row(0)`, which give float32 arrays back.
    """

    down: Any = None
    up: Any = None
    scale: Any = None
    gain: Any = None
    shift: Any = None

    @property
    def nbytes(self) -> int:
        return sum(weight.nbytes for weight in self if weight is not None)


class PartPlace(NamedTuple):
    """Where the part of an adapter for one matrix belongs: a table's name, and the matrix of its stack."""

    table: str
    matrix: int = 0


class AdapterPacker(ABC):
    """Lays out the weights of one version of an adapter."""

    @abstractmethod
    def add(self, place: PartPlace, values: Mapping[str, Any]) -> None:
        """The part of a table: `down` and `up` are TensorViews, the others float32 arrays; None is left out."""

    @abstractmethod
    def finish(self) -> Mapping[PartPlace, AdapterWeights]: ...


class AdapterTable(Protocol):
    """The adapters of one weight or stack, by index."""

    def put(self, index: int, down: Any, up: Any, scale: Any, gain: Any, shift: Any, matrix: int = 0) -> None: ...

    def clear(self, index: int) -> None: ...


Masks: TypeAlias = "Sequence[np.ndarray | None] | None"
Aside: TypeAlias = "Sequence[np.ndarray] | None"
Temperatures: TypeAlias = "Sequence[float] | None"


class TopRows:
    """The largest numbers of rows of an output: their columns [rows, count] and values, larger first, lower columns
    first among equals. A row with a number that is not finite has one first. Where a mask allows fewer, the others are
    minus infinity. Behind them are the columns that were put aside, in the order that was asked for."""

    def __init__(self, ids: np.ndarray, values: np.ndarray, largest: int | None = None) -> None:
        self.ids = ids
        self.values = values
        self.largest = ids.shape[1] if largest is None else largest  # how many come before those put aside
        # Of parts of each row the largest number and the sum of exp((number - largest) / temperature) in float32,
        # [rows, parts, 2], without columns put aside; None where nobody asked.
        self.masses: np.ndarray | None = None
        self.read: Callable[[int], np.ndarray] | None = None  # a whole row by its place, until the next step
        self._first = 0  # the place of the first row

    def whole(self) -> np.ndarray:
        """All numbers of the first row, also those that do not count. Before the next step."""
        assert self.read is not None
        return self.read(self._first)

    @property
    def finite(self) -> bool:
        """Whether all numbers are, also those that are not here."""
        return all(map(math.isfinite, self.values[:, 0].tolist()))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, some: slice) -> TopRows:
        found = TopRows(self.ids[some], self.values[some], self.largest)
        found.masses = None if self.masses is None else self.masses[some]
        found.read = self.read
        found._first = self._first + range(len(self))[some].start
        return found

    def __iter__(self) -> Iterator[TopRows]:
        """Row by row, each as one row."""
        return (self[at : at + 1] for at in range(len(self)))


class Executable(ABC):
    """A program bound to its weights and states."""

    @property
    @abstractmethod
    def program(self) -> Program: ...

    @abstractmethod
    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One step: arrays for every input of the program, by name; its outputs, by name. States change in place.

        Arrays may be views. Values of the int8 row types, which only tests have at a program's edge, are `Packed`.
        T, B and L are read off the inputs' shapes (`weft.graph.program.bind_sizes`); InputError where they do not fit.
        """

    def run_into(self, inputs: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """`run` whose outputs of these names may be written to `arrays`, float32 and contiguous, instead of new ones.

        An array may be that of an input which only this output is made of, as sums are that something is added to.
        """
        return self.run(inputs)

    def run_top(
        self,
        inputs: Mapping[str, Any],
        output: str,
        count: int,
        masks: Masks = None,
        aside: Aside = None,
        temperatures: Temperatures = None,
    ) -> TopRows:
        """`run`, of which only the largest numbers of each row of `output` [L, width] come back; `count` of them or
        more, at most Backend.top.

        `masks` has for each row the columns that count, a bit each, uint32 [ceil(width / 32)], or None for all.
        `aside` has for each row columns, each once, that come back whatever they are, and are not among the largest.
        With `temperatures`, one for each row, `TopRows.masses` are found, too.
        """
        raise BackendError("run_top", "this backend returns whole rows", advice="use run")

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[str, int]]:
        """The op and the nanoseconds of every instruction of one step."""
        raise BackendError("profile", "this backend does not time instructions", advice="use the cpu backend")


class Backend(ABC):
    """Compiles verified programs, and keeps the weights and states that they are bound to."""

    name: str
    fast: frozenset[str] = frozenset()  # arithmetic that beats f32 here: of "int8", "bf16" and "f16"
    top: int = 0  # how many of the largest numbers of a row Executable.run_top finds at most; 0: it cannot
    batch_tokens: int = 512  # of an encoder's step: enough rows for products, few enough that activations stay in cache
    lanes: bool = True  # whether several executables, one thread each, get more done than one with all threads

    @abstractmethod
    def supports(self, op: str, dtypes: Sequence[DType]) -> bool:
        """Whether instructions of this op run, given the element types of the operands that are present."""

    @abstractmethod
    def compile(
        self, planned: Planned, weights: Mapping[str, Any], states: Mapping[str, Any], *, threads: int | None = None
    ) -> Executable:
        """Bind a planned program to its weights, states and tables of adapters, the latter two by name in `states`.

        Weights are the backend's own, from `Weights.bound`, or arrays and `Packed`. With `threads` the executable gets
        threads of its own, to run beside others. BackendError for an op that the backend does not have.
        """

    @abstractmethod
    def layouts(self, program: Program) -> tuple[WantedWeight, ...]:
        """How the program wants each of its weights."""

    def stacks(self, wanted: Iterable[WantedWeight]) -> list[WantedWeight]:
        """Of these weights, the stacks of matrices of which only some need to be in memory: see Weights."""
        return []

    @abstractmethod
    def weights(self) -> Weights:
        """A place for the weights of one checkpoint, empty."""

    @abstractmethod
    def state_bytes(self, wanted: Sequence[WantedState]) -> tuple[int, int]:
        """Bytes of one page and of one slot, all layers together."""

    @abstractmethod
    def states(self, wanted: Sequence[WantedState], pages: int, slots: int) -> States:
        """The states of a model, all zeros."""

    def page_limit(self, wanted: Sequence[WantedState]) -> int | None:
        """The most pages that states can have, where something besides memory limits them."""
        return None

    def slot_limit(self, wanted: Sequence[WantedState]) -> int | None:
        """The same of slots."""
        return None

    @property
    def memory(self) -> tuple[int, str] | None:
        """Bytes that are free for models, and where the number comes from; None where they are the machine's own."""
        return None

    def bandwidth(self, nbytes: int) -> list[float]:
        """Bytes a second, read and written, of copies of `nbytes` in the device's memory; none where it is the
        machine's own."""
        return []

    @abstractmethod
    def adapter_table(self, wanted: WantedTable) -> AdapterTable: ...

    @abstractmethod
    def adapter_packer(self) -> AdapterPacker: ...

    @property
    @abstractmethod
    def key(self) -> str:
        """Everything about the backend that decides how a program is made; part of the program cache's key."""

    @property
    @abstractmethod
    def digest(self) -> tuple[str | bytes, ...]:
        """Everything about the backend that decides the bits of a result, to be hashed."""

    @property
    def info(self) -> dict[str, Any]:
        """What `Model.info` says of the backend."""
        return {"backend": self.name}

    def state_from(self, array: KvArray | SlotArray | AdapterArray) -> Any:
        """The backend's own state or table with these contents. The reference keeps arrays; a device would upload."""
        return array

    def state_to_array(self, state: Any) -> KvArray | SlotArray:
        """The contents of a state, for tests."""
        return state

    def __repr__(self) -> str:
        return self.name


def wanted_states(program: Program) -> tuple[WantedState, ...]:
    """The states that a program declares."""
    return tuple(WantedState(v.name, v.kind, v.dtype.name, fixed(v.shape)) for v in program.states)


def wanted_tables(program: Program) -> tuple[WantedTable, ...]:
    """The tables of adapters that a program declares."""
    return tuple(WantedTable(v.name, *fixed(v.shape[-2:]), *fixed(v.shape[:-2])) for v in program.tables)


def fixed(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape without symbols."""
    assert all(isinstance(size, int) for size in shape)
    return shape


def check_bindings(program: Program, weights: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """BackendError unless every weight and state of the program is given, weights with their shape and type."""
    from weft.ops.spec import spec_of

    for value in program.weights:
        if value.name not in weights:
            raise BackendError(program.name, f"weight {value.name} is missing", advice="give all of program.weights")
        if spec_of(weights[value.name]) != value.spec:
            given = spec_of(weights[value.name])
            raise BackendError(program.name, f"weight {value.name} is {given}; the program needs {value.spec}")
    for value in (*program.states, *program.tables):
        if value.name not in states:
            kind = "tables" if value.kind == "table" else "states"
            raise BackendError(
                program.name, f"{value.kind} {value.name} is missing", advice=f"give all of program.{kind}"
            )
