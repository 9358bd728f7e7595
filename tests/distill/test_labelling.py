"""Teachers behind servers: each dialect, every kind of failure, the cap, and what a second run sends."""

import json
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from teacher_server import LABELS, TeacherServer, right_label, troubled

from weft.distill import Labelling, Limits, Price, Prompting, label
from weft.distill import asking as asking_module
from weft.embed import posting
from weft.errors import BackendError, BudgetError, BusyError, InputError, NotFoundError, OfflineError

PRICE = Price.per_million("3", "15")
FAST = Limits(concurrency=4, timeout_s=2.0, deadline_s=4.0, retries=12)
URLS = {"openai": "/v1", "anthropic": "", "gemini": ""}


@pytest.fixture
def server():
    made = TeacherServer()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(asking_module, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(asking_module, "LONGEST_WAIT_S", 0.05)


def texts(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"message {number} about {LABELS[number % 3]}"} for number in range(count)]


def options(server: TeacherServer, dialect: str = "openai", **more: Any) -> dict[str, Any]:
    base = {"teacher": f"{dialect}:big", "base_url": server.url + URLS[dialect], "prices": PRICE, "max_cost": "10"}
    return {**base, "prompting": Prompting(labels=LABELS), "max_tokens": 8, "limits": FAST, **more}


def rows_of(folder: Path, name: str = "labels.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_a_server_of_each_dialect_labels_rows_and_is_asked_once(server, tmp_path, dialect, monkeypatch):
    monkeypatch.setenv("WEFT_TEACHER_KEY", "sesame")
    given = options(server, dialect, prompting=Prompting(system="Be brief.", labels=LABELS))
    done = label(texts(9), output=tmp_path / "out", **given)
    assert (done.rows, done.labelled, done.failed, done.sent) == (9, 9, {}, 9)
    rows = rows_of(tmp_path / "out")
    assert [row["id"] for row in rows] == list(range(9))  # in the order of the data
    assert all(row["label"] == right_label(row["text"]) for row in rows)
    assert done.cost == server.books.billed  # by the server's own counts, to the last picounit
    head, body = server.books.heads[0], server.books.bodies[0]
    if dialect == "openai":
        assert head["authorization"] == "Bearer sesame" and server.books.paths[0] == "/v1/chat/completions"
        assert body["messages"][0] == {"role": "system", "content": "Be brief."} and body["max_tokens"] == 8
    elif dialect == "anthropic":
        assert head["x-api-key"] == "sesame" and head["anthropic-version"] and body["system"] == "Be brief."
        assert "authorization" not in head
    else:
        assert head["x-goog-api-key"] == "sesame" and server.books.paths[0] == "/v1beta/models/big:generateContent"
        assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    before = (tmp_path / "out" / "labels.jsonl").read_bytes()
    again = label(texts(9), output=tmp_path / "out", **given)
    assert again.sent == 0 and len(server.books.asked) == 9  # nothing was sent
    assert (tmp_path / "out" / "labels.jsonl").read_bytes() == before
    assert b"sesame" not in b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_servers_that_fail_and_lie_lose_no_reply_and_never_exceed_the_cap(server, tmp_path, dialect):
    server.faults = troubled(5, 0.5)
    done = label(texts(30), output=tmp_path, **options(server, dialect))
    assert done.labelled == 30 and not done.failed
    assert server.books.billed <= done.cost  # what weft counts is never below what it is charged
    assert not server.books.broken_promises
    assert max(server.books.good.values()) == 1  # a readable reply is never asked for again
    assert label(texts(30), output=tmp_path, **options(server, dialect)).sent == 0


@pytest.mark.parametrize("seed, dialect", [(0, "openai"), (1, "anthropic"), (2, "gemini")])
def test_the_cap_is_never_exceeded_whatever_the_server_does(server, tmp_path, seed, dialect):
    server.faults, cap = troubled(seed, 0.6), 4_000_000_000
    with pytest.raises(BudgetError, match="max_cost"):
        label(texts(80), output=tmp_path, **options(server, dialect, max_cost=str(cap / 10**12)))
    assert 0 < server.books.billed <= cap
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert 0 < manifest["labels"]["rows"] < 80  # what was paid is there
    asked = len(server.books.asked)
    with pytest.raises(BudgetError):
        label(texts(80), output=tmp_path, **options(server, dialect, max_cost=str(cap / 10**12)))
    assert server.books.billed <= cap and len(server.books.asked) - asked <= 4
    server.faults = lambda number: "ok"
    done = label(texts(80), output=tmp_path, **options(server, dialect, max_cost="10"))  # a higher one goes on
    assert done.labelled == 80 and max(server.books.good.values()) == 1


def test_a_reservation_that_is_given_back_leaves_room(server, tmp_path):
    """Each request reserves far more than it costs: all of them fit only because reservations are settled."""
    with Labelling(texts(40), output=tmp_path, **options(server, max_tokens=1000)) as made:
        worst = made.plan.worst
    assert worst > 30 * server.books.billed
    cap = str(worst / 10 / 10**12)
    assert label(texts(40), output=tmp_path, **options(server, max_tokens=1000, max_cost=cap)).labelled == 40


@pytest.mark.parametrize("fault", ["stall", "drip"])
def test_a_server_that_never_ends_is_given_up(server, tmp_path, fault):
    server.faults = lambda number: fault if number < 2 else "ok"
    limits = Limits(concurrency=2, timeout_s=0.3, deadline_s=0.6, retries=3)
    done = label(texts(4), output=tmp_path, **options(server, limits=limits))
    assert done.labelled == 4
    assert server.books.billed <= done.cost
    states = json.loads((tmp_path / "manifest.json").read_text())["attempts"]
    assert sum(states[state]["attempts"] for state in ("lost", "unreadable") if state in states) == 2


def test_a_request_that_is_refused_costs_nothing_and_the_others_go_on(server, tmp_path):
    server.faults = lambda number: "400" if number == 0 else "ok"
    done = label(texts(5), output=tmp_path, **options(server, limits=Limits(concurrency=1)))
    assert done.labelled == 4 and done.failed == {"failed": 1}
    assert "fault 400" in rows_of(tmp_path, "failed.jsonl")[0]["reason"]
    assert done.cost == server.books.billed
    assert label(texts(5), output=tmp_path, **options(server)).labelled == 5


@pytest.mark.parametrize("fault, error", [("401", BackendError), ("302", BackendError)])
def test_what_every_request_would_meet_ends_the_run_at_once(server, tmp_path, fault, error):
    server.faults = lambda number: fault
    with pytest.raises(error, match=fault):
        label(texts(50), output=tmp_path, **options(server))
    assert len(server.books.asked) <= 4


def test_a_server_that_always_fails_ends_the_run(server, tmp_path):
    server.faults = lambda number: "400"
    with pytest.raises(BackendError, match="one after the other"):
        label(texts(100), output=tmp_path, **options(server))
    assert len(server.books.asked) <= 20 + 4


def test_a_server_that_counts_more_than_the_worst_case_ends_the_run(server, tmp_path):
    server.answer = lambda prompt: "refund " * 200
    server.faults = lambda number: "ok"
    real = server.serve

    def too_many(handler, body, fault, digest):
        body["max_tokens"] = 10**6  # it ignores the limit
        return real(handler, body, fault, digest)

    server.serve = too_many
    with pytest.raises(BackendError, match="more than the most"):
        label(texts(50), output=tmp_path, **options(server))
    assert len(server.books.asked) <= 4


def test_requests_and_tokens_a_minute_and_the_number_at_once_are_held(server, tmp_path, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(posting, "time", SimpleNamespace(monotonic=lambda: 1000.0))  # turns by a clock that stands
    monkeypatch.setattr(asking_module.Asker, "_sleep", lambda self, seconds: waits.append(round(seconds, 6)))
    server.delay_s = 0.02
    limits = Limits(concurrency=3, requests_per_minute=60)
    label(texts(9), output=tmp_path / "a", **options(server, limits=limits))
    assert server.books.most <= 3
    assert sorted(waits) == list(range(9))  # one begins every second
    with Labelling(texts(1), output=tmp_path / "b", **options(server)) as made:
        one = made._worst(made.questions[0])
    waits.clear()
    limits = Limits(concurrency=1, tokens_per_minute=60 * (one.input_tokens + one.output_tokens))
    label(texts(1) * 3 + [{"text": "x" * 6}], output=tmp_path / "b", **options(server, limits=limits))
    assert waits == [0, 1]  # the second request has to wait until the first one's tokens are over


def test_retry_after_is_obeyed_by_all_workers(server, tmp_path, monkeypatch):
    real = server.send

    def later(handler, status, body, headers=None):
        real(handler, status, body, {"retry-after": "0.6"} if status == 429 else headers)

    server.send = later
    server.faults = lambda number: "429" if number == 0 else "ok"
    label(texts(6), output=tmp_path, **options(server, limits=Limits(concurrency=1)))
    assert server.books.times[1] - server.books.times[0] >= 0.6
    monkeypatch.setattr(asking_module, "LONGEST_SILENCE_S", 0.1)
    server.faults = lambda number: "429"
    with pytest.raises(BusyError, match="no request for"):
        label(texts(7), output=tmp_path, **options(server, limits=Limits(concurrency=1)))


def test_ctrl_c_waits_for_paid_replies(server, tmp_path, monkeypatch):
    """The first one lets requests under way end, and their replies are kept."""
    server.delay_s = 0.05
    real = asking_module.Asker._watch
    seen = []

    def interrupted(self, threads, tell):
        if not seen:
            seen.append(True)
            while not server.books.under_way:
                threading.Event().wait(0.01)
            raise KeyboardInterrupt
        return real(self, threads, tell)

    monkeypatch.setattr(asking_module.Asker, "_watch", interrupted)
    done = label(texts(12), output=tmp_path, **options(server))
    asked = len(server.books.asked)
    assert done.stopped and done.labelled == asked <= 4
    assert done.cost == server.books.billed
    done = label(texts(12), output=tmp_path, **options(server))
    assert done.labelled == 12 and len(server.books.asked) == 12


def test_a_ledger_of_a_killed_process_counts_what_was_sent(server, tmp_path):
    """A request that was sent and has no reply is charged in full, and asked again."""
    with Labelling(texts(3), output=tmp_path, **options(server)) as made:
        one = made.questions[0]
        assert made.ledger.reserve(one.key, made._worst(one).cost, made.cap)
        worst = made._worst(one).cost
    done = label(texts(3), output=tmp_path, **options(server))
    assert done.labelled == 3 and done.cost == server.books.billed + worst
    states = json.loads((tmp_path / "manifest.json").read_text())["attempts"]
    assert states["lost"]["attempts"] == 1 and states["paid"]["attempts"] == 3


def test_one_process_at_a_time_and_no_other_file(server, tmp_path):
    with (
        Labelling(texts(1), output=tmp_path / "a", **options(server)),
        pytest.raises(BusyError, match="another process"),
    ):
        Labelling(texts(1), output=tmp_path / "a", **options(server))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ledger.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(Exception, match="cannot be read"):
        Labelling(texts(1), output=tmp_path / "b", **options(server))
    with sqlite3.connect(tmp_path / "a" / "ledger.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(Exception, match="newer weft"):
        Labelling(texts(1), output=tmp_path / "a", **options(server))


def test_rows_that_are_the_same_are_asked_once(server, tmp_path):
    rows = [{"text": "the same refund"}] * 5
    done = label(rows, output=tmp_path, **options(server))
    assert done.labelled == 5 and len(server.books.asked) == 1


def test_another_question_is_another_request(server, tmp_path):
    label(texts(3), output=tmp_path, **options(server))
    label(texts(4), output=tmp_path, **options(server))  # one row more
    assert len(server.books.asked) == 4
    label(texts(4), output=tmp_path, **options(server, temperature=0.5))
    assert len(server.books.asked) == 8


def test_logprobs_and_free_text_and_conversations(server, tmp_path):
    server.answer = lambda prompt: f"about {prompt[-3:]}"
    rows = [{"prompt": "say abc"}, {"messages": [{"role": "user", "content": "say xyz"}]}]
    label(rows, output=tmp_path, **options(server, prompting=None, top_logprobs=2))
    first, second = rows_of(tmp_path)
    assert (first["prompt"], first["completion"]) == ("say abc", "about abc")
    assert second["messages"][-1] == {"role": "assistant", "content": "about xyz"}
    assert first["logprobs"] == [["about abc", -0.1, [["about abc", -0.1], ["other", -2.5]]]]
    with pytest.raises(InputError, match="gives none"):
        label(rows, output=tmp_path / "b", **options(server, "anthropic", prompting=None, top_logprobs=2))


def test_answers_that_are_no_label_are_kept_apart(server, tmp_path):
    server.answer = lambda prompt: "Label: **Refund**." if "0" in prompt else "I cannot say"
    done = label([{"text": "0"}, {"text": "1"}], output=tmp_path, **options(server, max_tokens=16))
    assert done.failed == {"no label": 1} and rows_of(tmp_path)[0]["label"] == "refund"
    assert rows_of(tmp_path, "failed.jsonl") == [{"text": "1", "reason": "no label: I cannot say"}]


def test_a_file_is_a_teacher(tmp_path):
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"id": 1, "label": "account"}\n{"text": "message 0 about refund", "completion": "refund"}\n')
    done = label(texts(3), "file:" + str(answers), tmp_path / "out", prompting=Prompting(labels=LABELS))
    assert [row["label"] for row in rows_of(tmp_path / "out")] == ["refund", "account"]
    assert done.failed == {"not asked": 1}
    with pytest.raises(NotFoundError):
        label(texts(1), "file:" + str(tmp_path / "none.jsonl"), tmp_path / "out")


def test_the_manifest_says_what_decided_the_labels(server, tmp_path):
    label(texts(3), output=tmp_path, **options(server, prompting=Prompting(system="S", labels=LABELS)))
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["teacher"] == {
        "kind": "openai",
        "model": "big",
        "base_url": server.url + "/v1",
        "max_tokens": 8,
        "temperature": 0.0,
        "top_logprobs": 0,
    }
    assert found["prices"] == {"input_per_million": "3.00", "output_per_million": "15.00"}
    assert found["cost"]["cap"] == "10.00" and found["prompt"]["labels"] == list(LABELS)
    from hashlib import sha256

    assert found["labels"]["sha256"] == sha256((tmp_path / "labels.jsonl").read_bytes()).hexdigest()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"teacher": "gpt-4"}, "teacher must be one of"),
    ({"base_url": "https://example.com/v1"}, "--allow-host example.com"),
    ({"base_url": "http://example.com/v1", "allow_hosts": ["example.com"]}, "must be https"),
    ({"base_url": "http://127.0.0.1.example.com/v1"}, "not a host"),
    ({"base_url": "http://user@example.com"}, "not a host"),
    ({"base_url": "ftp://localhost"}, "http:// or https://"),
    ({"max_cost": None}, "max_cost is needed"),
    ({"max_cost": "much"}, "max_cost must be an amount"),
    ({"max_cost": "-1"}, "max_cost must be an amount"),
    ({"max_tokens": 0}, "max_tokens must be"),
    ({"temperature": 3}, "temperature must be"),
    ({"prompting": Prompting(template="{nothing}")}, "no field 'nothing'"),
    ({"base_url": None}, "OPENAI_API_KEY is required"),
    ({"top_logprobs": 21}, "at most 20"),
]


@pytest.mark.parametrize("changed, message", BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(server, tmp_path, changed, message, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match=message):
        label(texts(1), output=tmp_path, **options(server, **changed))
    assert not server.books.asked


def test_a_server_of_others_needs_prices(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(InputError, match="prices are needed"):
        Labelling(texts(1), "openai:big", tmp_path)
    monkeypatch.setenv("WEFT_OFFLINE", "1")
    with pytest.raises(OfflineError):
        Labelling(texts(1), "openai:big", tmp_path, prices=PRICE, max_cost=1)


def test_the_providers_keys_go_to_the_providers_only(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "provider-key")
    label(texts(1), output=tmp_path, **options(server))
    assert "authorization" not in server.books.heads[0]


@pytest.mark.parametrize("labels", [("a",), ("Refund", "refund."), ("a", "")])
def test_labels_that_cannot_be_told_apart_are_refused(labels):
    with pytest.raises(InputError, match="labels"):
        Prompting(labels=labels)


def test_prices_from_a_file(tmp_path):
    from weft.distill.prices import read_prices, shown, worst_case

    path = tmp_path / "prices.json"
    path.write_text('{"m": {"input": 0.0375, "output": "0.15"}}')
    assert read_prices(path, "m") == Price(37_500, 150_000)
    with pytest.raises(InputError, match="no input and output price of other"):
        read_prices(path, "other")
    assert shown(1_234_500_000_000) == "1.2345" and shown(0) == "0.00"
    plain = worst_case([{"role": "user", "content": "ab"}], 1, Price(1, 1)).input_tokens
    long = worst_case([{"role": "user", "content": "\ufdfa"}], 1, Price(1, 1)).input_tokens
    assert long - plain == 33 - 2  # NFKC writes it with 33 bytes


@pytest.mark.parametrize(
    "text, found",
    [
        ("refund", "refund"),
        (" Refund.\n", "refund"),
        ("label: refund", "refund"),
        ("- refund", "refund"),  # as the question lists them
        ("- Label: refund", "refund"),
        ("refund or delivery", None),
    ],
)
def test_an_answer_is_a_label_or_none(text, found):
    from weft.distill.rows import chosen_label

    assert chosen_label(text, LABELS) == found


def test_a_row_that_is_too_long_for_a_local_model_fails_alone(tmp_path):
    from tiny_chat import write_chat_model

    teacher = f"local:{write_chat_model(tmp_path / 'chat.gguf')}"
    rows = [{"id": number, "text": text} for number, text in enumerate(("a", "b" * 5000, "c"))]
    options = {"max_tokens": 8, "prompting": Prompting("{text}")}
    done = label(rows, teacher, tmp_path / "out", **options)
    assert done.failed.pop("failed") == 1 and done.sent == 2 and not done.stopped
    failed = {row["id"]: row["reason"] for row in rows_of(tmp_path / "out", "failed.jsonl")}
    assert "prompt has 50" in failed.pop(1) and not any(reason.startswith("failed") for reason in failed.values())
    alone = label([rows[0], rows[2]], teacher, tmp_path / "alone", **options)
    assert (done.labelled, done.failed) == (alone.labelled, alone.failed)
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "alone")


@pytest.mark.parametrize(
    "rows, says",
    [
        ('{"text": "a"}\n{"text": 5}\n', r"\[rows\.jsonl\] line 2 must have a text in the field 'text': got 5"),
        ('{"body": "a"}\n', r"\[rows\.jsonl\] line 1 has none of the fields text, .*; give a template"),
        ("", r"data has no rows: got '/"),
    ],
)
def test_rows_that_cannot_be_asked_are_named_once(server, tmp_path, rows, says):
    (tmp_path / "rows.jsonl").write_text(rows)
    with pytest.raises(InputError, match=says):
        label(tmp_path / "rows.jsonl", output=tmp_path / "out", **options(server, prompting=None))


def test_a_file_is_no_folder_for_labels(server, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match=r"output is a file: got .*name a folder"):
        label(texts(1), output=tmp_path / "out", **options(server))
    assert (tmp_path / "out").read_text() == "mine"
