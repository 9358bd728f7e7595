"""Killed at random: no paid reply is lost, the cap is never exceeded, and a finished run sends nothing."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from soaking import SOAK, times
from teacher_server import LABELS, TeacherServer, right_label, troubled

ROOT = Path(__file__).resolve().parents[2]
KILLS, ROWS = times(100, 8), times(800, 60)  # of each dialect
WORKERS = 4
CAP = times(40, 2)  # in units: enough for all, with what the kills may cost
URLS = {"openai": "/v1", "anthropic": "", "gemini": ""}


class Forks:
    """`weft` in one process after the other."""

    def __init__(self, printed: Path) -> None:
        self.printed = printed
        script = Path(__file__).with_name("forked_labelling.py")
        self._parent = subprocess.Popen(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def _line(self) -> int:
        assert self._parent.stdout is not None
        return int(self._parent.stdout.readline())

    def start(self, arguments: list[str]) -> int:
        """Begin; the process's id."""
        given = {"arguments": arguments, "printed": str(self.printed)}
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(given).encode() + b"\n")
        return self._line()

    @property
    def ended(self) -> bool:
        return bool(select.select([self._parent.stdout], [], [], 0)[0])

    def end(self) -> int:
        """Wait for the end; how it ended."""
        return self._line()

    def close(self) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait()


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    made = Forks(tmp_path / "printed")
    yield made
    made.close()


def command(server: TeacherServer, data: Path, out: Path, dialect: str) -> list[str]:
    made = ["distill", "label", str(data), "--teacher", f"{dialect}:big"]
    made += ["--base-url", server.url + URLS[dialect], "-o", str(out), "--labels", ",".join(LABELS)]
    made += ["--price-in", "3", "--price-out", "15", "--max-cost", str(CAP), "--max-tokens", "8", "--json"]
    return [*made, "--concurrency", str(WORKERS), "--timeout", "2", "--deadline", "3", "--retries", "20"]


@pytest.mark.soak
@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"] if SOAK else ["openai"])
def test_killed_at_any_time_nothing_paid_is_lost(tmp_path, dialect, forks):
    """The server's books are the judge: what was acknowledged is never asked for again, at most as many good replies
    are paid twice as were under way at a kill, and the bill stays below the cap."""
    faults = ("429", "503", "500", "drop", "short", "notjson", "usage_none", "usage_zero")
    server = TeacherServer(troubled(3, 0.15, faults), delay_s=0.03)
    data, out = tmp_path / "rows.jsonl", tmp_path / "out"
    data.write_text("".join(json.dumps({"id": n, "text": f"row {n} {LABELS[n % 3]}"}) + "\n" for n in range(ROWS)))
    own, killed, endings = random.Random(f"kills {dialect}"), 0, 0
    given = command(server, data, out, dialect)
    while killed < KILLS and endings < 3:
        asked = len(server.books.asked)
        process = forks.start(given)
        while len(server.books.asked) == asked and not forks.ended:
            time.sleep(0.005)  # until it sends: a process that was killed before is no test
        time.sleep(own.random() * 0.15)
        if forks.ended:
            endings += 1
        else:
            os.kill(process, signal.SIGKILL)
            killed += 1
        forks.end()
        assert server.books.billed <= CAP * 10**12
    forks.start(given)
    assert forks.end() == 0, forks.printed.read_text()
    done = json.loads(forks.printed.read_text())
    assert done["labelled"] == ROWS and killed >= (0.9 * KILLS if SOAK else 3)
    rows = [json.loads(line) for line in (out / "labels.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == [right_label(row["text"]) for row in rows]
    assert not server.books.broken_promises
    twice = sum(count - 1 for count in server.books.good.values())
    assert twice <= killed * WORKERS
    assert server.books.billed <= float(done["cost"]) * 10**12 + 1e6 <= CAP * 10**12 + 1e6
    asked = len(server.books.asked)
    forks.start(given)
    assert forks.end() == 0
    assert json.loads(forks.printed.read_text())["replies"] == 0 and len(server.books.asked) == asked
    print(f"{dialect}: {killed} kills, {asked} requests, {twice} replies paid twice, spent {done['cost']} of {CAP}")
    server.close()
