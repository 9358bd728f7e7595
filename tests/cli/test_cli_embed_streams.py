"""weft embed writes vectors as they are made: what is read stays little, and what stops it leaves what was done."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Run, start

import weft
from weft.cli import texts as streams
from weft.embed.results import EmbedInterrupted
from weft.errors import BackendError

TEXTS = [f"the cat {i} sat" for i in range(10)]
LINES = "".join(f"{text}\n" for text in TEXTS)


@pytest.fixture(scope="module")
def expected(embedder: Path) -> np.ndarray:
    return weft.Embedder(str(embedder)).encode(TEXTS)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of three texts."""
    monkeypatch.setattr(streams, "PORTION_TEXTS", 3)


def _read(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path)
    rows = [json.loads(line)["embedding"] if path.suffix == ".jsonl" else line.split() for line in path.open()]
    return np.array(rows, np.float32)


@pytest.mark.parametrize("ending", ["txt", "jsonl", "npy"])
def test_portions_together_are_the_whole(
    run: Run, embedder: Path, expected: np.ndarray, tmp_path: Path, ending: str, small: None
) -> None:
    target = tmp_path / f"out.{ending}"
    result = run("embed", "-m", str(embedder), "--output", str(target), input=LINES)
    assert result.exit_code == 0 and f"{len(TEXTS)} texts" in result.stderr
    assert np.array_equal(_read(target), expected)
    nothing = run("embed", "-m", str(embedder), "--output", str(target), input="")
    assert nothing.exit_code == 0 and len(_read(target)) == 0
    assert ending != "npy" or np.load(target).shape == (0, expected.shape[1])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_rows_are_read_as_they_are_wanted(small: None) -> None:
    read: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for i, text in enumerate(TEXTS):
            read.append(i)
            yield {"text": text, "n": i}

    parts = streams.in_portions(rows(), "text")
    assert [row["n"] for row in next(parts)] == [0, 1, 2] and read == [0, 1, 2]
    assert [[row["n"] for row in part] for part in parts] == [[3, 4, 5], [6, 7, 8], [9]]


@pytest.mark.parametrize("ending", ["txt", "jsonl", "npy"])
@pytest.mark.parametrize("interrupted", [True, False])
def test_what_stops_a_run_leaves_what_was_made(
    run: Run,
    embedder: Path,
    expected: np.ndarray,
    tmp_path: Path,
    ending: str,
    interrupted: bool,
    small: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embed = weft.Embedder.embed
    calls: list[int] = []

    def stopped(self: weft.Embedder, texts: Any, **options: Any) -> Any:
        made = embed(self, texts, **options)
        calls.append(len(made))
        if calls[-2:] != [3, 3]:
            return made
        raise EmbedInterrupted(made.first(2)) if interrupted else BackendError("remote", "gone")

    monkeypatch.setattr(weft.Embedder, "embed", stopped)
    target = tmp_path / f"out.{ending}"
    result = run("embed", "-m", str(embedder), "--output", str(target), input=LINES)
    count = 5 if interrupted else 3
    assert (
        result.exit_code == (130 if interrupted else 1)
        and f"the vectors of {count} texts were written" in result.stderr
    )
    assert np.array_equal(_read(target), expected[:count])


def test_a_row_is_written_as_to_a_file(run: Run, embedder: Path, tmp_path: Path) -> None:
    """Standard output has JSON that others read: dates as text, null for NaN."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install weft-engine[parquet]")
    import pyarrow.parquet as parquet

    day = arrow.array([0], arrow.date32())
    parquet.write_table(arrow.table({"text": ["a"], "day": day, "x": [float("nan")]}), tmp_path / "in.parquet")
    for more in ((), ("--output-dtype", "int8")):
        given = ("embed", "-m", str(embedder), "-i", str(tmp_path / "in.parquet"), "--format", "jsonl", *more)
        shown = run(*given)
        assert shown.exit_code == 0, shown.stderr
        row = json.loads(shown.stdout, parse_constant=pytest.fail)
        assert (row["day"], row["x"]) == ("1970-01-01", None)
        run(*given, "-o", str(tmp_path / "out.jsonl"))
        assert (tmp_path / "out.jsonl").read_text() == shown.stdout


def test_a_field_of_the_row_s_own_is_not_overwritten(run: Run, embedder: Path, small: None) -> None:
    rows = [{"text": text, "scale": 1} for text in TEXTS]
    rows[7]["embedding"] = "mine"
    given = ("embed", "-m", str(embedder), "--field", "text")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    refused = run(*given, "--format", "jsonl", input=lines)
    assert refused.exit_code == 2 and "row 8 already has a field 'embedding'" in refused.stderr
    assert len(refused.stdout.splitlines()) == 7 and "stopped; the vectors of 7 texts were written" in refused.stderr
    scaled = run(*given, "--format", "jsonl", "--output-dtype", "int8", input=lines)
    assert scaled.exit_code == 2 and "row 1 already has a field 'scale'" in scaled.stderr
    assert len(run(*given, input=lines).stdout.splitlines()) == len(TEXTS)  # numbers alone: nothing is overwritten


def test_a_pipe_is_no_output(run: Run, embedder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "out.npy")
    os.mkfifo(tmp_path / "b.scales.npy")
    monkeypatch.setattr(weft, "Embedder", lambda *a, **k: pytest.fail("a model was loaded"))
    for name, more in (("out.npy", ()), ("b.npy", ("--output-dtype", "int8"))):
        refused = run("embed", "a", "-m", str(embedder), "-o", str(tmp_path / name), *more)
        assert refused.exit_code == 2 and "is a pipe, a device" in refused.stderr and "`-o -`" in refused.stderr
    assert sorted(path.name for path in tmp_path.glob("*.npy")) == ["b.scales.npy", "out.npy"]


def test_a_run_that_made_nothing_leaves_the_file_as_it_was(run: Run, embedder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("of yesterday")
    assert run("embed", "-m", str(embedder), "-o", str(target), input="cat " * 100).exit_code == 2
    assert target.read_text() == "of yesterday" and not list(tmp_path.glob(".*"))


def test_a_text_that_is_too_long_is_named_by_its_place_in_all(
    run: Run, embedder: Path, tmp_path: Path, small: None
) -> None:
    target = tmp_path / "out.txt"
    result = run("embed", "-m", str(embedder), "-o", str(target), input=LINES + "cat " * 100)
    assert result.exit_code == 2 and f"text {len(TEXTS)} has" in result.stderr
    assert len(target.read_text().splitlines()) == 9  # of the portions before its own


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_lines_come_out_while_others_go_in_and_a_signal_keeps_them(embedder: Path, number: int, code: int) -> None:
    process = start("embed", "-m", str(embedder), "--threads", "1", stdin=subprocess.PIPE)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(b"the cat\n" * streams.PORTION_TEXTS)
    process.stdin.flush()
    made = process.stdout.read(1)  # though more may come in
    process.send_signal(number)
    made += process.stdout.read()
    said = process.stderr.read().decode()
    assert process.wait(timeout=60) == code and "Traceback" not in said
    lines = made.splitlines()
    assert len(lines) == streams.PORTION_TEXTS and len(set(lines)) == 1 and made.endswith(b"\n")
    assert f"the vectors of {len(lines):,} texts were written" in said


def test_a_process_in_the_background_obeys_sigterm(embedder: Path) -> None:
    def ignore() -> None:  # as a shell does before it starts one
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = start("embed", "-m", str(embedder), stdin=subprocess.PIPE, preexec_fn=ignore)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(b"the cat\n" * streams.PORTION_TEXTS)
    process.stdin.flush()
    process.stdout.readline()
    process.terminate()
    process.stdout.read()
    assert process.stderr.read().startswith(b"stopped; ") and process.wait(timeout=60) == 143
