"""weft migrate: every move from the command line, what is said about it, and how one goes on."""

import json
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from running import environment

FOLDER = Path(__file__).resolve().parent.parent / "embed" / "migrate"
sys.path.insert(0, str(FOLDER))

from fake_embedder import FakeEmbedder  # noqa: E402

from weft.embed.stores import open_store  # noqa: E402
from weft.errors import TooLongError  # noqa: E402


def refuse_long(texts):
    for at, text in enumerate(texts):
        if "long" in text:
            raise TooLongError("embed", "has 607 tokens", length=607, limit=512, field="text", index=at)


@pytest.fixture
def asked(monkeypatch):
    """Models are made of hashes here; the list has what was asked for of each."""
    seen = []

    def load(name, **settings):
        seen.append((name, settings))
        made = FakeEmbedder(f"{name}/{settings['compute']}", 6)
        made.info["model"] = name
        if settings["truncate"] == "error":
            made.before = refuse_long
        return made

    monkeypatch.setattr("weft.embed.Embedder", load)
    return seen


@pytest.fixture
def notes(tmp_path, run, asked):
    """A store of 30 documents that serves the model `old`."""
    lines = tmp_path / "notes.jsonl"
    lines.write_text("".join(json.dumps({"id": f"d{i:02}", "text": f"text {i}"}) + "\n" for i in range(30)))
    path = str(tmp_path / "notes.db")
    assert "30 documents added; the store has 30" in run("store", "add", path, str(lines)).stderr
    done = run("migrate", path, "--to", "old")
    assert done.exit_code == 0 and "finished: 30 of 30 documents embedded" in done.stderr
    asked.clear()
    return path


def facts(run, notes):
    return json.loads(run("migrate", "status", notes, "--json").stdout)


def test_a_store_goes_to_a_model_and_back(run, notes):
    done = run("migrate", notes, "--to", "new", "--batch", "7")
    assert done.exit_code == 0
    assert "completed: 30 of 30 documents embedded" in done.stderr
    assert f"weft migrate rollback {notes};" in done.stderr
    assert facts(run, notes)["route"]["query"] == "fake:new/f32"
    assert run("migrate", "rollback", notes).stderr == "rolled back; old is served again\n"
    assert facts(run, notes)["route"] == {"phase": "stable", "query": "fake:old/f32", "write": ["fake:old/f32"]}


def test_the_old_vectors_go_when_the_window_is_over(run, notes):
    run("migrate", notes, "--to", "new")
    early = run("migrate", "finish", notes)
    assert early.exit_code == 2 and "left in the rollback window; --now skips the wait" in early.stderr
    assert run("migrate", "finish", notes, "--now").exit_code == 0
    assert facts(run, notes)["migration"]["settled"] == "kept"
    run("migrate", notes, "--to", "third", "--rollback-window", "0")
    assert run("migrate", "finish", notes).exit_code == 0


def test_documents_that_are_added_are_counted_meanwhile(run, notes, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("weft.cli.commands.store.counted", lambda what: nullcontext(seen.append))
    more = tmp_path / "more.jsonl"
    more.write_text("".join(json.dumps({"id": f"m{i}", "text": f"more {i}"}) + "\n" for i in range(250)))
    assert "250 documents added; the store has 280" in run("store", "add", notes, str(more)).stderr
    assert seen == [100, 200, 250]


@pytest.mark.parametrize(("typed", "meant"), [("statsu", "status"), ("resum", "resume"), ("rolback", "rollback")])
def test_a_move_that_is_mistyped_is_no_store(run, notes, typed, meant):
    found = run("migrate", typed, notes)
    assert found.exit_code == 2 and f"'{typed}' is not a command; did you mean {meant}?" in found.stderr


@pytest.mark.parametrize("typed", ["add", "search", "delete", "list"])
def test_what_belongs_to_the_store_is_pointed_to(run, notes, typed):
    found = run("migrate", typed, notes)
    assert found.exit_code == 2
    assert f"'{typed}' is not a command of `weft migrate`; run `weft store {typed}`" in found.stderr


def test_what_is_called_nearly_as_a_move_may_be_a_store(run, notes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(notes).rename("stat")
    assert run("migrate", "stat", "--to", "new").exit_code == 0
    assert "finished" in run("migrate", "finish", "stat", "--now").stderr
    assert "completed, finished, to new" in run("migrate", "status", "stat").stdout


def test_options_of_the_model_are_kept_for_the_resumption(run, notes, asked, tmp_path, monkeypatch):
    given = ("--compute", "bf16", "--truncate", "chunk", "--pooling", "first", "--dimensions", "64")
    name = str(tmp_path / "a folder 'with' words")
    Path(name).mkdir()
    monkeypatch.chdir(tmp_path)
    run("migrate", notes, "--to", "a folder 'with' words", *given)
    run("store", "add", notes, "-", "--threads", "2")
    wanted = {"compute": "bf16", "truncate": "chunk", "pooling": "first", "dimensions": 64}
    assert asked[0] == (name, {**wanted, "threads": None, "offline": None})
    assert asked[1] == (name, {**wanted, "threads": 2, "offline": None})
    plain = {"compute": "f32", "truncate": "error", "pooling": None, "dimensions": None}
    assert asked[2] == ("old", {**plain, "threads": 2, "offline": None})


def test_a_store_keeps_the_arithmetic_that_auto_has_chosen(run, notes, asked, monkeypatch):
    real = FakeEmbedder.__init__

    def choosing(self, *given, **options):
        real(self, *given, **options)
        self.info["compute"] = "int8"

    monkeypatch.setattr(FakeEmbedder, "__init__", choosing)
    assert run("migrate", notes, "--to", "new", "--compute", "auto").exit_code == 0
    assert asked[0][1]["compute"] == "auto"
    assert facts(run, notes)["migration"]["model"] == "new --compute int8"


def test_a_failed_migration_says_why_and_is_resumed(run, notes, monkeypatch):
    real = FakeEmbedder.encode_document

    def offline(self, texts):
        raise ConnectionError("the network is gone")

    monkeypatch.setattr(FakeEmbedder, "encode_document", offline)
    failed = run("migrate", notes, "--to", "new")
    assert failed.exit_code == 1 and "the network is gone" in failed.stderr
    shown = run("migrate", "status", notes)
    assert "ConnectionError: the network is gone" in shown.stdout and "migrating" in shown.stdout
    assert f"to resume it, run: weft migrate resume {notes};" in shown.stderr
    monkeypatch.setattr(FakeEmbedder, "encode_document", real)
    assert run("migrate", "resume", notes).exit_code == 0


@pytest.fixture
def long_notes(tmp_path, run, asked):
    """A store of 30 documents without vectors, of which 10 are too long for any model."""
    lines = tmp_path / "long.jsonl"
    texts = [f"{'a long text' if i < 10 else 'text'} {i}" for i in range(30)]
    lines.write_text("".join(json.dumps({"id": f"d{i:02}", "text": text}) + "\n" for i, text in enumerate(texts)))
    path = str(tmp_path / "long.db")
    assert run("store", "add", path, str(lines)).exit_code == 0
    return path


def test_too_many_skips_are_told_and_not_served(run, long_notes):
    refused = run("migrate", long_notes, "--to", "new")
    assert refused.exit_code == 2
    assert "10 of 30 documents exceed the model's token limit, and at most 0 may be skipped" in refused.stderr
    assert f"no vectors are served yet; run: weft migrate retry {long_notes} --truncate head" in refused.stderr
    assert facts(run, long_notes)["route"]["query"] is None
    assert "10: ContentTooLarge" in run("migrate", "status", long_notes).stdout
    listed = json.loads(run("migrate", "skipped", long_notes, "--json").stdout)
    assert listed[3] == {"id": "d03", "reason": "ContentTooLarge", "detail": "[embed] text 0 has 607 tokens"}
    assert "d09" in run("migrate", "skipped", long_notes).stdout
    assert run("migrate", "resume", long_notes, "--allow-skips", "9").exit_code == 2
    done = run("migrate", "resume", long_notes, "--allow-skips", "10")
    assert done.exit_code == 0 and "20 of 30 documents embedded" in done.stderr and "--truncate head" in done.stderr


def test_a_migration_that_was_refused_goes_on_with_another_truncation(run, long_notes):
    assert run("migrate", long_notes, "--to", "new").exit_code == 2
    done = run("migrate", long_notes, "--to", "new", "--truncate", "head")
    assert done.exit_code == 0 and "10 skipped documents embedded" in done.stderr
    assert "30 of 30 documents embedded" in done.stderr
    assert run("store", "add", long_notes, "-", input='{"id": "x", "text": "another long text"}\n').exit_code == 0


@pytest.mark.parametrize("again", [("--to", "new", "--truncate", "head"), "retry"])
def test_what_was_skipped_is_embedded_though_the_model_is_served(run, long_notes, again):
    assert run("migrate", long_notes, "--to", "new", "--allow-skips", "10").exit_code == 0
    same = run("migrate", long_notes, "--to", "new")
    assert same.exit_code == 2 and "already served" in same.stderr and "weft migrate retry" in same.stderr
    told = ("retry", long_notes, "--truncate", "head") if again == "retry" else (long_notes, *again)
    done = run("migrate", *told)
    assert done.exit_code == 0 and "10 skipped documents embedded, 0 skipped again" in done.stderr
    shown = facts(run, long_notes)["migration"]
    assert (shown["processed"], shown["total"], shown["skips"], shown["model"]) == (30, 30, {}, "new --truncate head")
    assert "0 documents skipped" in run("migrate", "skipped", long_notes).stderr


LATE = "".join(json.dumps({"id": f"late {i}", "text": f"a long text {i}"}) + "\n" for i in range(20))


def test_a_rollback_does_not_lose_documents_unless_it_is_told_to(run, notes):
    """The new model takes documents that the old one cannot."""
    assert run("migrate", notes, "--to", "new", "--truncate", "head").exit_code == 0
    assert run("store", "add", notes, "-", input=LATE).exit_code == 0
    refused = run("migrate", "rollback", notes)
    assert refused.exit_code == 2 and "20 of 50 documents exceed the model's token limit" in refused.stderr
    assert "--truncate" in refused.stderr and "the new vectors are still served" in refused.stderr
    assert facts(run, notes)["route"]["query"] == "fake:new/f32"
    assert "20: ContentTooLarge" in run("migrate", "status", notes).stdout  # of what is also written
    assert facts(run, notes)["skips"]["fake:old/f32"] == {"ContentTooLarge": 20}
    assert run("migrate", "rollback", notes, "--allow-skips", "19").exit_code == 2
    done = run("migrate", "rollback", notes, "--allow-skips", "20")
    assert done.exit_code == 0 and "skipped: 20 ContentTooLarge" in done.stderr and "--truncate head" in done.stderr
    assert facts(run, notes)["skips"] == {"fake:old/f32": {"ContentTooLarge": 20}}
    assert "20: ContentTooLarge" in run("migrate", "status", notes).stdout  # of what is served


@pytest.mark.parametrize("tried", [False, True])
def test_a_rollback_embeds_long_documents_with_another_truncation(run, notes, tried):
    run("migrate", notes, "--to", "new", "--truncate", "head")
    run("store", "add", notes, "-", input=LATE)
    if tried:
        assert run("migrate", "rollback", notes).exit_code == 2
    done = run("migrate", "rollback", notes, "--truncate", "head")
    assert done.exit_code == 0 and "ContentTooLarge" not in done.stderr, done.stderr
    shown = facts(run, notes)
    assert (shown["route"]["query"], shown["skips"]) == ("fake:old/f32", {"fake:old/f32": {}})
    with open_store(notes) as store:
        assert len(list(store.vectors("fake:old/f32"))) == 50


def test_retries_by_name_and_what_is_skipped_again(run, long_notes):
    assert run("migrate", "retry", long_notes).exit_code == 2
    run("migrate", long_notes, "--to", "new")
    assert "0 skipped documents embedded, 10 skipped again" in run("migrate", "retry", long_notes).stderr
    one = run("migrate", "retry", long_notes, "d03", "--truncate", "tail")
    assert "1 skipped document embedded" in one.stderr and "to resume it, run: " in one.stderr
    assert run("migrate", "retry", long_notes, "d03").exit_code == 2


def test_a_long_document_is_named_and_can_be_cut(run, notes):
    lines = '{"id": "x", "text": "short"}\n{"id": "y", "text": "a long text"}\n'
    refused = run("store", "add", notes, "-", input=lines)
    assert refused.exit_code == 2
    assert "document 1 ('y') has 607 tokens; use --chunk-tokens N, or --truncate head" in refused.stderr
    assert "0 documents added before this" in refused.stderr
    assert (
        "2 documents added; the store has 32"
        in run("store", "add", notes, "-", "--truncate", "head", input=lines).stderr
    )


def test_an_id_that_comes_twice_is_refused(run, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}\n')
    refused = run("store", "add", str(tmp_path / "x.db"), str(path))
    assert refused.exit_code == 2 and "row 2 repeats the id '1' of an earlier row" in refused.stderr


def test_a_run_that_was_cancelled_from_elsewhere_is_not_a_success(run, notes, monkeypatch):
    real, told = FakeEmbedder.encode_document, []

    def cancelling(self, texts):
        if "text 10" in texts:
            told.append(run("migrate", "cancel", notes))
        return real(self, texts)

    monkeypatch.setattr(FakeEmbedder, "encode_document", cancelling)
    done = run("migrate", notes, "--to", "new", "--batch", "10")
    assert done.exit_code == 1 and "cancelled: 10 documents embedded" in done.stderr


def test_progress_is_told_without_a_terminal(run, notes, monkeypatch):
    monkeypatch.setattr("weft.cli.counting.LINE_S", 0.0)
    monkeypatch.delenv("WEFT_NO_PROGRESS", raising=False)
    assert "20 of 30 documents\n" in run("migrate", notes, "--to", "new", "--batch", "10").stderr
    run("migrate", "rollback", notes)
    monkeypatch.setenv("WEFT_NO_PROGRESS", "1")
    assert "20 of 30 documents\n" not in run("migrate", notes, "--to", "new", "--batch", "10").stderr


@pytest.mark.parametrize(
    "typed",
    ["postgresql://weft:s3cret@host/notes", "postgresql://weft@host/notes?password=s3cret&sslmode=require",
     "postgresql://host/notes?user=weft&password=s3cret"],
)  # fmt: skip
def test_advice_has_no_password(typed):
    from weft.cli.commands.migrate import _typed

    shown = _typed(typed)
    assert "s3cret" not in shown and "weft" in shown and "host/notes" in shown and not shown.endswith(("?'", "&'"))


def test_nothing_typed_is_the_help(run):
    shown = run("migrate")
    assert shown.exit_code == 0 and shown.stdout.count("\n") > 20


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
    assert paused.exit_code == 130 and f"to resume it, run: weft migrate resume {notes};" in paused.stderr
    assert "1 document skipped" in run("migrate", "skip", notes, "d04").stderr
    assert facts(run, notes)["migration"]["skips"] == {"ManualSkip": 1}
    assert "cancelled" in run("migrate", "cancel", notes).stderr
    assert facts(run, notes)["route"]["phase"] == "stable"


def test_documents_without_ids_are_refused(run, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n')
    refused = run("store", "add", str(tmp_path / "x.db"), str(path))
    assert refused.exit_code == 2 and "row 1 has no id: its field 'id'" in refused.stderr
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
    assert "paused: " in done.stderr and f"to resume it, run: weft migrate resume {notes};" in done.stderr
    assert facts(run, notes)["migration"]["state"] == "paused"
    assert run("migrate", "resume", notes).exit_code == 0
    assert facts(run, notes)["route"]["query"] == "fake:new/f32"


def test_sigterm_pauses_and_gives_the_lease_back(run, notes):
    ended = INTERRUPTED.replace("signal.SIGINT", "signal.SIGTERM")
    command = [sys.executable, "-c", ended, str(FOLDER), "migrate", notes, "--to", "new", "--batch", "10"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 143, done.stderr
    assert "paused: " in done.stderr and f"to resume it, run: weft migrate resume {notes};" in done.stderr
    shown = facts(run, notes)["migration"]
    assert (shown["state"], shown["lease_owner"], shown["processed"] > 0) == ("paused", None, True)
    resumed = run("migrate", "resume", notes)
    assert resumed.exit_code == 0 and "waiting" not in resumed.stderr


def test_a_folder_that_is_called_as_a_model_is_not_taken_for_it(run, notes, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("all-MiniLM-L6-v2", "mine"):
        (tmp_path / name).mkdir()
    assert run("migrate", notes, "--to", "all-MiniLM-L6-v2").exit_code == 0
    assert facts(run, notes)["migration"]["model"] == "all-MiniLM-L6-v2"
    run("migrate", "finish", notes, "--now")
    for typed in ("mine", "./all-MiniLM-L6-v2"):
        assert run("migrate", notes, "--to", typed).exit_code == 0
        assert facts(run, notes)["migration"]["model"] == str(tmp_path / typed)
        run("migrate", "rollback", notes)


def test_another_model_behind_a_server_s_name_is_refused(run, notes, server, tmp_path, monkeypatch):
    key = ("--base-url", server, "--api-key-env", "MY_KEY")
    assert run("migrate", notes, "--to", "lengths", *key).exit_code == 0
    assert run("store", "search", notes, "text 5", *key).exit_code == 0
    from weft.embed.remote import RemoteEmbedder

    real = RemoteEmbedder.encode_document
    monkeypatch.setattr(RemoteEmbedder, "encode_document", lambda self, texts: real(self, texts)[:, ::-1])
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "new", "text": "a new one"}')
    for given in (("store", "search", notes, "text 5"), ("store", "add", notes, str(more))):
        refused = run(*given, *key)
        assert refused.exit_code == 2 and "or its settings differ from those that built the store" in refused.stderr
    with open_store(notes) as store:
        assert store.count() == 30


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
    run("store", "add", path, str(lines))
    assert run("migrate", path, "--to", str(embedder)).exit_code == 0
    assert facts(run, path)["migration"]["processed"] == 2


def test_a_store_goes_to_a_server_s_model_and_back(run, notes, server, tmp_path):
    key = ("--api-key-env", "MY_KEY")
    done = run("migrate", notes, "--to", "lengths", "--base-url", f"{server}/", *key, "--dimensions", "2")
    assert done.exit_code == 0 and "completed: 30 of 30 documents embedded" in done.stderr
    kept = json.loads(run("migrate", "status", notes, "--json").stdout)["migration"]
    assert kept["model"] == f"lengths --dimensions 2 --base-url {server}"
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "new", "text": "a new one"}')
    for elsewhere, said in (
        ((), f"give --base-url {server}"),
        (("--base-url", "http://127.0.0.1:1/v1"), "base_url must be"),
    ):
        refused = run("store", "add", notes, str(more), *elsewhere)
        assert refused.exit_code == 2 and said in refused.stderr
    assert run("store", "add", notes, str(more), "--base-url", server, *key).exit_code == 0
    with open_store(notes) as store:
        assert store.search([9.0, 1.0], 1, fingerprint=store.route().query)[0].id == "new"
    assert "rolled back" in run("migrate", "rollback", notes).stderr  # the old model is on this machine


def test_what_a_server_refuses_is_skipped_and_what_it_cannot_do_is_said(run, notes, server, tmp_path):
    key = ("--base-url", server, "--api-key-env", "MY_KEY")
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"id": "bad", "text": "refuse me"}')
    assert run("store", "add", notes, str(wrong)).exit_code == 0
    denied = run("migrate", notes, "--to", "lengths", "--base-url", server)
    assert denied.exit_code == 1 and "who are you?" in denied.stderr
    done = run("migrate", notes, "--to", "lengths", *key, "--allow-skips", "1")
    assert done.exit_code == 0, done.stderr
    assert json.loads(run("migrate", "skipped", notes, "--json").stdout)[0]["reason"] == "PermanentApiError"
    cut = run("migrate", "retry", notes, *key, "--truncate", "head")
    assert cut.exit_code == 2 and "--truncate works for models on this machine only" in cut.stderr
    local = run("migrate", notes, "--to", "lengths", *key, "--compute", "int8")
    assert local.exit_code == 2 and "--compute works for models on this machine only" in local.stderr
