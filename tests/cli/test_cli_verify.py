"""weft verify prints what was tried, as a table or JSON, and its exit code says whether all was right."""

import json
from pathlib import Path

from running import Run


def test_a_model_that_is_right_exits_with_zero(run: Run, embedder: Path) -> None:
    result = run("verify", str(embedder))
    assert result.exit_code == 0 and result.stdout.count("right") >= 4 and "unknown" in result.stdout
    report = json.loads(run("verify", str(embedder), "--json").stdout)
    assert report["passed"] is True and len(report["checks"]) == 5


def test_one_that_is_wrong_exits_with_one(run: Run, embedder: Path) -> None:
    result = run("verify", str(embedder), "--golden", "all-MiniLM-L6-v2")
    assert result.exit_code == 1 and "WRONG" in result.stdout
    assert run("verify", str(embedder), "--golden", "nobody").exit_code == 2


def test_an_index_that_is_not_there_is_no_unknown_model(run: Run) -> None:
    result = run("verify", "nowhere.index")
    assert (
        result.exit_code == 2
        and "nowhere.index does not exist; build an index with `weft index build`" in result.stderr
    )
