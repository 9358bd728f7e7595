"""No chat template gets out of the sandbox or takes long or 128 MiB; weft's errors end it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from template_attacks import BOMBS, ESCAPES, SECRET

from weft.text import render

ATTACKS = Path(__file__).with_name("template_attacks.py")
ROOT = ATTACKS.parents[2]
LONGEST_S = 4  # of processor time; the worst takes 1.2 s on a slow machine
ERRORS = ("InputError", "FormatError", "UnsupportedError")


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """How each attack ended, by name; two processes render them, one after the other."""
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "secret.txt").write_text(SECRET)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEFT_SECRET": SECRET}
    rows: dict[str, dict[str, Any]] = {}
    for kind in ("escapes", "bombs"):
        command = [sys.executable, str(ATTACKS), kind]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr[-2000:]
        rows.update({f"{kind} {row['name']}": row for row in map(json.loads, done.stdout.splitlines())})
    return rows


def test_there_are_enough_attacks():
    assert len(ESCAPES) >= 80 and len(BOMBS) >= 30


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_finds_nothing(ended, name):
    row = ended[f"escapes {name}"]
    assert row["ending"] in (*ERRORS, "output"), row
    assert not row["leaks"] and not row["events"], row
    assert row["seconds"] < LONGEST_S, row


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_stopped_in_time_and_within_its_memory(ended, name):
    row = ended[f"bombs {name}"]
    assert row["ending"] in (*ERRORS, "output"), row
    assert not row["leaks"] and not row["events"], row
    assert row["seconds"] < LONGEST_S, row


def test_most_attacks_end_in_errors(ended):
    """Those that give output give nothing of interest: an attribute that there is not is empty, not an error."""
    for kind, share in (("escapes", 0.4), ("bombs", 0.9)):
        endings = [row["ending"] for name, row in ended.items() if name.startswith(kind)]
        assert sum(ending in ERRORS for ending in endings) >= share * len(endings)


def test_memory_is_counted_while_values_are_alive():
    once = "{% for i in range(300) %}{% set y = 'x' * 1000000 ~ i %}{% endfor %}done"
    assert render(once, [{"role": "user", "content": ""}]) == "done"
    kept = "{% set n = namespace(l=[]) %}{% for i in range(300) %}{% set n.l = n.l + ['x' * 1000000 ~ i] %}{% endfor %}"
    with pytest.raises(Exception, match="more than 48 MiB"):
        render(kept, [{"role": "user", "content": ""}])
