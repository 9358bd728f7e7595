"""A grammar that asks for too much is refused in time and within its memory, and holds nobody else up for long."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from weft.errors import BusyError, InputError, UnsupportedError
from weft.generate.grammar import Grammar, limits

MOST_MEBIBYTES = 64
MOST_SECONDS = 4 * limits.COMPILE_SECONDS  # waiting for another, making, compiling; and 16 steps


def test_hostile_grammars_are_refused_or_compiled_within_their_limits() -> None:
    script = Path(__file__).with_name("hostile_grammars.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) >= 60
    assert [case for case in found if case[2] > MOST_SECONDS or case[3] > MOST_MEBIBYTES] == []
    assert sum(ended == "ok" for _, ended, *_ in found) > 20


def test_who_takes_too_long_is_left_behind_and_one_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPILE_SECONDS", 0.02)
    go_on, ended = threading.Event(), threading.Event()

    def slow() -> None:
        go_on.wait()
        ended.set()

    with pytest.raises(UnsupportedError, match=r"longer than 0\.02 s"):
        limits.in_time("regex", slow)
    with pytest.raises(BusyError, match="another grammar"):
        limits.in_time("regex", lambda: 1)
    monkeypatch.setattr(limits, "COMPILE_SECONDS", 60.0)
    go_on.set()
    assert limits.in_time("regex", lambda: 1) == 1
    assert ended.is_set()


def test_errors_come_out_and_the_next_is_compiled() -> None:
    def wrong() -> None:
        raise InputError("regex", "no")

    for _ in range(2):
        with pytest.raises(InputError, match="no"):
            limits.in_time("regex", wrong)
    assert Grammar.regex("a")


def test_terminals_are_measured_with_what_they_name() -> None:
    parts = 'start: A b // A A A\nB: /xx/ "yy"\nA.2: B\n  | B "B B" # B\nb: B "zz" /ww/\n%ignore /v/\n'
    own, uses, loose = limits._definitions(parts)
    assert own == {"B": 8, "A": 5} and uses == {"B": [], "A": ["B", "B"]} and loose == [4, 4, 3]
    limits.check_lark("start: A\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(8)) + "A8: /a?/\n", "lark")
    with pytest.raises(InputError, match="expressions are too long"):
        limits.check_lark(
            "start: A\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(20)) + "A20: /a/\n", "lark"
        )
    limits.check_lark("start: A\nA: B\nB: A\n", "lark")  # a circle is somebody else's to refuse
    with pytest.raises(UnsupportedError):
        Grammar.lark('start: A\nA: "a" B\nB: A\n')
