"""Loading a GGUF file takes its size and little more."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys
import numpy, weft._core, weft.generate.engine, weft.generate.model, weft.graph.passes, weft.models.llama
import weft.text.tokenizer, weft.weights.gguf_config, weft.weights.gguf, weft.weights.sources.resolve
def field(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name))
before = field("VmRSS")
model = weft.load(sys.argv[1])
loaded = field("VmHWM") - before
model.generate("Once upon a time", max_tokens=8)
print(json.dumps({"loaded": loaded, "after_8_tokens": field("VmHWM") - before}))
"""


def out_of_the_page_cache(file: Path, folder: Path) -> Path:
    """A copy that the system has to read from the disk.

    A file just written lies in large pieces in the page cache, and the kernel maps up to two megabytes for each page
    that is touched. Resident memory counts them: 5 % of this file more or less, by how it came to the disk.
    """
    copy = folder / file.name
    shutil.copyfile(file, copy)
    with open(copy, "rb") as handle:
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return copy


@pytest.mark.weights
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_peak_memory_of_loading_is_the_file_and_fifteen_percent(smollm2: Path, tmp_path: Path) -> None:
    size = smollm2.stat().st_size
    copy = out_of_the_page_cache(smollm2, tmp_path)
    run = subprocess.run([sys.executable, "-c", CODE, str(copy)], capture_output=True, text=True, check=True)
    peak = json.loads(run.stdout)
    assert peak["loaded"] <= 1.15 * size, f"{peak['loaded'] / size:.3f} of the file"
    assert peak["after_8_tokens"] <= 1.35 * size, f"{peak['after_8_tokens'] / size:.3f} of the file"
