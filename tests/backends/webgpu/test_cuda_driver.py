"""What is asked of NVIDIA's driver, by a library that only notes it; and with NVRTC, that it compiles every kernel."""

import ctypes
import zlib
from itertools import count

import numpy as np
import pytest
from emulated import EmulatedDriver
from gpus import ALL

from weft.backends.webgpu.cuda import driver as calls
from weft.backends.webgpu.cuda.backend import CudaBackend
from weft.backends.webgpu.cuda.device import Commands, CudaDevice
from weft.backends.webgpu.cuda.driver import CudaError, Driver, reason_against
from weft.backends.webgpu.cuda.narrow import NARROW
from weft.backends.webgpu.launch import KERNELS, STORED
from weft.backends.webgpu.top import Top
from weft.errors import BackendError
from weft.graph.single import single
from weft.ops.matmul import round_rows
from weft.ops.registry import catalogue
from weft.ops.samples import normal
from weft.ops.samples import weight as blocks
from weft.ops.spec import spec_of

MADE = (
    "cuModuleGetFunction",
    "cuStreamCreate",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
)
PRODUCTS = (*((kind, 8960) for kind in ("f32", "bf16")), *((kind, 512) for kind in STORED))


class Library:
    """Notes each call, and answers with a code; handles are numbers that rise."""

    def __init__(self, capability=80):
        self.asked, self.codes, self.handles, self.version = [], {}, count(1), 13_000
        self.attributes = {calls.MAJOR: capability // 10, calls.MINOR: capability % 10}

    def __getattr__(self, name):
        def call(*given):
            self.asked.append((name, given))
            if name in MADE:
                next(one for one in given if hasattr(one, "_obj"))._obj.value = next(self.handles)
            elif name == "cuDeviceGetCount":
                given[0]._obj.value = 1
            elif name == "cuDeviceGetAttribute":
                given[0]._obj.value = self.attributes[given[1]]
            elif name == "cuDriverGetVersion":
                given[0]._obj.value = self.version
            elif name == "cuDeviceGetName":
                given[0].value = b"Card"
            return self.codes.get(name, 0)

        return call

    def named(self, name):
        return [given for one, given in self.asked if one == name]


class Compiler:
    """Knows of two architectures."""

    def nvrtcGetNumSupportedArchs(self, found):
        found._obj.value = 2

    def nvrtcGetSupportedArchs(self, found):
        found[:] = [75, 80]

    def nvrtcVersion(self, major, minor):
        major._obj.value, minor._obj.value = 12, 4


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(calls, "_driver", lambda: made)
    return made


def commands(driver):
    launches = iter([(ctypes.c_void_p(5), (1, 1), 32, (None, ()))])
    return Commands(driver, launches, (64, 128, 16))


def test_what_other_threads_ask_for_while_a_step_is_recorded_is_not_part_of_it(library, monkeypatch):
    driver = Driver(0)
    made = commands(driver)
    made.run()
    plain = driver.launch

    def launch(*given):
        plain(*given)
        driver.allocate(16)  # as a thread that loads a model does

    monkeypatch.setattr(driver, "launch", launch)
    made.run()
    ((recording, _),) = library.named("cuStreamBeginCapture_v2")
    launched, recorded = (given[8].value for given in library.named("cuLaunchKernel"))
    _, read = (given[-1].value for given in library.named("cuMemcpyDtoHAsync_v2"))
    ((*_, cleared),), ((_, started),) = library.named("cuMemsetD8Async"), library.named("cuGraphLaunch")
    assert recorded == read == recording.value
    assert launched == cleared.value == started.value == driver.stream.value != recorded


@pytest.mark.parametrize("version, early, call", [
    (13_000, True, "cuLaunchKernelEx"), (13_000, False, "cuLaunchKernel"), (12_020, True, "cuLaunchKernel"),
])  # fmt: skip
def test_a_kernel_that_waits_itself_is_launched_before_others_end(library, version, early, call):
    """By drivers whose graphs know of it."""
    library.version = version
    driver = Driver(0)
    function = driver.load(b"", 99, early)
    driver.launch(function, (4, 2), 64, None)
    (given,) = library.named(call)
    if call == "cuLaunchKernelEx":
        made = given[0]._obj
        assert (made.across, made.down, made.threads, made.shared, made.stream) == (4, 2, 64, 99, driver.stream.value)
        assert (made.count, made.attributes[0].kind, made.attributes[0].value) == (1, calls.EARLY, 1)
    else:
        assert given[1:8] == (4, 2, 1, 64, 1, 1, 99)


def test_what_fails_while_a_step_is_recorded_is_what_is_said(library):
    made = commands(Driver(0))
    made.run()
    library.codes = {"cuLaunchKernel": 719, "cuStreamEndCapture": 901}
    with pytest.raises(CudaError, match="719") as found:
        made.run()
    assert found.value.lost


def test_nothing_is_freed_after_a_reset_since_others_may_have_its_place(library):
    driver = Driver(0)
    places = driver.allocate(16), driver.pinned(16)
    driver.free(places[0])
    assert len(library.named("cuMemFree_v2")) == 1
    driver.reset()
    driver.free(places[0])
    driver.free_pinned(places[1])
    driver.drop(ctypes.c_void_p(9))
    assert len(library.named("cuMemFree_v2")) == 1
    assert not library.named("cuMemFreeHost") and not library.named("cuGraphExecDestroy")


@pytest.mark.parametrize(
    "capability, reason",
    [
        (75, "Card has compute capability 7.5, and the kernels need 8.0"),
        (80, ""),
        (120, "12.0, for which libnvrtc 12.4"),
    ],
)
def test_a_gpu_that_kernels_cannot_be_compiled_for_is_not_used(library, monkeypatch, capability, reason):
    monkeypatch.setattr(calls, "_compiler", Compiler)
    library.attributes = Library(capability).attributes
    calls.architectures.cache_clear()
    calls.compiler_version.cache_clear()
    try:
        assert (reason in reason_against()) if reason else not reason_against()
    finally:
        calls.architectures.cache_clear()
        calls.compiler_version.cache_clear()


class CompilingDriver(EmulatedDriver):
    def load(self, code, shared, early):
        assert code[:4] == b"\x7fELF"


class CompilingDevice(CudaDevice):
    def _code(self, kernel):
        return calls.compile_cubin(kernel.text, kernel.shader.name, self.capability)


@pytest.fixture(scope="module")
def compiling():
    """A backend whose kernels are compiled for the oldest GPUs, and never run; or a skip."""
    if calls._compiler() is None:
        pytest.skip(f"libnvrtc is not here: {calls.INSTALL}")
    return CudaBackend(device=CompilingDevice(CompilingDriver(), 0))


def compile_op(backend, name, operands, attrs):
    bound = single(catalogue()[name], operands, attrs)
    states = {key: backend.state_from(state) for key, state in bound.states.items()}
    backend.compile(bound.program, bound.weights, states)


@pytest.mark.parametrize("name", sorted({*KERNELS, *NARROW} - {"matmul"}))
def test_nvrtc_compiles_an_op(compiling, name):
    found = list(catalogue()[name].samples_from(np.random.default_rng(zlib.crc32(name.encode()))))
    for operands, attrs in found if ALL else found[len(found) // 2 :][:1]:
        types = [spec_of(value).dtype for value in operands if value is not None]
        odd = attrs.get("rounded") and operands[1].shape[0] % 2
        if compiling.supports(name, types) and not attrs.get("split") and not odd:
            compile_op(compiling, name, operands, attrs)


@pytest.mark.parametrize("kind, depth", PRODUCTS)
def test_nvrtc_compiles_products_of_every_type(compiling, kind, depth):
    """Of one row, a few and many; parts of long rows fit into shared memory."""
    rng = np.random.default_rng(1)
    compile_op(compiling, "matmul", (normal(rng, 2, depth), blocks(rng, kind, 19, depth), normal(rng, 19)), {})
    if depth == 512:
        compile_op(compiling, "embedding", (np.array([0], np.int32), blocks(rng, kind, 3, depth)), {})


@pytest.mark.parametrize("dim", [40, 128, 200])
def test_nvrtc_compiles_attention_of_heads_of_every_length(compiling, dim):
    rng = np.random.default_rng(2)
    q, k, v = (normal(rng, 5, heads, dim) for heads in (4, 2, 2))
    starts = np.array([0, 2, 2, 5], np.int32)
    compile_op(compiling, "attention", (q, k, v, starts), {"causal": True, "window": 3, "scale": 0.1})
    if dim <= 128:  # what the op takes
        compile_op(compiling, "attention_bf16", (q, k, v, starts), {"scale": 0.1, "rounded": True})


@pytest.mark.parametrize("kept, masked", [(1, False), (64, True)])
def test_nvrtc_compiles_what_finds_the_largest(compiling, kept, masked):
    Top(compiling.device, 1500, kept, masked, aside=64, summed=True)


def test_nvrtc_says_what_does_not_compile(compiling):
    with pytest.raises(BackendError, match=r"wrong does not compile: wrong\.cu\(1\): error"):
        calls.compile_cubin("nothing here;", "wrong", "80")


def test_nvrtc_compiles_products_of_rows_of_16_bits(compiling):
    rng = np.random.default_rng(3)
    x, bias = normal(rng, 2, 288), normal(rng, 34)
    compile_op(compiling, "matmul_half", (x, blocks(rng, "f16", 34, 288), bias), {"activation": "gelu"})
    for rounded in (False, True):
        operands = round_rows(x), blocks(rng, "bf16", 34, 288), bias
        compile_op(compiling, "matmul_bf16", operands, {"rounded": rounded})
