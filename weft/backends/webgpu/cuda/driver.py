"""NVIDIA's driver and run-time compiler through ctypes: libcuda comes with the driver, libnvrtc from the package
nvidia-cuda-nvrtc or a CUDA toolkit. Nothing is loaded before a GPU is asked for."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from weft.errors import BackendError

INSTALL = "pip install nvidia-cuda-nvrtc"
NEWER = "pip install --upgrade nvidia-cuda-nvrtc"
MAJOR, MINOR, PROCESSORS, INTEGRATED = 75, 76, 16, 18  # attributes of a device
DYNAMIC_SHARED = 8  # an attribute of a kernel
SHARED_MEMORY = 97  # an attribute of a device: bytes that a group may ask for
EARLY = 6  # an attribute of a launch: that it may begin when those before say so
EARLY_SINCE = 12_030  # the driver whose graphs know that
OLDEST = 80  # the capability of the first GPUs with the products of bfloats and tf32 that the kernels are made of
RELAXED = 2  # a capture during which other threads may call what they like
NON_BLOCKING = 1
LOST = frozenset((46, 700, 702, 704, 714, 715, 716, 717, 718, 719, 999))  # after these a context computes nothing more
NO_MEMORY = 2
DRIVERS = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")
COMPILERS = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
PACKAGED = ("nvidia/cu13/lib/libnvrtc.so.1?", "nvidia/cuda_nvrtc/lib/libnvrtc.so.1?")
TOOLKITS = ("/usr/local/cuda/lib64/libnvrtc.so.1?", "/usr/local/cuda/targets/*/lib/libnvrtc.so.1?")


class CudaError(Exception):
    """A call of the driver that failed: its name, and the number and text of the error."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.code = code

    @property
    def lost(self) -> bool:
        return self.code in LOST


class _Attribute(ctypes.Structure):
    _fields_ = [("kind", c_int), ("_", c_int), ("value", c_int), ("_rest", c_int * 15)]


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((name, c_uint) for name in ("across", "down", "deep", "threads", "_1", "_2", "shared")),
        *(("stream", c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", c_uint)),
    ]


EARLY_LAUNCH = (_Attribute * 1)(_Attribute(EARLY, 0, 1))


@lru_cache(maxsize=1)
def _driver() -> Any:
    for name in DRIVERS:
        with suppress(OSError):
            found = ctypes.CDLL(name)
            found.cuInit.restype = c_int
            return found if found.cuInit(0) == 0 else None
    return None


@lru_cache(maxsize=1)
def _compiler() -> Any:
    folders = [Path(folder) for folder in sys.path if folder]
    files = [str(file) for pattern in PACKAGED for folder in folders for file in sorted(folder.glob(pattern))]
    files += [str(file) for pattern in TOOLKITS for file in sorted(Path("/").glob(pattern[1:]))]
    for name in (*files, *COMPILERS):
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def reason_against(index: int = 0) -> str:
    """Why CUDA cannot be used here, or not with the GPU of this index; or nothing."""
    if _driver() is None:
        return "NVIDIA's driver is not here"
    if not device_count():
        return "NVIDIA's driver shows no GPU"
    if _compiler() is None:
        return f"libnvrtc is not here: {INSTALL}"
    if index >= device_count():
        return ""
    device, name = c_int(), ctypes.create_string_buffer(256)
    _call("cuDeviceGet", byref(device), index)
    _call("cuDeviceGetName", name, 256, device)
    capability, said = _capability(device), f"{name.value.decode()} has compute capability"
    if int(capability) < OLDEST:
        return f"{said} {_dotted(capability)}, and the kernels need {_dotted(str(OLDEST))}"
    if int(capability) not in architectures():
        return f"{said} {_dotted(capability)}, for which libnvrtc {compiler_version()} does not compile: {NEWER}"
    return ""


def _dotted(capability: str) -> str:
    return f"{capability[:-1]}.{capability[-1]}"


@cache
def architectures() -> frozenset[int]:
    """Capabilities that the compiler makes machine code for."""
    count = c_int()
    _compiler().nvrtcGetNumSupportedArchs(byref(count))
    found = (c_int * count.value)()
    _compiler().nvrtcGetSupportedArchs(found)
    return frozenset(found)


def _attribute(device: c_int, which: int) -> int:
    value = c_int()
    _call("cuDeviceGetAttribute", byref(value), which, device)
    return value.value


def _capability(device: c_int) -> str:
    return f"{_attribute(device, MAJOR)}{_attribute(device, MINOR)}"


def device_count() -> int:
    count = c_int()
    driver = _driver()
    return count.value if driver is not None and driver.cuDeviceGetCount(byref(count)) == 0 else 0


def device_names() -> list[tuple[str, str]]:
    """The name of each GPU, and the version of CUDA that the driver has; no GPU is opened."""
    found = []
    for index in range(device_count()):
        device, version, text = c_int(), c_int(), ctypes.create_string_buffer(256)
        _call("cuDeviceGet", byref(device), index)
        _call("cuDeviceGetName", text, 256, device)
        _call("cuDriverGetVersion", byref(version))
        found.append((text.value.decode(), _version(version.value)))
    return found


def _version(number: int) -> str:
    return f"CUDA {number // 1000}.{number % 1000 // 10}"


def check(call: str, code: int) -> None:
    if code:
        text = c_char_p()
        _driver().cuGetErrorString(code, byref(text))
        raise CudaError(call, code, (text.value or b"unknown").decode())


def _call(name: str, *arguments: Any) -> None:
    check(name, getattr(_driver(), name)(*arguments))


@cache
def compiler_version() -> str:
    major, minor = c_int(), c_int()
    _compiler().nvrtcVersion(byref(major), byref(minor))
    return f"{major.value}.{minor.value}"


def compile_cubin(text: str, name: str, capability: str) -> bytes:
    """The machine code of a text; BackendError with what the compiler said."""
    library = _compiler()
    if library is None:
        raise BackendError("gpu", "libnvrtc, which compiles CUDA's kernels, is not here", advice=INSTALL)
    program = c_void_p()
    library.nvrtcCreateProgram(byref(program), text.encode(), f"{name}.cu".encode(), 0, None, None)
    options = [
        f"--gpu-architecture=sm_{capability}",
        "--std=c++20",
        "--fmad=false",
        "--device-as-default-execution-space",
    ]
    raw = (c_char_p * len(options))(*(one.encode() for one in options))
    try:
        if library.nvrtcCompileProgram(program, len(options), raw):
            size = c_size_t()
            library.nvrtcGetProgramLogSize(program, byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise BackendError("gpu", f"{name} does not compile: {log.value.decode(errors='replace'):.2000}")
        size = c_size_t()
        library.nvrtcGetCUBINSize(program, byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        library.nvrtcDestroyProgram(byref(program))


class Driver:
    """One GPU: its memory, its kernels and one stream of work."""

    def __init__(self, index: int) -> None:
        self.device = c_int()
        _call("cuDeviceGet", byref(self.device), index)
        self._context, self.stream = c_void_p(), c_void_p()
        self._recording = c_void_p()  # other threads fill buffers in `stream`, which must not become part of a graph
        self._gone = False
        self._shared: dict[int, int] = {}  # bytes that a kernel's launches ask for
        self._early: set[int] = set()  # kernels that wait for those before themselves
        self._version = c_int()
        _call("cuDriverGetVersion", byref(self._version))
        _call("cuDevicePrimaryCtxRetain", byref(self._context), self.device)
        self.enter()
        _call("cuStreamCreate", byref(self.stream), NON_BLOCKING)
        _call("cuStreamCreate", byref(self._recording), NON_BLOCKING)

    def enter(self) -> None:
        """Every thread that calls the driver says for which context."""
        _call("cuCtxSetCurrent", self._context)

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        _call("cuDeviceGetName", text, 256, self.device)
        return text.value.decode()

    def attribute(self, which: int) -> int:
        return _attribute(self.device, which)

    @property
    def capability(self) -> str:
        return _capability(self.device)

    @property
    def version(self) -> str:
        return _version(self._version.value)

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""
        self.enter()
        free, total = c_size_t(), c_size_t()
        _call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, nbytes: int) -> int:
        """Zeros."""
        self.enter()
        place = c_uint64()
        _call("cuMemAlloc_v2", byref(place), c_size_t(nbytes))
        _call("cuMemsetD8Async", place, 0, c_size_t(nbytes), self.stream)
        return place.value

    def free(self, place: int) -> None:
        self._drop("cuMemFree_v2", c_uint64(place))

    def _drop(self, call: str, what: Any) -> None:
        """After a reset it is gone, and what is there now may be somebody else's."""
        if not self._gone:
            with suppress(CudaError):
                self.enter()
                _call(call, what)

    def pinned(self, nbytes: int) -> int:
        self.enter()
        place = c_void_p()
        _call("cuMemHostAlloc", byref(place), c_size_t(nbytes), 0)
        assert place.value is not None
        return place.value

    def free_pinned(self, place: int) -> None:
        self._drop("cuMemFreeHost", c_void_p(place))

    def write(self, place: int, source: int, nbytes: int) -> None:
        self.enter()
        _call("cuMemcpyHtoDAsync_v2", c_uint64(place), c_void_p(source), c_size_t(nbytes), self.stream)

    def read(self, target: int, place: int, nbytes: int, stream: Any = None) -> None:
        """Asked for; there after `wait`."""
        _call("cuMemcpyDtoHAsync_v2", c_void_p(target), c_uint64(place), c_size_t(nbytes), stream or self.stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.enter()
        _call("cuMemcpyDtoDAsync_v2", c_uint64(target), c_uint64(source), c_size_t(nbytes), self.stream)

    def wait(self) -> None:
        self.enter()
        _call("cuStreamSynchronize", self.stream)

    def load(self, code: bytes, shared: int, early: bool) -> Any:
        """The kernel `entry` of compiled code, whose launches get so many bytes of shared memory; `early`: they may
        begin before those asked for earlier have ended."""
        self.enter()
        module, function = c_void_p(), c_void_p()
        _call("cuModuleLoadData", byref(module), code)
        _call("cuModuleGetFunction", byref(function), module, b"entry")
        if shared:
            _call("cuFuncSetAttribute", function, DYNAMIC_SHARED, shared)
            self._shared[function.value or 0] = shared
        if early and self._version.value >= EARLY_SINCE:
            self._early.add(function.value or 0)
        return function

    def launch(self, function: Any, grid: tuple[int, int], threads: int, arguments: Any, stream: Any = None) -> None:
        shared, to = self._shared.get(function.value, 0), stream or self.stream
        if function.value in self._early:
            launch = _Launch(*grid, 1, threads, 1, 1, shared, to, EARLY_LAUNCH, 1)
            check("cuLaunchKernelEx", _driver().cuLaunchKernelEx(byref(launch), function, arguments, None))
            return
        code = _driver().cuLaunchKernel(function, *grid, 1, threads, 1, 1, shared, to, arguments, None)
        check("cuLaunchKernel", code)

    def recorded(self, work: Callable[[Any], None]) -> Any:
        """What `work` asks for in a stream as a graph, which is started as a whole."""
        self.enter()
        graph, made = c_void_p(), c_void_p()
        _call("cuStreamBeginCapture_v2", self._recording, RELAXED)
        try:
            work(self._recording)
        except CudaError:
            if _driver().cuStreamEndCapture(self._recording, byref(graph)) == 0:
                _driver().cuGraphDestroy(graph)
            raise
        _call("cuStreamEndCapture", self._recording, byref(graph))
        try:
            _call("cuGraphInstantiateWithFlags", byref(made), graph, c_uint64(0))
        finally:
            _driver().cuGraphDestroy(graph)
        return made

    def start(self, graph: Any) -> None:
        self.enter()
        _call("cuGraphLaunch", graph, self.stream)

    def drop(self, graph: Any) -> None:
        self._drop("cuGraphExecDestroy", graph)

    def reset(self) -> None:
        """After a loss: everything of this process on the GPU is gone."""
        self._gone = True
        _driver().cuDevicePrimaryCtxReset_v2(self.device)


def arguments_of(params: bytes, places: Sequence[int]) -> tuple[Any, Any]:
    """What a kernel is called with, and memory that has to live as long: parameters by value, then addresses."""
    values = [ctypes.create_string_buffer(params, max(1, len(params))), *(c_uint64(place) for place in places)]
    pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    return pointers, values
