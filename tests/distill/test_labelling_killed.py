"""Killed at random: no paid reply is lost, the cap is never exceeded, and a finished run sends nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from soaking import SOAK, times
from teacher_server import LABELS, TeacherServer, right_label, troubled

ROOT = Path(__file__).resolve().parents[2]
KILLS, ROWS = times(100, 8), times(800, 60)  # of each dialect
WORKERS = 4
CAP = times(40, 2)  # in units: enough for all, with what the kills may cost
URLS = {"openai": "/v1", "anthropic": "", "gemini": ""}


def started(server: TeacherServer, data: Path, out: Path, dialect: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "weft", "distill", "label", str(data), "--teacher", f"{dialect}:big"]
    command += ["--base-url", server.url + URLS[dialect], "-o", str(out), "--labels", ",".join(LABELS)]
    command += ["--price-in", "3", "--price-out", "15", "--max-cost", str(CAP), "--max-tokens", "8", "--json"]
    command += ["--concurrency", str(WORKERS), "--timeout", "2", "--deadline", "3", "--retries", "20"]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.soak
@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"] if SOAK else ["openai"])
def test_killed_at_any_time_nothing_paid_is_lost(tmp_path, dialect):
    """The server's books are the judge: what was acknowledged is never asked for again, at most as many good replies
    are paid twice as were under way at a kill, and the bill stays below the cap."""
    faults = ("429", "503", "500", "drop", "short", "notjson", "usage_none", "usage_zero")
    server = TeacherServer(troubled(3, 0.15, faults), delay_s=0.03)
    data, out = tmp_path / "rows.jsonl", tmp_path / "out"
    data.write_text("".join(json.dumps({"id": n, "text": f"row {n} {LABELS[n % 3]}"}) + "\n" for n in range(ROWS)))
    own, killed, endings = random.Random(f"kills {dialect}"), 0, 0
    while killed < KILLS and endings < 3:
        asked = len(server.books.asked)
        process = started(server, data, out, dialect)
        while len(server.books.asked) == asked and process.poll() is None:
            time.sleep(0.005)  # until it sends: a process that was killed before is no test
        time.sleep(own.random() * 0.25)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        else:
            endings += 1
        process.communicate()
        assert server.books.billed <= CAP * 10**12
    process = started(server, data, out, dialect)
    printed, problems = process.communicate(timeout=300)
    assert process.returncode == 0, problems.decode()
    done = json.loads(printed)
    assert done["labelled"] == ROWS and killed >= min(KILLS, 3)
    rows = [json.loads(line) for line in (out / "labels.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == [right_label(row["text"]) for row in rows]
    assert not server.books.broken_promises
    twice = sum(count - 1 for count in server.books.good.values())
    assert twice <= killed * WORKERS
    assert server.books.billed <= float(done["cost"]) * 10**12 + 1e6 <= CAP * 10**12 + 1e6
    asked = len(server.books.asked)
    process = started(server, data, out, dialect)
    printed, _ = process.communicate(timeout=60)
    assert json.loads(printed)["replies"] == 0 and len(server.books.asked) == asked
    server.close()
