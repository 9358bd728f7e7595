"""Importing weft costs little and does nothing: no numpy, no thread, no socket, no process, no environment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_st
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.weights import open_safetensors, write_gguf

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 0.15
REFUSED = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.putenv", "os.system", "os.mkdir")

# Runs in a fresh interpreter: what `import module` did, as one line of JSON.
PROBE = """
import sys, time
events = []
sys.addaudithook(lambda event, args: events.append(event))
before = time.process_time()
import MODULE
spent = time.process_time() - before
import json, os, threading
tasks = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
print(json.dumps({"spent": spent, "modules": sorted(sys.modules), "events": sorted(set(events)), "threads": tasks}))
"""

# What loading a model and its first token do not need: the catalogue of ops and what makes programs (the program is in
# the cache), the network, the terminal, templates. Of the models only the file of this one is imported, for its names.
NOT_TO_START = {
    *("asyncio", "concurrent.futures", "difflib", "email", "http", "logging", "multiprocessing", "shutil", "socket"),
    *("ssl", "subprocess", "tempfile", "urllib.request", "click", "jinja2", "rich"),
    *(
        "weft.backends.webgpu",  # a model on the CPU starts as if the extra `gpu` were not there
        "wgpu",
        "weft.cli",
        "weft.graph",
        "weft.nn.attention",
        "weft.nn.layers",
        "weft.nn.rotary",
        "weft.ops",
        "weft.text.chat",
        "weft.text.sandbox",
    ),
    *("weft.weights.gguf_export", "weft.weights.pack", "weft.weights.sources.catalog"),
    *("weft.weights.sources.hub", "weft.weights.sources.pypi", "weft.weights.sources.transfer"),
}
# The first line of output are the modules of `weft.load`, up to where weights are packed; the second, those of all.
START = """
import json, sys
packed = []
import weft._core
make = weft._core.pack.Packing
def noted(*arguments):
    packed.append(sorted(sys.modules))
    return make(*arguments)
weft._core.pack.Packing = noted
import weft
DO
print(json.dumps([packed[0], sorted(sys.modules)]))
"""
GENERATE = "weft.load(sys.argv[1]).generate([1, 2, 3], max_tokens=1)"
EMBED = "weft.Embedder(sys.argv[1]).encode(['a cat'])"


def imported(module: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.replace("MODULE", module)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", ["weft", "weft.cli"])
def test_importing_is_light(module):
    spent = [imported(module)["spent"] for _ in range(5)]
    assert min(spent) < LIMIT_S, f"import {module} took {min(spent):.3f} s of CPU at best"


@pytest.mark.parametrize("module", ["weft", "weft.cli"])
def test_importing_brings_no_heavy_package(module):
    heavy = {
        "numpy",
        "jinja2",
        "rich",
        "ssl",
        "asyncio",
        "urllib.request",
        "weft._core",
        "wgpu",
        "weft.backends.webgpu",
    }
    assert not heavy & set(imported(module)["modules"])


@pytest.mark.parametrize("module", ["weft", "weft.cli"])
def test_importing_does_nothing(module):
    seen = imported(module)
    assert not [event for event in seen["events"] if event.startswith(REFUSED)]
    assert seen["threads"] == 1


def started(do: str, model: Path, cache: Path) -> tuple[set[str], set[str]]:
    """Modules that were imported when packing began, and at the end, where the program was in the cache.

    Those that this Python and its numpy import by themselves are left out of the second.
    """
    environment = {**os.environ, "WEFT_PROGRAM_CACHE": "1", "WEFT_CACHE": str(cache)}
    command = [sys.executable, "-c", START.replace("DO", do), str(model)]
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    by_themselves = set(imported("numpy")["modules"])
    return set(before), set(after) - by_themselves | {"numpy"} & set(after)


def tiny_gguf(path: Path) -> Path:
    """A tiny llama as GGUF, without a tokenizer."""
    folder = tiny.write_folder(path / "llama", tiny.LLAMA)
    opened = open_safetensors(folder / "model.safetensors")
    metadata = gguf_from_config(tiny.LLAMA)
    write_gguf(path / "tiny.gguf", gguf_tensors(tiny.LLAMA, opened.tensors), metadata)
    return path / "tiny.gguf"


def models(modules: set[str]) -> set[str]:
    """The files of models among these modules."""
    return {name.removeprefix("weft.models.") for name in modules if name.startswith("weft.models.")}


def test_generating_imports_only_what_it_needs(tmp_path: Path) -> None:
    before, after = started(GENERATE, tiny_gguf(tmp_path), tmp_path / "cache")
    assert NOT_TO_START & after == set() and models(after) == {"llama"}
    assert "numpy" not in before and "numpy" in after  # it is imported while the weights are packed


def test_embedding_imports_only_what_it_needs(tmp_path: Path) -> None:
    before, after = started(EMBED, tiny_st.write_st_folder(tmp_path / "model"), tmp_path / "cache")
    assert NOT_TO_START & after == set() and models(after) == {"bert"}
    assert "numpy" not in before and "numpy" in after
