"""weft rerank prints documents in the order of the library's scores, from lines and from JSON lines."""

import json
from pathlib import Path

import pytest
from running import Run
from tiny_rerank import DOCUMENTS, QUERIES, write_cross, write_decoder

import weft


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross(tmp_path_factory.mktemp("cli") / "cross", "bert")


def test_lines_are_documents_and_empty_ones_are_none(run: Run, reranker: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("\n".join([DOCUMENTS[0], "", *DOCUMENTS[1:3]]) + "\n")
    result = run("rerank", str(reranker), QUERIES[0], str(tmp_path / "notes.txt"))
    best = weft.Reranker(str(reranker)).rank(QUERIES[0], DOCUMENTS[:3])
    assert result.exit_code == 0 and "3 documents" in result.stderr
    lines = result.stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [f"{found.score:.4f}" for found in best]
    assert [line.split()[1] for line in lines] == [str((0, 2, 3)[found.index]) for found in best]


def test_json_lines_keep_their_fields(run: Run, reranker: Path, tmp_path: Path) -> None:
    rows = [{"body": text, "id": f"d{n}"} for n, text in enumerate(DOCUMENTS)]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ("--field", "body", "--json", "--top-k", "2")
    result = run("rerank", str(reranker), QUERIES[0], str(tmp_path / "docs.jsonl"), *options)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    best = weft.Reranker(str(reranker)).rank(QUERIES[0], DOCUMENTS, 2)
    assert [(row["index"], row["id"]) for row in found] == [(row.index, f"d{row.index}") for row in best]
    assert [row["score"] for row in found] == pytest.approx([row.score for row in best])


def test_weft_show_says_how_a_model_scores(run: Run, reranker: Path) -> None:
    result = run("show", str(reranker))
    assert result.exit_code == 0 and "text reranker" in result.stdout and "classifier" in result.stdout
    assert "matmul" in run("show", str(reranker), "--program").stdout


def test_a_generator_takes_a_method(run: Run, tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "plain")
    (tmp_path / "notes.txt").write_text("\n".join(DOCUMENTS))
    arguments = ("rerank", str(folder), QUERIES[0], str(tmp_path / "notes.txt"))
    assert run(*arguments).exit_code == 1
    result = run(*arguments, "--method", "likelihood")
    assert result.exit_code == 0 and result.stdout.count("-1") >= 4
