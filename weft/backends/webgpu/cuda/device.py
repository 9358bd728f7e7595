"""A GPU through CUDA, with the methods of the GPU through WebGPU that steps, weights and states use."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from weft import flags
from weft.backends.webgpu.cuda import driver as calls
from weft.backends.webgpu.cuda.attention import attention, rotation, whole
from weft.backends.webgpu.cuda.driver import CudaError, Driver, arguments_of
from weft.backends.webgpu.cuda.narrow import NARROW
from weft.backends.webgpu.cuda.products import MATRIX_PRODUCTS
from weft.backends.webgpu.cuda.rows import CLUSTERS, GROUP_MEMORY, rows_of
from weft.backends.webgpu.cuda.translate import Kernel, translated
from weft.backends.webgpu.device import COPIED_BYTES, COPY_ROUNDS, Adapter
from weft.backends.webgpu.launch import KERNELS as OPS
from weft.backends.webgpu.launch import PAGED, Launch
from weft.backends.webgpu.memory import free_memory
from weft.backends.webgpu.native import Dispatch
from weft.backends.webgpu.shader import Shader, shader
from weft.errors import BackendError, MemoryPlanError, NotFoundError
from weft.frozen import frozen

KERNELS = Path(__file__).parent / "kernels"
LARGEST = 8 << 30  # bytes of a buffer: kernels count words in 32 bits
COMPILING = 8  # threads
KIND = "DiscreteGPU"
HALF = ("HALF", "native")

Defines = tuple[tuple[str, str], ...]


class CudaBuffer:
    """Memory on the device, freed with this object. What was written last is kept for those of parameters, which
    kernels get by value."""

    def __init__(self, device: CudaDevice, nbytes: int, data: Any, kept: bool) -> None:
        self.device, self.nbytes = device, nbytes
        self.place = 0
        self.kept = bytearray(nbytes) if kept else None
        if not kept:
            self.place = device.driver.allocate(nbytes)
            device.used_bytes += nbytes
        if data is not None:
            self.write(0, data)

    def write(self, offset: int, data: Any) -> None:
        raw = np.ascontiguousarray(np.frombuffer(data, np.uint8) if isinstance(data, (bytes, memoryview)) else data)
        if self.kept is not None:
            self.kept[offset : offset + raw.nbytes] = raw.tobytes()
        elif raw.nbytes:
            with self.device.guard():
                self.device.driver.write(self.place + offset, raw.__array_interface__["data"][0], raw.nbytes)

    def read(self, offset: int, nbytes: int) -> memoryview:
        out = np.empty(nbytes, np.uint8)
        with self.device.guard():
            if nbytes:
                self.device.driver.enter()
                self.device.driver.read(out.ctypes.data, self.place + offset, nbytes)
            self.device.driver.wait()
        return out.data

    def __del__(self) -> None:
        if getattr(self, "place", 0):
            self.device.used_bytes -= self.nbytes
            self.device.driver.free(self.place)


class CudaStaging:
    """Memory of the machine that steps copy their results to."""

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        self.nbytes = max(16, -(-nbytes // 16) * 16)
        self._driver = device.driver
        self.place = device.driver.pinned(self.nbytes)

    def read(self, nbytes: int) -> np.ndarray:
        """The first bytes, after everything submitted before."""
        self._driver.wait()
        return np.frombuffer(ctypes.string_at(self.place, nbytes), np.uint8).copy()

    def __del__(self) -> None:
        if hasattr(self, "place"):
            self._driver.free_pinned(self.place)


@frozen(eq=False)
class Compiled:
    """A kernel on the device."""

    function: Any
    threads: int
    params: int  # bytes


class Commands:
    """The launches of a step and the copy of its results. The second time they are run they become a graph."""

    def __init__(self, driver: Driver, launches: Iterator[Any], copy: tuple[int, int, int]) -> None:
        self._driver, self._coming, self._copy = driver, launches, copy
        self._launches: list[Any] = []
        self._graph: Any = None
        self._times = 0

    def _ask(self, stream: Any = None) -> None:
        for function, grid, threads, (pointers, _) in self._launches or self._made():
            self._driver.launch(function, grid, threads, pointers, stream)
        target, source, nbytes = self._copy
        if nbytes:
            self._driver.read(target, source, nbytes, stream)

    def _made(self) -> Iterator[Any]:
        """The launches, each made while the device computes those before."""
        for one in self._coming:
            self._launches.append(one)
            yield one

    def run(self) -> None:
        self._times += 1
        if self._times == 1:
            self._driver.enter()
            self._ask()
            return
        if self._graph is None:
            self._graph = self._driver.recorded(self._ask)
        self._driver.start(self._graph)

    def __del__(self) -> None:
        if getattr(self, "_graph", None) is not None:
            self._driver.drop(self._graph)


class CudaDevice:
    """An opened GPU. `lock` is held by whoever starts steps and waits: one step at a time."""

    reuses = True  # commands can be submitted again
    kernels: Mapping[str, Callable[..., Iterator[Launch]]] = {**OPS, **NARROW}
    holds = ("f32", "i32", "bf16")
    busy = 512  # queries and heads

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver = driver
        limits = {"max-storage-buffer-binding-size": LARGEST, "max-buffer-size": LARGEST}
        kind = "IntegratedGPU" if driver.attribute(calls.INTEGRATED) else KIND
        version, capability = driver.version, driver.capability
        self.adapter = Adapter(
            index, driver.name, kind, "CUDA", version, limits, frozenset((f"sm_{capability}",)), None
        )
        self.capability = capability
        self.limits = limits
        self.products: Any = MATRIX_PRODUCTS
        self.fusing = True
        self.lock = threading.RLock()
        self.lost = ""
        self.used_bytes = 0
        self.counters = self.buffer(4 * self.busy, "counters")  # one for queries whose attention is split, all zero
        self._compiled: dict[tuple[str, Defines], tuple[Shader, Compiled]] = {}

    @property
    def largest_buffer(self) -> int:
        return self.limits["max-storage-buffer-binding-size"]

    def free_memory(self) -> tuple[int, str] | None:
        """Bytes free on the device and where the number comes from; None where they are the machine's."""
        if flags.get("WEFT_GPU_MEMORY") is not None or self.adapter.kind == "IntegratedGPU":
            return free_memory(self.adapter.name, self.adapter.kind, self.used_bytes)
        with self.guard():
            return self.driver.memory()[0], f"free memory of {self.adapter.name}"

    def buffer(
        self, nbytes: int, what: str, *, data: Any = None, data_of: CudaBuffer | None = None, readable: bool = False
    ) -> CudaBuffer:
        """Memory on the device: zeros, or these bytes, or those of a smaller buffer and zeros. MemoryPlanError where a
        kernel could not address it."""
        size, kept = max(16, -(-nbytes // 16) * 16), what == "parameters"
        if size > self.largest_buffer and not kept:
            given = f"{size:,} bytes; kernels address {self.largest_buffer:,} in one piece"
            raise MemoryPlanError("gpu", f"{what} is too large for the device: {given}", advice="use a smaller batch")
        with self.guard():
            made = CudaBuffer(self, size, data, kept)
            if data_of is not None:
                self.driver.copy(made.place, data_of.place, data_of.nbytes)
            return made

    def pipelines(self, wanted: Sequence[tuple[str, Defines]]) -> list[tuple[Shader, Compiled]]:
        """Kernels; those that are new are compiled side by side."""
        missing = [key for key in dict.fromkeys(wanted) if key not in self._compiled]
        kernels = [self._kernel(*key) for key in missing]
        with ThreadPoolExecutor(COMPILING) as pool:
            codes = list(pool.map(self._code, kernels))
        with self.guard():
            for key, kernel, code in zip(missing, kernels, codes):
                size = 4 * len(kernel.shader.params)
                compiled = Compiled(self.driver.load(code, kernel.launched, kernel.early), kernel.threads, size)
                self._compiled[key] = kernel.shader, compiled
        return [self._compiled[key] for key in wanted]

    def pipeline(self, name: str, defines: Defines) -> tuple[Shader, Compiled]:
        return self.pipelines([(name, defines)])[0]

    def _kernel(self, name: str, defines: Defines) -> Kernel:
        return translated(shader(name, (*defines, HALF), KERNELS))

    def _code(self, kernel: Kernel) -> bytes:
        """Compiled now, or kept on disk: under a hash of the text, the compiler and the GPU's architecture."""
        key = f"{calls.compiler_version()} {self.capability}\n{kernel.text}".encode()
        path = flags.cache_folder() / "cuda" / f"{blake2b(key, digest_size=16).hexdigest()}.cubin"
        with suppress(OSError):
            raw = path.read_bytes()
            if blake2b(raw[16:], digest_size=16).digest() == raw[:16]:
                return raw[16:]
        code = calls.compile_cubin(kernel.text, kernel.shader.name, self.capability)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{threading.get_ident()}")
            part.write_bytes(blake2b(code, digest_size=16).digest() + code)
            part.replace(path)
        return code

    def bind(self, written: tuple[bool, ...], arena: CudaBuffer, params: CudaBuffer, others: Sequence[Any]) -> Any:
        assert len(others) == len(written)
        return params, (arena, *others)

    def encoded(
        self, dispatches: Sequence[Dispatch], arena: CudaBuffer, start: int, nbytes: int, to: CudaStaging
    ) -> Commands:
        kept = {id(one): bytes(one.kept) for one in {id(params): params for _, (params, _), *_ in dispatches}.values()}

        def launches() -> Iterator[Any]:
            for made, (params, buffers), place, across, down in dispatches:
                numbers = kept[id(params)][place : place + made.params]
                arguments = arguments_of(numbers, [one.place for one in buffers])
                yield made.function, (across, down), made.threads, arguments

        return Commands(self.driver, launches(), (to.place, arena.place + start, nbytes))

    def specialised(self, launch: Launch) -> Launch:
        return rotation(launch)

    def attention(self, call: Any) -> Iterator[Launch] | None:
        return attention(call) if call.instr.op in PAGED else whole(call)

    def rows_of(self, program: Any, units: Any, call: Any) -> Iterator[Any]:
        able = int(self.capability) >= CLUSTERS and self.driver.attribute(calls.SHARED_MEMORY) >= GROUP_MEMORY
        return rows_of(program, units, call) if able else iter(())

    def submit(self, commands: Commands) -> None:
        commands.run()

    def staging(self, nbytes: int) -> CudaStaging:
        with self.guard():
            return CudaStaging(self, nbytes)

    def copy(self, parts: Sequence[tuple[CudaBuffer, int, int, int]]) -> None:
        """Within buffers: from, to and how many bytes."""
        with self.guard():
            for buffer, source, target, nbytes in parts:
                self.driver.copy(buffer.place + target, buffer.place + source, nbytes)

    def joined(self, parts: Sequence[tuple[CudaBuffer, int]]) -> CudaBuffer:
        """A buffer with the first bytes of these, one after another."""
        whole = self.buffer(sum(nbytes for _, nbytes in parts), "a joined weight")
        at = 0
        with self.guard():
            for buffer, nbytes in parts:
                self.driver.copy(whole.place + at, buffer.place, nbytes)
                at += nbytes
        return whole

    def bandwidth(self, nbytes: int) -> list[float]:
        """Bytes a second, read and written, of copies between two buffers of this size."""
        size = max(1 << 16, min(nbytes, self.largest_buffer) >> 12 << 12)
        source, target = self.buffer(size, "a copy"), self.buffer(size, "a copy")
        times = max(1, min(200, COPIED_BYTES // size))
        found = []
        with self.lock, self.guard():
            for _ in range(COPY_ROUNDS):
                self.driver.wait()
                began = time.perf_counter()
                for _ in range(times):
                    self.driver.copy(target.place, source.place, size)
                self.driver.wait()
                found.append(2 * size * times / (time.perf_counter() - began))
        return found[1:]  # the first one touches the memory

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Errors of the device as weft's own. After a loss nothing runs on it any more."""
        if self.lost:
            raise self._gone()
        try:
            yield
        except CudaError as error:
            if error.code == calls.NO_MEMORY:
                what = f"{self.adapter.name} has no memory left"
                raise MemoryPlanError("gpu", what, advice="use a smaller context, or device cpu") from error
            if error.lost:
                self.lost = str(error)
                raise self._gone() from error
            raise BackendError("gpu", f"{self.adapter.name} failed: {error}", advice="use device cpu") from error

    def _gone(self) -> BackendError:
        advice = "load the model again, or use device cpu"
        return BackendError("gpu", f"{self.adapter.name} was lost: {self.lost:.200}", advice=advice)


def open_cuda(index: int | None = None) -> CudaDevice:
    """The GPU of this index, opened once in a process, and again after it was lost."""
    found = _opened(index or 0)
    if found.lost:
        found.driver.reset()
        _opened.cache_clear()
        found = _opened(index or 0)
    return found


@cache
def _opened(index: int) -> CudaDevice:
    reason = calls.reason_against(index)
    if reason:
        raise BackendError("gpu", f"CUDA cannot be used: {reason}", field="device cuda", advice="use device gpu or cpu")
    count = calls.device_count()
    if index >= count:
        listed = ", ".join(f"cuda:{one}" for one in range(count))
        raise NotFoundError(
            "gpu", "there is no such GPU", field="device", given=f"cuda:{index}", advice=f"use {listed}"
        )
    return CudaDevice(Driver(index), index)
