"""Hostile bundles and many cycles: nothing crashes, nothing leaks."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import libweft
import pytest
import tiny_adapters
from soaking import times
from tiny_chat import CONFIG, write_chat_model

from weft.export import export, export_adapter

CORPUS = libweft.ROOT / "tests" / "fuzz" / "corpus" / "bundle"
FUZZER = libweft.ROOT / "build" / "dev" / "fuzz" / "fuzz_bundle"


@pytest.mark.soak
def test_changed_bundles_are_refused_or_run() -> None:
    """The fuzz target on changed bundles: any crash, unknown error or malformed text ends it."""
    if not FUZZER.exists():
        pytest.skip("fuzz_bundle is not built here: `make native-test` builds it")
    command = [str(FUZZER), str(CORPUS), "--runs", str(times(1_000_000, 4_000))]
    command += ["--seconds", str(times(3600, 60)), "--seed", str(times(7, 1))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=times(7200, 600), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = re.search(r"(\d+) of (\d+) opened", done.stdout)
    assert found is not None, done.stdout
    opened, seen = map(int, found.groups())
    assert seen > 100 and opened > seen / 50, done.stdout  # else the changes reach nothing


@pytest.mark.soak
def test_opening_running_and_closing_leaks_nothing(st_bundle: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None or not Path("/proc/self/fd").is_dir():
        pytest.skip("needs a C compiler and /proc")
    libweft.load()
    model = write_chat_model(tmp_path / "m.gguf")
    decoder = export(str(model), tmp_path / "m.weft", context=64, adapters=True).path
    lora = tiny_adapters.write_adapter(tmp_path / "lora", CONFIG)
    adapter = export_adapter(str(model), lora, tmp_path / "lora.safetensors").path
    folder = libweft.LIBRARY.parent
    source = Path(__file__).parent / "cycles.c"
    link = [f"-L{folder}", "-lweft", f"-Wl,-rpath,{folder}"]
    command = [
        compiler,
        "-std=gnu99",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{libweft.ROOT / 'csrc' / 'capi'}",
        str(source),
    ]
    probe = [compiler, "-x", "c", "-", "-o", os.devnull]
    check = b"#include <malloc.h>\nint main(void) { return (int)mallinfo2().uordblks; }\n"
    if subprocess.run(probe, input=check, capture_output=True, check=False, timeout=600).returncode:
        pytest.skip("this C library cannot say how much of its heap is in use")
    subprocess.run([*command, *link, "-o", str(tmp_path / "cycles")], check=True, timeout=600)
    run = [str(tmp_path / "cycles"), str(times(1000, 60)), str(st_bundle), "-", str(decoder), str(adapter)]
    # One heap without caches of threads, so that what is in use is exact.
    exact = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1"}
    done = subprocess.run(run, capture_output=True, text=True, timeout=times(3600, 900), check=False, env=exact)
    assert done.returncode == 0, done.stdout + done.stderr
