"""Writers that are killed at any moment, and eight at once, lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from soaking import times

SCRIPT = Path(__file__).with_name("registry_kills.py")


def run(*arguments: object) -> dict:
    ended = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=1800)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_writers_lose_nothing(tmp_path):
    count = times(500, 20)
    found = run(tmp_path, "kills", 11, count)
    assert found["kills"] == count and found["said"] > count


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_eight_processes_at_once_lose_nothing(tmp_path):
    found = run(tmp_path, "together", 3, times(60, 4))
    assert found["writers"] == 8 and found["done"] >= 8 * times(60, 4)
