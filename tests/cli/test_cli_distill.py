"""weft distill on the command line: plans, labels, errors, exit codes."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "distill"))
from teacher_server import TeacherServer


@pytest.fixture
def server():  # not that of the folder's other tests
    made = TeacherServer()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def online(monkeypatch):
    monkeypatch.delenv("WEFT_OFFLINE", raising=False)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"about refund {number}"}) + "\n" for number in range(4)))
    return path


def arguments(server, data, out, *more):
    made = ["distill", "label", str(data), "--teacher", "openai:big", "--base-url", server.url + "/v1", "-o", str(out)]
    return [*made, "--labels", "refund,delivery,account", "--max-tokens", "8", *more]


def test_a_dry_run_sends_nothing_and_says_the_most_it_can_cost(run, server, data, tmp_path):
    prices = ("--price-in", "3", "--price-out", "15", "--max-cost", "1")
    found = run(*arguments(server, data, tmp_path / "out", *prices, "--dry-run", "--json"))
    plan = json.loads(found.stdout)
    assert (plan["rows"], plan["requests"], plan["kept"], plan["spent"]) == (4, 4, 0, "0.00")
    assert 0 < float(plan["worst"]) < 0.01 and not server.books.asked
    labelled = run(*arguments(server, data, tmp_path / "out", *prices))
    assert labelled.exit_code == 0 and labelled.stdout.strip().endswith("labels.jsonl")
    assert "4 of 4 rows labelled, 4 by new replies" in labelled.stderr
    again = json.loads(run(*arguments(server, data, tmp_path / "out", *prices, "--json")).stdout)
    assert again["replies"] == 0 and len(server.books.asked) == 4
    assert "4" in run(*arguments(server, data, tmp_path / "out", *prices, "--dry-run")).stdout


def test_a_cap_that_is_reached_ends_with_an_error_that_says_how_to_go_on(run, server, data, tmp_path):
    prices = ("--price-in", "3", "--price-out", "15", "--max-cost", "0.0005")
    found = run(*arguments(server, data, tmp_path / "out", *prices))
    assert found.exit_code == 1 and "higher --max-cost" in found.stderr
    assert server.books.billed <= 0.0005 * 10**12


@pytest.mark.parametrize(
    "more, said",
    [
        (["--price-in", "3"], "give --price-in and --price-out together"),
        (["--price-in", "3", "--price-out", "x", "--max-cost", "1"], "must be an amount of money"),
        (["--price-in", "3", "--price-out", "15"], "max_cost is needed"),
        (["--prices", "none.json"], "there is no file none.json"),
        (["--base-url", "https://elsewhere.example"], "--allow-host elsewhere.example"),
    ],
)
def test_bad_options_are_refused(run, server, data, tmp_path, more, said):
    found = run(*arguments(server, data, tmp_path / "out", *more))
    assert found.exit_code == 2 and said in found.stderr
    assert not server.books.asked
