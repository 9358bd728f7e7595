"""`weft registry`: the loop of a user at a terminal, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WEFT_REGISTRY", str(tmp_path / "registry"))

    def make(text: str) -> str:
        folder = tmp_path / text
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_text(text)
        return str(folder)

    return make


def test_the_loop(run, source, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    data = ("--data", str(tmp_path / "rows.jsonl"))
    assert run("registry", "add", "it", source("a"), "1.0.0", "--metric", "m=0.5", *data).exit_code == 0
    added = run("registry", "add", "it", source("b"), "1.1.0", "--parent", "it@1.0.0", "--json")
    assert json.loads(added.stdout)["parents"] == ["it@1.0.0"]
    assert "was nothing" in run("registry", "promote", "it@1.0.0").stderr
    assert run("registry", "promote", "it@1.1.0").exit_code == 2  # nothing is known about it
    assert run("registry", "promote", "it@1.1.0", "--to", "candidate").exit_code == 0
    assert run("registry", "evaluate", "it@1.1.0", "m=0.75", "--data", "held out").exit_code == 0
    moved = json.loads(run("registry", "promote", "it", "--json").stdout)
    assert moved == {"name": "it", "alias": "production", "version": "1.1.0", "previous": "1.0.0"}
    listed = run("registry", "list").stdout
    assert "production 1.1.0" in listed and "candidate 1.1.0" in listed
    shown = run("registry", "show", "it").stdout
    assert "m 0.75" in shown and "promoted" in shown
    one = json.loads(run("registry", "show", "it@1.0.0", "--json").stdout)
    assert one["data"]["file"] == "rows.jsonl" and one["state"] == "staged"
    path = Path(run("registry", "show", "it@production", "--path").stdout.strip())
    assert (path / "weights").read_text() == "b"
    assert "it@1.0.0  parent" in run("registry", "lineage", "it@1.1.0").stdout
    assert "made from it" in run("registry", "lineage", "it@1.0.0").stdout
    assert "is 1.0.0 now" in run("registry", "rollback", "it").stderr
    assert run("registry", "rollback", "it").exit_code == 2
    assert run("registry", "mark", "it@1.1.0", "archived").exit_code == 0
    assert "1 folder, 1 B would be removed" in run("registry", "gc", "--dry-run").stderr
    assert "removed" in run("registry", "gc").stderr and not path.exists()


def test_shadow_is_begun_shown_and_ended(run, source):
    for version in ("1.0.0", "1.1.0"):
        run("registry", "add", "it", source(version), version)
    run("registry", "promote", "it@1.0.0", "--force")
    assert "has had no shadow run" in run("registry", "shadow", "it").stderr
    begun = run("registry", "shadow", "it", "--start", "1.1.0", "--samples", "5", "--json")
    assert json.loads(begun.stdout)["limits"]["samples"] == 5
    assert "0 of 5, 0 skipped" in run("registry", "shadow", "it").stdout
    assert "stopped" in run("registry", "shadow", "it", "--stop").stdout
    for wrong in (("--stop",), ("--samples", "5"), ("--start", "1.1.0", "--share", "2")):
        assert run("registry", "shadow", "it", *wrong).exit_code == 2


@pytest.mark.parametrize(
    "given",
    [("1.0",), ("v1.0.0",), ("1.0.0", "--metric", "m"), ("1.0.0", "--kind", "adapter"), ("1.0.0", "--base", "x")],
)
def test_wrong_additions_are_refused_in_one_line(given, run, source):
    found = run("registry", "add", "it", source("a"), *given)
    assert found.exit_code == 2 and found.stderr.count("\n") == 1
