"""Loading a GGUF file takes its size and little more."""

import json
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


@pytest.mark.weights
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_peak_memory_of_loading_is_the_file_and_fifteen_percent(smollm2: Path) -> None:
    size = smollm2.stat().st_size
    run = subprocess.run([sys.executable, "-c", CODE, str(smollm2)], capture_output=True, text=True, check=True)
    peak = json.loads(run.stdout)
    assert peak["loaded"] <= 1.15 * size, f"{peak['loaded'] / size:.3f} of the file"
    assert peak["after_8_tokens"] <= 1.35 * size, f"{peak['after_8_tokens'] / size:.3f} of the file"
