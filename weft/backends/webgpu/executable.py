"""A program as a list of dispatches. A step puts in its sizes, encodes them, and reads outputs back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from weft.backends.base import Aside, Executable, Masks, Temperatures, TopRows, fixed
from weft.backends.webgpu.device import PARAMS_BYTES, Buffer, Device, Staging
from weft.backends.webgpu.fuse import Fusing, Unit, launches
from weft.backends.webgpu.launch import BLOCKS, ROW_BLOCKS, WORD, Call, Launch, bits, copy, query_heads
from weft.backends.webgpu.native import Dispatch
from weft.backends.webgpu.top import WIDEST, Asked, Top, beside_words, kept_for, mask_words, scratch_words
from weft.errors import BackendError
from weft.graph.plan import ALIGN
from weft.graph.program import Instr, Program, Value, bind_sizes
from weft.ops.packed import Packed
from weft.ops.spec import Dim, linear

BLOCK = 64  # keys
FEW_BLOCKS = 4  # that one workgroup takes at once
MOST_PARTS = 64 << 20  # bytes
NUMBERS = {"f32": np.float32, "i32": np.int32, "bf16": np.uint16}


class Step(NamedTuple):
    """What decides the dispatches of a step."""

    T: int
    B: int
    L: int
    blocks: int = 0  # of keys that attention is split into
    top: int = 0  # of the largest numbers of a row that are read back; 0: all outputs are
    masked: bool = False  # whether some numbers of rows do not count
    aside: int = 0  # columns of each row that are read back, too
    summed: bool = False  # whether masses of rows are
    row: bool = False  # whether it is one row of a short context


class Places:
    """Where values lie in the arena: inputs, then the plan's slots, then outputs. All are linear forms, in bytes."""

    def __init__(self, program: Program) -> None:
        self.of: dict[str, Dim] = {}
        self.end = Dim()
        for value in program.inputs:
            self._add(value)
        self.inputs_end = self.end
        slots = []
        for size in program.slots:
            slots.append(self.end)
            self.end = linear(self.end + size)
        for value in program.of_kind("buffer"):
            assert value.slot is not None
            self.of[value.name] = slots[value.slot]
        self.outputs_start = self.end
        for value in program.outputs:
            self._add(value)

    def _add(self, value: Value) -> None:
        self.of[value.name] = self.end
        size = linear(value.spec.nbytes)
        self.end = linear(self.end + Dim(*(-(-max(part, 0) // ALIGN) * ALIGN for part in size.coefficients)))


def launches_of(program: Program, places: Places, bound: Mapping[str, Any], device: Any) -> list[Launch]:
    """The dispatches of a program whose weights and states are `bound`, in order."""
    scratch = Dim(*(part // WORD for part in places.end.coefficients))

    def call(one: Instr) -> Call:
        return Call(one, program.table, places.of, bound, device, scratch)

    found: list[Launch] = []
    units = Fusing(program, bound).units() if device.fusing else [Unit(instr) for instr in program.body]
    rows = list(device.rows_of(program, units, call)) if device.fusing else []
    inside = {id(unit) for row in rows for unit in row.units}
    last = {id(row.units[-1]): row.launch for row in rows}
    for unit in units:
        instr = unit.instr
        if instr.op == "reshape":
            if places.of[str(instr.inputs[0])] != places.of[instr.outputs[0]]:
                found += copy(call(instr))
        elif instr.op not in device.kernels:
            what = f"this GPU backend has no {instr.op}"
            raise BackendError(program.name, what, advice='use compute="f32", or the cpu backend')
        else:
            mine = launches(unit, call)
            found += (replace(one, row=False) for one in mine) if id(unit) in inside else mine
            if id(unit) in last:
                found.append(last[id(unit)])
    return found


def split_of(program: Program) -> tuple[int, int]:
    """Of attention that is split into blocks of keys: the most heads, and the most words of one block of a token."""
    heads = query_heads(program)
    return max((many for many, _ in heads), default=0), max((many * (dim + 2) for many, dim in heads), default=0)


class GpuExecutable(Executable):
    """A bound program. Steps of all executables of a device take turns."""

    def __init__(self, device: Device, program: Program, bound: Mapping[str, Any]) -> None:
        self._program = program
        self._device = device
        self._places = Places(program)
        for value in program.values:
            if value.kind in ("input", "output", "buffer") and value.dtype.name not in device.holds:
                what = f"{value.name} is {value.dtype}; this GPU backend holds {', '.join(device.holds)}"
                raise BackendError(program.name, what, advice='use compute="f32", or the cpu backend')
        self._heads, self._part_words = split_of(program)
        self._launches = launches_of(program, self._places, bound, device)
        self._pipelines = device.pipelines([(one.shader, one.defines) for one in self._launches])
        self._forms = np.zeros((len(self._launches), PARAMS_BYTES // 4, 5), np.int64)
        for at, (launch, (shader, _)) in enumerate(zip(self._launches, self._pipelines)):
            assert {name for name, _ in shader.params} == set(launch.params), launch.shader
            for index, (name, _) in enumerate(shader.params):
                value = launch.params[name]
                self._forms[at, index] = (0, 0, 0, 0, 1) if value is BLOCKS else (*bits(value), 0)
        self._items = np.array([linear(one.items).coefficients for one in self._launches], np.int64).reshape(-1, 4)
        self._beside = np.array([linear(one.beside).coefficients for one in self._launches], np.int64).reshape(-1, 4)
        self._per = np.array([one.per for one in self._launches], np.int64)
        self._least = np.array([one.least for one in self._launches], np.int64)
        self._most = np.array([one.most for one in self._launches], np.int64)
        self._times = np.array([0 if one.times is BLOCKS else one.times for one in self._launches], np.int64)
        self._split = np.array([-1 if one.split is None else one.split for one in self._launches], np.int64)
        self._row_only = np.array([-1 if one.row is None else one.row for one in self._launches], np.int64)
        self._params = device.buffer(max(1, len(self._launches)) * PARAMS_BYTES, "parameters")
        self._tables = [bound[value.name] for value in program.tables]
        self._bound_tables: list[Buffer] = [table.buffer for table in self._tables]
        self._arena: Buffer | None = None
        self._groups: list[Any] = []  # bind groups, of this arena
        self._sizes: Step | None = None  # that the parameters are for
        self._staged: Staging | None = None  # where outputs are read
        self._plan: tuple[Step, list[Dispatch], tuple[int, int]] | None = None  # the last step's, and what is read
        self._given: tuple[tuple[int, ...], np.ndarray, list[np.ndarray]] | None = None  # inputs, each one's place
        self._shapes: tuple[tuple[tuple[str, tuple[int, ...]], ...], dict[str, int]] | None = None  # and T, B, L
        self._row_count: tuple[tuple[int, ...], int] | None = None  # for T, B, L
        self._tops: dict[tuple[int, bool, int, bool], Top] = {}
        self._row: Staging | None = None  # where one row is read
        self._steps = 0  # that have begun
        self._ready: tuple[Step, Any] | None = None  # commands of a step of these sizes, not submitted yet

    @property
    def program(self) -> Program:
        return self._program

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        step = self._step(inputs)
        with self._device.lock, self._device.guard():
            self._submit(step, inputs)
            return self._outputs(step)

    def run_top(
        self,
        inputs: Mapping[str, Any],
        output: str,
        count: int,
        masks: Masks = None,
        aside: Aside = None,
        temperatures: Temperatures = None,
    ) -> TopRows:
        assert [value.name for value in self._program.outputs] == [output]
        step = self._step(inputs)
        rows = self._rows(step)
        if not rows:
            with self._device.lock, self._device.guard():
                self._submit(step, inputs)
            return TopRows(np.zeros((0, 1), np.int64), np.zeros((0, 1), np.float32))
        step, asked = step._replace(top=kept_for(count)), None
        if masks or aside or temperatures:
            asked = Asked(masks, aside, temperatures, rows, self._width)
            step = step._replace(masked=asked.masked, aside=asked.aside, summed=asked.summed)
        with self._device.lock, self._device.guard():
            self._submit(step, inputs, asked)
            top = self._top_of(step)
            assert self._staged is not None
            data = self._staged.read(top.nbytes(rows))
            found = top.rows(data, rows)
            if asked is not None:
                picked = top.picked(data, rows)
                found = asked.joined(found, picked)
                found.masses = top.masses(data, rows)
                found.read = partial(self._read_row, step, self._steps, asked, picked)
            return found

    def _read_row(self, step: Step, at: int, asked: Asked, picked: np.ndarray, row: int) -> np.ndarray:
        """A row of the output of the last step, which was `at`."""
        nbytes = WORD * self._width
        with self._device.lock, self._device.guard():
            if self._steps != at or self._arena is None:
                raise BackendError(self._program.name, "a row is read after the next step has begun")
            if self._row is None:
                self._row = self._device.staging(nbytes)
            start = _at(self._places.outputs_start, step) + row * nbytes
            self._device.submit(self._device.encoded([], self._arena, start, nbytes, self._row))
            numbers = self._row.read(nbytes).view(np.float32).copy()
        asked.restore(numbers, row, picked[row])
        return numbers

    def _bound_sizes(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """T, B and L, which are not worked out again for inputs of the same shapes."""
        shapes = tuple([(name, value.shape) for name, value in inputs.items()])
        if self._shapes is None or self._shapes[0] != shapes:
            self._shapes = shapes, bind_sizes(self._program, inputs)
        return self._shapes[1]

    def _rows(self, step: Step) -> int:
        """Rows of the only output."""
        if self._row_count is None or self._row_count[0] != step[:3]:
            (value,) = self._program.outputs
            self._row_count = step[:3], int(value.spec.at(T=step.T, B=step.B, L=step.L).shape[0])
        return self._row_count[1]

    @property
    def _width(self) -> int:
        """Columns of the only output."""
        (value,) = self._program.outputs
        return fixed(value.shape[-1:])[0]

    def _submit(self, step: Step, inputs: Mapping[str, Any], asked: Asked | None = None) -> None:
        """Start a step, and encode another one like it if this is not the first."""
        again = self._sizes == step
        arena = self._prepared(step)
        arena.write(0, self._joined(inputs, step))
        if asked is not None:
            arena.write(self._asked_at(step), asked.words)
        self._steps += 1
        ready, self._ready = self._ready, None
        commands = ready[1] if ready is not None and ready[0] == step else self._encoded(step)
        self._device.submit(commands)
        if self._device.reuses:
            self._ready = (step, commands)
        elif again:  # another one is likely: encoded while the device computes this one
            self._ready = (step, self._encoded(step))

    def _top_of(self, step: Step) -> Top:
        key = step.top, step.masked, step.aside, step.summed
        if key not in self._tops:
            self._tops[key] = Top(self._device, self._width, *key)
        return self._tops[key]

    def _step(self, inputs: Mapping[str, Any]) -> Step:
        sizes = self._bound_sizes(inputs)
        tokens, sequences, rows = sizes["T"], sizes["B"], sizes["L"]
        if not tokens or not 0 < tokens * self._heads < self._device.busy:
            return Step(tokens, sequences, rows)
        last = max(int(inputs[name].max()) for name in ("positions", "reach") if name in inputs)
        blocks = (last + BLOCK) // BLOCK
        short = tokens == 1 and sequences == 1 and blocks <= ROW_BLOCKS
        return Step(tokens, sequences, rows, self._split_into(tokens, blocks), row=short)

    def _split_into(self, tokens: int, blocks: int) -> int:
        """Into how many blocks of keys attention is split: a power of two, so that few steps differ. 0 where it is not,
        since there are few keys, or enough queries for all of the device."""
        rounded = 1 << (blocks - 1).bit_length()
        return 0 if blocks <= FEW_BLOCKS or self._part_bytes(tokens, rounded) > MOST_PARTS else rounded

    def _part_bytes(self, tokens: int, blocks: int) -> int:
        return WORD * self._part_words * tokens * blocks

    def _scratch(self, step: Step) -> int:
        """Words that launches of this step write beside values."""
        sizes = np.array([*step[:3], 1])
        items = self._items @ sizes
        used = (items >= self._least) & (items <= self._most)
        return int(np.where(used, self._beside @ sizes, 0).max(initial=0))

    def _prepared(self, step: Step) -> Buffer:
        """The arena, large enough, and parameters for a step of these sizes."""
        if self._sizes == step and self._arena is not None and self._same_tables():
            return self._arena
        self._sizes = None  # until all is there
        wanted = _at(self._places.end, step)
        whole = self._asked_at(step)
        if step.top:
            whole += WORD * self._rows(step) * (mask_words(self._width) * step.masked + step.aside + step.summed)
        if self._arena is None or self._arena.nbytes < whole:
            self._arena, self._groups, self._plan, self._ready = None, [], None, None  # freed first
            arena = self._device.buffer(whole, "the working memory of a step")
            self._groups = []
            self._arena = arena
        tables = [table.buffer for table in self._tables]
        if not self._groups or not self._same_tables():
            self._groups, self._plan, self._ready = self._bind(self._arena), None, None
            self._bound_tables = tables
        size = wanted - _at(self._places.outputs_start, step)
        size = self._top_of(step).nbytes(self._rows(step)) if step.top else size
        if self._staged is None or self._staged.nbytes < size:
            self._staged, self._ready = None, None
            self._staged = self._device.staging(size)
        numbers = self._forms @ np.array([*step[:3], 1, step.blocks])
        self._params.write(0, numbers.astype(np.uint32))
        self._sizes = step
        return self._arena

    def _asked_at(self, step: Step) -> int:
        """The byte of the arena after everything else, where `Asked.words` are."""
        beside = self._part_bytes(step.T, step.blocks)  # parts of attention are read before the largest are found
        beside = max(beside, WORD * self._scratch(step))
        if step.top:
            words = scratch_words(self._rows(step), self._width, step.top)
            words += self._rows(step) * beside_words(self._width, step.aside, step.summed)
            beside = max(beside, WORD * words)
        return _at(self._places.end, step) + beside

    def _same_tables(self) -> bool:
        """Whether no table of adapters has another buffer than the bind groups."""
        return all(table.buffer is bound for table, bound in zip(self._tables, self._bound_tables))

    def _bind(self, arena: Buffer) -> list[Any]:
        """Bind groups of all launches."""
        return [
            self._device.bind(shader.written, arena, self._params, [_buffer(one) for one in launch.buffers])
            for launch, (shader, _) in zip(self._launches, self._pipelines)
        ]

    def _joined(self, inputs: Mapping[str, Any], step: Step) -> np.ndarray:
        """All inputs as the arena has them, until the next step."""
        if self._given is None or self._given[0] != step[:3]:
            data, views = np.zeros(_at(self._places.inputs_end, step), np.uint8), []
            for value in self._program.inputs:
                shape = value.spec.at(T=step.T, B=step.B, L=step.L).shape
                start, kind = _at(self._places.of[value.name], step), np.dtype(NUMBERS[value.dtype.name])
                size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
                views.append(data[start : start + size].view(kind).reshape(shape))
            self._given = (step[:3], data, views)
        _, data, views = self._given
        for value, view in zip(self._program.inputs, views):
            given = inputs[value.name]
            if isinstance(given, Packed):
                given = given.data.view(view.dtype).reshape(view.shape)
            if (given.dtype.kind in "iu") != (view.dtype != np.float32):
                raise BackendError(self._program.name, f"{value.name} must be {value.dtype}: got {given.dtype}")
            view[...] = given
        return data

    def _planned(self, step: Step) -> tuple[list[Dispatch], tuple[int, int]]:
        """The dispatches of a step, and where in the arena the bytes begin and end that are read afterwards."""
        if self._plan is None or self._plan[0] != step:
            items = self._items @ np.array([*step[:3], 1])
            used = (items >= self._least) & (items <= self._most) & (self._split != (step.blocks == 0))
            used &= self._row_only != (not step.row)
            times = np.where(self._times, self._times, step.blocks)
            counts = np.where(used, -(-items // self._per) * times, 0)
            found = []
            for at, groups in enumerate(counts.tolist()):
                if groups > 0:
                    across = min(groups, WIDEST)
                    place = at * PARAMS_BYTES
                    found.append(
                        Dispatch(self._pipelines[at][1], self._groups[at], place, across, -(-groups // across))
                    )
            read = _at(self._places.outputs_start, step), _at(self._places.end, step)
            if step.top:
                assert self._arena is not None
                top, asked = self._top_of(step), self._asked_at(step) // WORD
                more, last = top.dispatches(self._arena, self._rows(step), read[0] // WORD, read[1] // WORD, asked)
                found += more
                read = WORD * last, WORD * last + top.nbytes(self._rows(step))
            self._plan = (step, found, read)
        return self._plan[1:]

    def _encoded(self, step: Step) -> Any:
        """All dispatches of a step and the copy of what is read, to be submitted once."""
        assert self._arena is not None and self._staged is not None
        dispatches, (start, end) = self._planned(step)
        return self._device.encoded(dispatches, self._arena, start, end - start, self._staged)

    def _outputs(self, step: Step) -> dict[str, Any]:
        assert self._staged is not None
        start, end = _at(self._places.outputs_start, step), _at(self._places.end, step)
        data = self._staged.read(end - start) if end > start else np.zeros(0, np.uint8)
        found = {}
        for value in self._program.outputs:
            shape = value.spec.at(T=step.T, B=step.B, L=step.L).shape
            kind = np.dtype(NUMBERS[value.dtype.name])
            first = _at(self._places.of[value.name], step) - start
            size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            part = data[first : first + size]
            narrow = value.dtype.name == "bf16"
            found[value.name] = Packed(value.dtype, shape, part) if narrow else part.view(kind).reshape(shape)
        return found


def _buffer(one: Any) -> Buffer:
    """Of a launch's buffers, one; a table of adapters has another when it has grown."""
    found: Buffer = getattr(one, "buffer", one)
    return found


def _at(form: Dim, step: Step) -> int:
    return form.at(T=step.T, B=step.B, L=step.L)
