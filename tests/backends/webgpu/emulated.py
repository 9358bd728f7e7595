"""CUDA's kernels on a processor: compiled with the machine's C++ compiler, thread after thread (emulate.h)."""

import ctypes
import mmap
import os
import re
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from hashlib import blake2b
from pathlib import Path

import pytest

from weft.backends.webgpu.cuda.backend import CudaBackend
from weft.backends.webgpu.cuda.device import CudaDevice

HEADER = Path(__file__).with_name("emulate.h")
FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-ffp-contract=off")
CHECKS = ("-fsanitize=alignment,bounds,shift-exponent,integer-divide-by-zero", "-fsanitize-undefined-trap-on-error")
PAGE = mmap.PAGESIZE


@cache
def compiler():
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")


@cache
def folder():
    """Of this run; a kernel is compiled once."""
    made = tempfile.TemporaryDirectory(prefix="weft-kernels-")
    folder.kept = made  # until the process ends
    return Path(made.name)


@cache
def header():
    """emulate.h, which gcc compiles once for all kernels."""
    copied = folder() / HEADER.name
    shutil.copy(HEADER, copied)
    command = [compiler(), *FLAGS, *CHECKS, "-x", "c++-header", "-o", f"{copied}.gch", str(copied)]
    subprocess.run(command, capture_output=True)  # other compilers do without
    return copied


def compiled(text):
    path = folder() / f"{blake2b(text.encode(), digest_size=16).hexdigest()}.so"
    if not path.exists():
        source = path.with_suffix(".cpp")
        together = re.search(r"__cluster_dims__\((\d+)", text)
        source.write_text(f'#include "{header()}"\n{text}\nWEFT_RUN({together[1] if together else 1})\n')
        command = [compiler(), *FLAGS, *CHECKS, "-shared", "-o", str(path), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
    return path


class EmulatedDriver:
    """Memory and kernels of this process. `fail` is raised by the next launch, once."""

    name, capability, version = "emulated", "80", "CUDA 0"

    def __init__(self):
        self.memories, self.fail, self.launches = {}, None, 0

    def attribute(self, which):
        return 0

    def enter(self):
        pass

    wait = reset = enter

    def memory(self):
        return 1 << 40, 1 << 40

    def allocate(self, nbytes):
        """Zeros that end where a page begins that cannot be touched."""
        size = -(-nbytes // PAGE) * PAGE
        kept = mmap.mmap(-1, size + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(kept))
        for edge in (start, start + PAGE + size):
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(edge), PAGE, 0) == 0
        place = start + PAGE + size - nbytes
        self.memories[place] = kept
        return place

    def free(self, place):
        del self.memories[place]

    pinned, free_pinned = allocate, free

    def write(self, place, source, nbytes):
        ctypes.memmove(place, source, nbytes)

    def read(self, target, place, nbytes, stream=None):
        ctypes.memmove(target, place, nbytes)

    copy = write

    def load(self, code, shared, early):
        return ctypes.CDLL(code.decode()).run

    def launch(self, function, grid, threads, arguments, stream=None):
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        self.launches += 1
        places = (ctypes.c_uint64 * (len(arguments) - 1))(
            *(ctypes.c_uint64.from_address(arguments[index]).value for index in range(1, len(arguments)))
        )
        ended = function(*grid, threads, ctypes.c_void_p(arguments[0]), places)
        assert ended >= 0, "a kernel has more than 48 KB of shared memory"
        assert not ended, f"a kernel was ended by {signal.Signals(ended).name}"

    def recorded(self, work):
        return work

    def start(self, graph):
        graph()

    def drop(self, graph):
        pass


class EmulatedDevice(CudaDevice):
    def _code(self, kernel):
        return str(compiled(kernel.text)).encode()


def emulated():
    """A backend whose kernels run here, or a skip."""
    if compiler() is None:
        pytest.skip("no C++ compiler here")
    header()  # made before several threads want it
    return CudaBackend(device=EmulatedDevice(EmulatedDriver(), 0))
