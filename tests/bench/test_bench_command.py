"""weft bench prints a table and one JSON line, with the share of a measured roof; vs takes turns with what it finds."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from weft import flags

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    from weft.cli.app import app

    for flag in flags.all_flags():
        if flag.name != "WEFT_ISA":
            monkeypatch.delenv(flag.name, raising=False)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("weft.bench.roofs.SECONDS", 0.001)
    monkeypatch.setattr("weft.bench.roofs.REPEATS", 2)
    monkeypatch.setattr("weft.bench.versus.REST_S", 0.0)
    monkeypatch.setattr("weft.bench.kernels.SECONDS", 0.0)
    monkeypatch.setattr("weft.bench.kernels.AT_LEAST", 2)

    def call(*arguments: str) -> Result:
        result = CliRunner().invoke(app, ["bench", *arguments], prog_name="weft")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return call


def line_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    found = [line for line in result.stdout.splitlines() if line.startswith("{")]
    assert len(found) == 1
    return json.loads(found[0])


@pytest.mark.parametrize(
    "case, options, names",
    [
        ("decode", ["--tokens", "2", "60"], ["decode_1"]),
        ("prefill", ["--prompt", "40"], ["prefill_40"]),
        ("parallel", ["--sequences", "3"], ["parallel_3"]),
    ],
)
def test_a_generating_case_has_a_rate_and_a_roof(
    run: Run, generator: Path, case: str, options: list[str], names: list[str]
) -> None:
    result = run(case, "-m", str(generator), "--threads", "1", "--rounds", "2", *options)
    record = line_of(result)
    assert record["case"] == case and record["threads"] == 1 and record["rounds"] == 2
    assert [row["workload"] for row in record["rows"]] == names
    for row in record["rows"]:
        assert row["unit"] == "tokens/s" and len(row["values"]) == 2 and 0 < row["low"] <= row["median"] <= row["high"]
        assert ("share" in row) == bool(record["roofs"])  # the scalar level has no arithmetic roof
        assert "share" not in row or (row["share"] > 0 and row["roof"] in record["roofs"])
    assert list(record["workloads"]) == names
    assert names[0] in result.stdout.splitlines()[1]


def test_embedding_has_a_latency_and_rates(run: Run, embedder: Path) -> None:
    record = line_of(run("embed", "-m", str(embedder), "--threads", "1", "--rounds", "1", "--texts", "20"))
    assert [(row["workload"], row["unit"]) for row in record["rows"][:2]] == [
        ("embed_1", "ms"),
        ("embed_20_mixed", "tokens/s"),
    ]
    assert record["compute"] == "f32"


def test_kernels_stand_under_the_lower_roof(run: Run) -> None:
    record = line_of(run("kernels", "--type", "q8_0", "--type", "bf16", "--rows", "1", "--threads", "1"))
    assert [row["op"] for row in record["rows"]] == ["matmul_q", "matmul_bf16", "matmul"]
    assert all(row["us"] > 0 and row["share"] > 0 for row in record["rows"])
    assert run("kernels", "--type", "q9").exit_code == 2


def test_a_start_is_measured_in_a_process_of_its_own(run: Run, generator: Path) -> None:
    record = line_of(run("startup", "-m", str(generator), "--threads", "1", "--rounds", "1"))
    assert [(row["workload"], row["unit"]) for row in record["rows"]] == [("start", "ms"), ("peak memory", "MB")]


def test_peers_take_turns_and_are_listed_beside_weft(run: Run, generator: Path, peers: Path, tmp_path: Path) -> None:
    picture, kept = tmp_path / "bars.svg", tmp_path / "kept.jsonl"
    result = run("vs", "decode", "-m", str(generator), "--threads", "1", "--rounds", "2", "--peers", str(peers),
                 "--peer-python", sys.executable, "--plot", str(picture), "--save", str(kept))  # fmt: skip
    record = line_of(result)
    assert [row["runner"] for row in record["rows"]] == ["weft", "Fake"]
    assert record["about"]["Fake"] == "generate default 1" and record["rows"][1]["agreement"].endswith("/32")
    assert "the best" in result.stdout and "Lost" in result.stderr and "no-such-package" in result.stderr
    assert json.loads(kept.read_text()) == record
    assert picture.read_text().startswith("<svg ") and "Fake" in picture.read_text()


def test_interpreters_may_come_from_the_environment(
    run: Run, generator: Path, peers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_PEER_PYTHON", f"{peers / 'nothing'}")
    result = run("vs", "decode", "-m", str(generator), "--peers", str(peers))
    assert result.exit_code == 2 and "nothing cannot be started" in result.stderr


def test_a_peer_that_cannot_load_is_left_out_and_without_any_there_is_an_error(
    run: Run, generator: Path, peers: Path
) -> None:
    result = run("vs", "prefill", "-m", str(generator), "--threads", "1", "--peers", str(peers),
                 "--peer-python", sys.executable, "--files", "broken")  # fmt: skip
    assert result.exit_code == 2
    assert "left out" in result.stderr and "no such export" in result.stderr and "no peer could load" in result.stderr


def test_a_peer_that_fails_a_workload_is_left_out_of_it(run: Run, generator: Path, peers: Path) -> None:
    result = run("vs", "prefill", "-m", str(generator), "--threads", "1", "--rounds", "1", "--peers", str(peers),
                 "--peer-python", sys.executable)  # fmt: skip
    assert [row["runner"] for row in line_of(result)["rows"]] == ["weft"]
    assert "left out" in result.stderr and "prompts are too much" in result.stderr


def test_a_size_that_is_given_holds_in_quick_runs(run: Run, generator: Path, peers: Path) -> None:
    result = run("vs", "prefill", "-m", str(generator), "--threads", "1", "--rounds", "1", "--peers", str(peers),
                 "--peer-python", sys.executable, "--quick", "--prompt", "33")  # fmt: skip
    assert [row["workload"] for row in line_of(result)["rows"]] == ["prefill_33"]


def test_without_a_peer_the_error_says_what_to_install(run: Run, generator: Path, peers: Path) -> None:
    result = run("vs", "decode", "-m", str(generator), "--peers", str(peers), "--peer-python", sys.executable,
                 "--only", "nobody")  # fmt: skip
    assert result.exit_code == 2 and "llama-cpp-python" in result.stderr and "--peer-python" in result.stderr


def test_bars_are_drawn_on_the_terminal(run: Run, generator: Path) -> None:
    options = ("--tokens", "2", "40", "--rounds", "1", "--threads", "1", "--plot")
    assert "█" in run("decode", "-m", str(generator), *options).stdout


def test_ctrl_c_ends_the_peers_too(generator: Path, peers: Path) -> None:
    (peers / "fake.py").write_text((peers / "fake.py").read_text().replace("2000 * tokens", "10**9 * tokens"))
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", "bench", "vs", "decode", "-m", str(generator), "--threads", "1",
         "--peers", str(peers), "--peer-python", sys.executable],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()  # "not there: Lost": peers are found and loaded next
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in said
    assert gone(process.pid)


def gone(group: int) -> bool:
    """Whether a process group has ended, or does so within half a minute: orphans end after their parent."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        os.sched_yield()
    return False
