"""weft migrate: every move from the command line, what is said about it, and how one goes on."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import environment

FOLDER = Path(__file__).resolve().parent.parent / "embed" / "migrate"
sys.path.insert(0, str(FOLDER))

from fake_embedder import FakeEmbedder  # noqa: E402

from weft.errors import TooLongError  # noqa: E402


@pytest.fixture
def asked(monkeypatch):
    """Models are made of hashes here; the list has what was asked for of each."""
    seen = []

    def load(name, **settings):
        seen.append((name, settings))
        made = FakeEmbedder(f"{name}/{settings['compute']}", 6)
        made.info["model"] = name
        return made

    monkeypatch.setattr("weft.embed.Embedder", load)
    return seen


@pytest.fixture
def notes(tmp_path, run, asked):
    """A store of 30 documents that serves the model `old`."""
    lines = tmp_path / "notes.jsonl"
    lines.write_text("".join(json.dumps({"id": f"d{i:02}", "text": f"text {i}"}) + "\n" for i in range(30)))
    path = str(tmp_path / "notes.db")
    assert "30 documents put; the store has 30" in run("migrate", "add", path, str(lines)).stderr
    done = run("migrate", path, "--to", "old")
    assert done.exit_code == 0 and "kept: 30 of 30 documents embedded" in done.stderr
    asked.clear()
    return path


def facts(run, notes):
    return json.loads(run("migrate", "status", notes, "--json").stdout)


def test_a_store_goes_to_a_model_and_back(run, notes):
    done = run("migrate", notes, "--to", "new", "--batch", "7")
    assert done.exit_code == 0
    assert "completed: 30 of 30 documents embedded" in done.stderr
    assert f"`weft migrate rollback {notes}`" in done.stderr
    assert facts(run, notes)["route"]["query"] == "fake:new/f32"
    assert "rolled back" in run("migrate", "rollback", notes).stderr
    assert facts(run, notes)["route"] == {"phase": "stable", "query": "fake:old/f32", "write": ["fake:old/f32"]}


def test_the_old_vectors_go_when_the_window_is_over(run, notes):
    run("migrate", notes, "--to", "new")
    early = run("migrate", "finish", notes)
    assert early.exit_code == 2 and "rollback window lasts another 86" in early.stderr
    assert run("migrate", "finish", notes, "--now").exit_code == 0
    assert facts(run, notes)["migration"]["settled"] == "kept"
    run("migrate", notes, "--to", "third", "--rollback-window", "0")
    assert run("migrate", "finish", notes).exit_code == 0


def test_options_of_the_model_are_kept_for_the_resumption(run, notes, asked, tmp_path, monkeypatch):
    given = ("--compute", "bf16", "--truncate", "head")
    name = str(tmp_path / "a folder 'with' words")
    Path(name).mkdir()
    monkeypatch.chdir(tmp_path)
    run("migrate", notes, "--to", "a folder 'with' words", *given)
    run("migrate", "add", notes, "-", "--threads", "2")
    wanted = {"compute": "bf16", "truncate": "head"}
    assert asked[0] == (name, {**wanted, "threads": None})
    assert asked[1] == (name, {**wanted, "threads": 2})
    assert asked[2] == ("old", {"compute": "f32", "truncate": "error", "threads": 2})


def test_a_failed_migration_says_why_and_is_resumed(run, notes, monkeypatch):
    real = FakeEmbedder.encode_document

    def offline(self, texts):
        raise ConnectionError("the network is gone")

    monkeypatch.setattr(FakeEmbedder, "encode_document", offline)
    failed = run("migrate", notes, "--to", "new")
    assert failed.exit_code == 1 and "the network is gone" in failed.stderr
    shown = run("migrate", "status", notes)
    assert "ConnectionError: the network is gone" in shown.stdout and "migrating" in shown.stdout
    assert f"go on: `weft migrate resume {notes}`" in shown.stderr
    monkeypatch.setattr(FakeEmbedder, "encode_document", real)
    assert run("migrate", "resume", notes).exit_code == 0


def test_what_is_skipped_is_counted_by_reason(run, notes, monkeypatch):
    real = FakeEmbedder.encode_document

    def short(self, texts):
        if "text 7" in texts:
            raise TooLongError("[embed] too long")
        return real(self, texts)

    monkeypatch.setattr(FakeEmbedder, "encode_document", short)
    assert "29 of 30 documents embedded" in run("migrate", notes, "--to", "new").stderr
    assert "1: ContentTooLarge" in run("migrate", "status", notes).stdout


def test_moves_that_are_not_there_are_refused_in_a_line(run, notes):
    for move in ("pause", "resume", "cancel", "rollback", "finish"):
        refused = run("migrate", move, notes)
        assert refused.exit_code == 2 and "no migration is open" in refused.stderr, move
    assert run("migrate", notes, "--to", "old").exit_code == 2
    assert run("migrate", notes).exit_code == 2
    assert run("migrate", "status", f"{notes}.not").exit_code == 2


def test_pause_skip_and_cancel_from_another_process(run, notes, monkeypatch):
    real, told = FakeEmbedder.encode_document, []

    def pausing(self, texts):
        if not told:
            told.append(run("migrate", "pause", notes))
        return real(self, texts)

    monkeypatch.setattr(FakeEmbedder, "encode_document", pausing)
    paused = run("migrate", notes, "--to", "new")
    assert paused.exit_code == 130 and f"go on: `weft migrate resume {notes}`" in paused.stderr
    assert "1 left out" in run("migrate", "skip", notes, "d04").stderr
    assert facts(run, notes)["migration"]["skips"] == {"ManualSkip": 1}
    assert "cancelled" in run("migrate", "cancel", notes).stderr
    assert facts(run, notes)["route"]["phase"] == "stable"


def test_documents_without_ids_are_refused(run, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n')
    refused = run("migrate", "add", str(tmp_path / "x.db"), str(path))
    assert refused.exit_code == 2 and "object 1 has no id in the field 'id'" in refused.stderr
    assert not (tmp_path / "x.db").exists()


INTERRUPTED = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import weft.embed
from fake_embedder import FakeEmbedder

def before(texts):
    if "text 10" in texts:
        os.kill(os.getpid(), signal.SIGINT)

weft.embed.Embedder = lambda name, **_: FakeEmbedder(f"{name}/f32", 6, before=before)
from weft.cli import main
main()
"""


def test_ctrl_c_pauses_and_says_how_to_go_on(run, notes):
    command = [sys.executable, "-c", INTERRUPTED, str(FOLDER), "migrate", notes, "--to", "new", "--batch", "10"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "paused: " in done.stderr and f"go on: `weft migrate resume {notes}`" in done.stderr
    assert facts(run, notes)["migration"]["state"] == "paused"
    assert run("migrate", "resume", notes).exit_code == 0
    assert facts(run, notes)["route"]["query"] == "fake:new/f32"


def test_a_process_that_is_gone_is_waited_for_or_taken_over(run, notes, monkeypatch):
    killed = INTERRUPTED.replace("signal.SIGINT", "signal.SIGKILL")
    command = [sys.executable, "-c", killed, str(FOLDER), "migrate", notes, "--to", "new", "--batch", "10"]
    assert subprocess.run(command, env=environment(), timeout=60).returncode == -signal.SIGKILL
    assert facts(run, notes)["migration"]["state"] == "running"
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    refused = run("migrate", "resume", notes)  # the wait above was none, so the lease still runs
    assert refused.exit_code == 1 and "waiting" in refused.stderr and 0 < waited[0] <= 30.1
    assert run("migrate", "resume", notes, "--take-over").exit_code == 0
    assert facts(run, notes)["migration"]["processed"] == 30


def test_a_real_model_embeds_a_store(run, embedder, tmp_path):
    import weft

    if "fingerprint" not in weft.Embedder(str(embedder)).info:
        pytest.skip("weft.Embedder has no fingerprint yet")
    lines = tmp_path / "notes.jsonl"
    lines.write_text('{"id": 1, "text": "a cat"}\n{"id": 2, "text": "a dog"}\n')
    path = str(tmp_path / "notes.db")
    run("migrate", "add", path, str(lines))
    assert run("migrate", path, "--to", str(embedder)).exit_code == 0
    assert facts(run, path)["migration"]["processed"] == 2
