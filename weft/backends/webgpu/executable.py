"""A program as a list of dispatches. A step puts in its sizes, encodes them, and reads outputs back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from weft.backends.base import Executable
from weft.backends.webgpu.device import PARAMS_BYTES, Buffer, Device, Staging
from weft.backends.webgpu.launch import KERNELS, Call, Launch, bits, copy
from weft.backends.webgpu.native import Dispatch
from weft.errors import BackendError
from weft.graph.plan import ALIGN
from weft.graph.program import Program, Value, bind_sizes
from weft.ops.spec import Dim, linear

Step: TypeAlias = tuple[int, int, int]  # T, B and L
WIDEST = 65_535  # workgroups on one axis: what every device allows
NUMBERS = {"f32": np.float32, "i32": np.int32}


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


class GpuExecutable(Executable):
    """A bound program. Steps of all executables of a device take turns."""

    def __init__(self, device: Device, program: Program, bound: Mapping[str, Any]) -> None:
        self._program = program
        self._device = device
        self._places = Places(program)
        for value in program.values:
            if value.kind in ("input", "output", "buffer") and value.dtype.name not in NUMBERS:
                raise BackendError(program.name, f"{value.name} is {value.dtype}; a GPU holds f32 and i32")
        self._launches = [launch for instr in program.body for launch in self._launches_of(instr, bound)]
        self._pipelines = [device.pipeline(one.shader, one.defines) for one in self._launches]
        self._forms = np.zeros((len(self._launches), PARAMS_BYTES // 4, 4), np.int64)
        for at, (launch, (shader, _)) in enumerate(zip(self._launches, self._pipelines)):
            assert {name for name, _ in shader.params} == set(launch.params), launch.shader
            for index, (name, _) in enumerate(shader.params):
                self._forms[at, index] = bits(launch.params[name])
        self._items = np.array([linear(one.items).coefficients for one in self._launches], np.int64).reshape(-1, 4)
        self._per = np.array([one.per for one in self._launches], np.int64)
        self._least = np.array([one.least for one in self._launches], np.int64)
        self._most = np.array([one.most for one in self._launches], np.int64)
        self._times = np.array([one.times for one in self._launches], np.int64)
        self._params = device.buffer(max(1, len(self._launches)) * PARAMS_BYTES, "parameters")
        self._arena: Buffer | None = None
        self._groups: list[Any] = []  # bind groups, of this arena
        self._sizes: Step | None = None  # that the parameters are for
        self._staged: Staging | None = None  # where outputs are read
        self._plan: tuple[Step, list[Dispatch]] | None = None  # the dispatches of the last step
        self._ready: tuple[Step, Any] | None = None  # commands of a step of these sizes, not submitted yet

    def _launches_of(self, instr: Any, bound: Mapping[str, Any]) -> list[Launch]:
        if instr.op == "reshape":
            source, result = instr.inputs[0], instr.outputs[0]
            if self._places.of[source] == self._places.of[result]:
                return []
            return list(copy(Call(instr, self._program.table, self._places.of, {})))
        if instr.op not in KERNELS:
            raise BackendError(self._program.name, f"the GPU backend has no {instr.op}", advice="use the cpu backend")
        products = self._device.products
        return list(KERNELS[instr.op](Call(instr, self._program.table, self._places.of, bound, products)))

    @property
    def program(self) -> Program:
        return self._program

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        sizes = bind_sizes(self._program, inputs)
        step = (sizes["T"], sizes["B"], sizes["L"])
        with self._device.lock, self._device.guard():
            again = self._sizes == step
            arena = self._prepared(step)
            arena.write(0, self._joined(inputs, step))
            ready, self._ready = self._ready, None
            commands = ready[1] if ready is not None and ready[0] == step else self._encoded(step)
            self._device.queue.submit([commands])
            if again:  # another one is likely: encoded while the device computes this one
                self._ready = (step, self._encoded(step))
            return self._outputs(step)

    def _prepared(self, step: Step) -> Buffer:
        """The arena, large enough, and parameters for a step of these sizes."""
        wanted = _at(self._places.end, step)
        if self._arena is None or self._arena.nbytes < wanted:
            self._arena, self._groups, self._plan, self._ready = None, [], None, None  # freed first
            arena = self._device.buffer(wanted, "the working memory of a step")
            self._groups = [
                self._device.bind(shader.written, arena, self._params, launch.buffers)
                for launch, (shader, _) in zip(self._launches, self._pipelines)
            ]
            self._arena = arena
        size = wanted - _at(self._places.outputs_start, step)
        if self._staged is None or self._staged.nbytes < size:
            self._staged, self._ready = None, None
            self._staged = Staging(self._device, size)
        if self._sizes != step:
            numbers = self._forms @ np.array([*step, 1])
            self._params.write(0, numbers.astype(np.uint32))
            self._sizes = step
        return self._arena

    def _joined(self, inputs: Mapping[str, Any], step: Step) -> np.ndarray:
        """All inputs as the arena has them."""
        data = np.zeros(_at(self._places.inputs_end, step), np.uint8)
        for value in self._program.inputs:
            given = inputs[value.name]
            kind = NUMBERS[value.dtype.name]
            if (given.dtype.kind in "iu") != (kind is np.int32):
                raise BackendError(self._program.name, f"{value.name} must be {value.dtype}: got {given.dtype}")
            start = _at(self._places.of[value.name], step)
            raw = np.ascontiguousarray(given, kind).reshape(-1).view(np.uint8)
            data[start : start + raw.size] = raw
        return data

    def _dispatches(self, step: Step) -> list[Dispatch]:
        if self._plan is None or self._plan[0] != step:
            items = self._items @ np.array([*step, 1])
            used = (items >= self._least) & (items <= self._most)
            counts = np.where(used, -(-items // self._per) * self._times, 0)
            found = []
            for at, groups in enumerate(counts.tolist()):
                if groups > 0:
                    across = min(groups, WIDEST)
                    place = at * PARAMS_BYTES
                    found.append(
                        Dispatch(self._pipelines[at][1], self._groups[at], place, across, -(-groups // across))
                    )
            self._plan = (step, found)
        return self._plan[1]

    def _encoded(self, step: Step) -> Any:
        """All dispatches of a step and the copy of its outputs, to be submitted once."""
        assert self._arena is not None and self._staged is not None
        start, end = _at(self._places.outputs_start, step), _at(self._places.end, step)
        return self._device.encoded(self._dispatches(step), self._arena, start, end - start, self._staged)

    def _outputs(self, step: Step) -> dict[str, Any]:
        assert self._staged is not None
        start, end = _at(self._places.outputs_start, step), _at(self._places.end, step)
        data = self._staged.read(end - start) if end > start else np.zeros(0, np.uint8)
        found = {}
        for value in self._program.outputs:
            shape = value.spec.at(T=step[0], B=step[1], L=step[2]).shape
            kind = np.dtype(NUMBERS[value.dtype.name])
            first = _at(self._places.of[value.name], step) - start
            size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            found[value.name] = data[first : first + size].view(kind).reshape(shape)
        return found


def _at(form: Dim, step: Step) -> int:
    return form.at(T=step[0], B=step[1], L=step[2])
