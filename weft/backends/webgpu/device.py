"""A GPU through wgpu: which ones there are, and one that is opened with its buffers and pipelines.

`wgpu` is imported by the first function that needs it; nothing here runs at import time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np

from weft.backends.webgpu.launch import KERNELS
from weft.backends.webgpu.memory import free_memory
from weft.backends.webgpu.native import Dispatch, record, shader_module
from weft.backends.webgpu.products import GPU_PRODUCTS, SOFTWARE_PRODUCTS
from weft.backends.webgpu.shader import FIRST_BINDING, Shader, shader
from weft.errors import BackendError, MemoryPlanError, NotFoundError
from weft.frozen import frozen

API_NAMES = ("Vulkan", "Metal", "D3D12")  # OpenGL is left out: it lacks what the shaders need
ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
INSTALL = "pip install weft-engine[gpu]"
STRONG_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-compute-workgroups-per-dimension",
    "max-storage-buffers-per-shader-stage",
)
COPIED_BYTES, COPY_ROUNDS = 4 << 30, 4  # of a measurement of bandwidth
PARAMS_BYTES = 256  # between the parameters of two launches: what every device allows as a dynamic offset


@frozen(eq=False)
class Adapter:
    """A GPU that could be opened. `software`: a driver that computes on the CPU, for tests."""

    index: int
    name: str
    kind: str
    api: str
    driver: str
    limits: dict[str, int]
    features: frozenset[str]
    handle: Any

    @property
    def software(self) -> bool:
        return self.kind == "CPU"


def import_wgpu() -> Any:
    try:
        import wgpu
    except ImportError as error:
        what = "needs the package wgpu, which is not installed"
        raise BackendError("gpu", what, field="device gpu", advice=INSTALL) from error
    logging.getLogger("wgpu").setLevel(logging.ERROR)  # it warns of features that no shader here uses
    return wgpu


@lru_cache(maxsize=1)
def adapters() -> tuple[Adapter, ...]:
    """The GPUs of this machine, strongest kind first; software devices last. BackendError without wgpu."""
    wgpu = import_wgpu()
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    with suppress(RuntimeError):  # somebody else in this process made the instance already
        set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    found = [one for one in wgpu.gpu.enumerate_adapters_sync() if one.info["backend_type"] in API_NAMES]
    found.sort(key=lambda one: ORDER.index(one.info["adapter_type"]) if one.info["adapter_type"] in ORDER else 2)
    return tuple(_adapter(index, one) for index, one in enumerate(found))


def _adapter(index: int, handle: Any) -> Adapter:
    info = handle.info
    return Adapter(
        index,
        info["device"],
        info["adapter_type"],
        info["backend_type"],
        info["description"],
        dict(handle.limits),
        frozenset(handle.features),
        handle,
    )


def find_adapter(index: int | None) -> Adapter:
    """The adapter of this index, or the first. NotFoundError with what there is."""
    found = adapters()
    if not found:
        advice = "install the GPU's Vulkan driver (Debian: mesa-vulkan-drivers has a software one), or use device cpu"
        raise NotFoundError("gpu", "this machine shows no GPU", advice=advice)
    if index is None:
        index = 0
    if not 0 <= index < len(found):
        listed = ", ".join(f"gpu:{one.index} {one.name}" for one in found)
        raise NotFoundError("gpu", "there is no such GPU", field="device", given=f"gpu:{index}", advice=f"use {listed}")
    return found[index]


def open_device(index: int | None = None) -> Device:
    """The GPU of this index, opened once in a process, and again after it was lost."""
    found = _opened(index)
    if found.lost:
        _opened.cache_clear()
        found = _opened(index)
    return found


@cache
def _opened(index: int | None) -> Device:
    return Device(find_adapter(index))


class Device:
    """An opened GPU. `lock` is held by whoever encodes and waits: one step at a time."""

    reuses = False  # whether commands can be submitted again
    kernels = KERNELS
    holds: tuple[str, ...] = ("f32", "i32")  # types of values
    busy = 256  # workgroups that keep a GPU busy: attention of so many queries and heads is not split

    def __init__(self, adapter: Adapter) -> None:
        self._wgpu = import_wgpu()
        self.adapter = adapter
        self.limits = {name: adapter.limits[name] for name in STRONG_LIMITS}
        self.products = SOFTWARE_PRODUCTS if adapter.software else GPU_PRODUCTS
        self.fusing = True  # several instructions in one dispatch, with the same bits
        self.lock = threading.RLock()
        self.lost = ""  # what was said when the device was lost
        self.used_bytes = 0  # of all buffers that are alive
        self._layouts: dict[tuple[bool, ...], Any] = {}
        self._pipelines: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Shader, Any]] = {}
        self.native = adapter.handle.request_device_sync(required_limits=self.limits)
        self.queue = self.native.queue

    @property
    def largest_buffer(self) -> int:
        """Bytes that one binding can have."""
        return min(self.limits["max-storage-buffer-binding-size"], self.limits["max-buffer-size"]) // 4 * 4

    def free_memory(self) -> tuple[int, str] | None:
        """Bytes free on the device and where the number comes from; None where they are the machine's."""
        return free_memory(self.adapter.name, self.adapter.kind, self.used_bytes)

    def buffer(
        self, nbytes: int, what: str, *, data: Any = None, data_of: Buffer | None = None, readable: bool = False
    ) -> Buffer:
        """Memory on the device: zeros, or these bytes, or those of a smaller buffer and zeros. MemoryPlanError where it
        is more than one binding can have."""
        size = max(16, -(-nbytes // 16) * 16)
        if size > self.largest_buffer:
            given = f"{size:,} bytes; {self.adapter.name} allows {self.largest_buffer:,} in one piece"
            raise MemoryPlanError("gpu", f"{what} is too large for the device: {given}", advice="use a smaller batch")
        made = Buffer(self, size, data, readable)
        if data_of is not None:
            encoder = self.native.create_command_encoder()
            encoder.copy_buffer_to_buffer(data_of.native, 0, made.native, 0, data_of.nbytes)
            self.queue.submit([encoder.finish()])
        return made

    @cached_property
    def native_half(self) -> bool:
        """Whether the device's own function widens every float16 rightly. Software devices are not asked."""
        if self.adapter.software:
            return False
        self.__dict__["native_half"] = True  # while it is tried
        made, compiled = self.pipeline("halves", ())
        del self._pipelines["halves", ()], self.__dict__["native_half"]
        out, params = self.buffer(4 << 16, "a test"), self.buffer(PARAMS_BYTES, "a test")
        encoder = self.native.create_command_encoder()
        work = encoder.begin_compute_pass()
        work.set_pipeline(compiled)
        work.set_bind_group(0, self.bind(made.written, out, params, ()), [0])
        work.dispatch_workgroups((1 << 15) // 64)
        work.end()
        self.queue.submit([encoder.finish()])
        got = np.frombuffer(out.read(0, 4 << 16), np.float32)
        want = np.arange(1 << 16).astype(np.uint16).view(np.float16).astype(np.float32)
        number = ~np.isnan(want)
        return bool(np.array_equal(got[number].view(np.uint32), want[number].view(np.uint32)))

    def pipeline(self, name: str, defines: tuple[tuple[str, str], ...]) -> tuple[Shader, Any]:
        """The shader and its compiled form; kept."""
        key = (name, defines)
        if key not in self._pipelines:
            made = shader(name, (*defines, ("HALF", "native" if self.native_half else "")))
            module = shader_module(self.native, name, made.text)
            layout = self.native.create_pipeline_layout(bind_group_layouts=[self.layout(made.written)])
            compiled = self.native.create_compute_pipeline(
                layout=layout, compute={"module": module, "entry_point": "main"}
            )
            self._pipelines[key] = (made, compiled)
        return self._pipelines[key]

    def pipelines(self, wanted: Sequence[tuple[str, tuple[tuple[str, str], ...]]]) -> list[tuple[Shader, Any]]:
        return [self.pipeline(name, defines) for name, defines in wanted]

    def specialised(self, launch: Any) -> Any:
        """The launch as this device wants it."""
        return launch

    def attention(self, call: Any) -> None:
        """Launches of its own for attention: none."""

    def rows_of(self, program: Any, units: Any, call: Any) -> tuple[Any, ...]:
        """Launches of its own for several units of steps of one row: none."""
        return ()

    def submit(self, commands: Any) -> None:
        self.queue.submit([commands])

    def staging(self, nbytes: int) -> Staging:
        return Staging(self, nbytes)

    def layout(self, written: tuple[bool, ...]) -> Any:
        """The layout of the arena, the parameters, and buffers of which some are written."""
        if written not in self._layouts:
            kinds = [{"type": "storage"}, {"type": "uniform", "has_dynamic_offset": True}]
            kinds += [{"type": "storage" if one else "read-only-storage"} for one in written]
            entries = [
                {"binding": at, "visibility": self._wgpu.ShaderStage.COMPUTE, "buffer": kind}
                for at, kind in enumerate(kinds)
            ]
            self._layouts[written] = self.native.create_bind_group_layout(entries=entries)
        return self._layouts[written]

    def bind(self, written: tuple[bool, ...], arena: Buffer, params: Buffer, others: Sequence[Buffer]) -> Any:
        """A bind group of these buffers."""
        assert len(others) == len(written)
        resources = [{"buffer": arena.native, "offset": 0, "size": arena.nbytes}]
        resources.append({"buffer": params.native, "offset": 0, "size": PARAMS_BYTES})
        resources += [{"buffer": one.native, "offset": 0, "size": one.nbytes} for one in others]
        entries = [{"binding": at, "resource": resource} for at, resource in enumerate(resources)]
        assert len(entries) == FIRST_BINDING + len(written)
        return self.native.create_bind_group(layout=self.layout(written), entries=entries)

    def copy(self, parts: Sequence[tuple[Buffer, int, int, int]]) -> None:
        """Within buffers: from, to and how many bytes, whole words. By way of another one: none is copied to itself."""
        between = Buffer(self, sum(nbytes for *_, nbytes in parts), None, readable=False)
        encoder = self.native.create_command_encoder()
        at = 0
        for buffer, source, target, nbytes in parts:
            encoder.copy_buffer_to_buffer(buffer.native, source, between.native, at, nbytes)
            encoder.copy_buffer_to_buffer(between.native, at, buffer.native, target, nbytes)
            at += nbytes
        self.queue.submit([encoder.finish()])

    def bandwidth(self, nbytes: int) -> list[float]:
        """Bytes a second, read and written, of copies between two buffers of this size: so many are timed together that
        the wait for the last one does not matter."""
        size = max(1 << 16, min(nbytes, self.largest_buffer) >> 12 << 12)
        source, target = self.buffer(size, "a copy"), self.buffer(size, "a copy")
        times = max(1, min(200, COPIED_BYTES // size))
        found = []
        with self.lock, self.guard():
            for _ in range(COPY_ROUNDS):
                encoder = self.native.create_command_encoder()
                for _ in range(times):
                    encoder.copy_buffer_to_buffer(source.native, 0, target.native, 0, size)
                began = time.perf_counter()
                self.queue.submit([encoder.finish()])
                target.read(0, 16)
                found.append(2 * size * times / (time.perf_counter() - began))
        return found[1:]  # the first one touches the memory

    def joined(self, parts: Sequence[tuple[Buffer, int]]) -> Buffer:
        """A buffer with the first bytes of these, one after another."""
        whole = self.buffer(sum(nbytes for _, nbytes in parts), "a joined weight")
        encoder = self.native.create_command_encoder()
        at = 0
        for buffer, nbytes in parts:
            encoder.copy_buffer_to_buffer(buffer.native, 0, whole.native, at, nbytes)
            at += nbytes
        self.queue.submit([encoder.finish()])
        return whole

    def encoded(self, dispatches: Sequence[Dispatch], arena: Buffer, start: int, nbytes: int, to: Staging) -> Any:
        """Commands that run these one after another, and then copy a part of the arena to where it can be read."""
        encoder = self.native.create_command_encoder()
        work = encoder.begin_compute_pass()
        record(work, dispatches)
        work.end()
        if nbytes:
            encoder.copy_buffer_to_buffer(arena.native, start, to.native, 0, nbytes)
        return encoder.finish()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Errors of the device as weft's own. After a loss nothing runs on it any more."""
        if self.lost:
            raise self._gone(self.lost)
        try:
            yield
        except self._wgpu.GPUError as error:
            said = str(error)
            if isinstance(error, MemoryError):
                what = f"{self.adapter.name} has no memory left: {said:.200}"
                raise MemoryPlanError("gpu", what, advice="use a smaller context, or device cpu") from error
            if "lost" in said.lower():
                self.lost = said
                raise self._gone(said) from error
            raise BackendError("gpu", f"{self.adapter.name} failed: {said:.200}", advice="use device cpu") from error

    def _gone(self, said: str) -> BackendError:
        advice = "load the model again, or use device cpu"
        return BackendError("gpu", f"{self.adapter.name} was lost: {said:.200}", advice=advice)


class Staging:
    """Memory that commands copy results to, and that the machine reads when they have run."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._buffer = Buffer(device, max(16, -(-nbytes // 16) * 16), None, readable=True)
        self.native = self._buffer.native
        self.nbytes = self._buffer.nbytes

    def read(self, nbytes: int) -> np.ndarray:
        """The first bytes, after everything submitted before."""
        self.native.map_async("READ_NOSYNC", 0, nbytes).sync_wait()
        try:
            return np.array(np.frombuffer(self.native.read_mapped(0, nbytes, copy=False), np.uint8))
        finally:
            self.native.unmap()


class Buffer:
    """A buffer on the device, freed with this object."""

    def __init__(self, device: Device, nbytes: int, data: Any, readable: bool) -> None:
        usages = device._wgpu.BufferUsage
        usage = usages.COPY_DST | usages.MAP_READ if readable else usages.COPY_DST | usages.COPY_SRC | usages.STORAGE
        self.device = device
        self.nbytes = nbytes
        self.native = device.native.create_buffer(size=nbytes, usage=usage if readable else usage | usages.UNIFORM)
        device.used_bytes += nbytes
        if data is not None:
            self.write(0, data)

    def write(self, offset: int, data: Any) -> None:
        """Whole words at a multiple of 4 bytes."""
        if memoryview(data).nbytes:
            self.device.queue.write_buffer(self.native, offset, data)

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Whole words, after everything submitted before."""
        return self.device.queue.read_buffer(self.native, offset, nbytes)

    def __del__(self) -> None:
        native = getattr(self, "native", None)
        if native is not None:
            self.device.used_bytes -= self.nbytes
            native.destroy()
