"""Importing weft costs little and does nothing: no numpy, no thread, no socket, no process, no environment."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    heavy = {"numpy", "jinja2", "rich", "ssl", "asyncio", "urllib.request", "weft._core"}
    assert not heavy & set(imported(module)["modules"])


@pytest.mark.parametrize("module", ["weft", "weft.cli"])
def test_importing_does_nothing(module):
    seen = imported(module)
    assert not [event for event in seen["events"] if event.startswith(REFUSED)]
    assert seen["threads"] == 1
