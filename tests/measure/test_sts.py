"""Embedders on scored pairs: correlations, how far vectors moved, both forms of files."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_st import write_st_folder

import weft
from weft.errors import InputError
from weft.measure import Pairs, read_pairs

ROWS = [
    ("a cat sits", "a cat sat", 4.5),
    ("a dog", "the stock market", 0.2),
    ("rain falls", "it rains", 4.0),
    ("two men walk", "a man walks", 2.5),
    ("a red car", "a car that is red", 5.0),
    ("bread", "the moon", 0.0),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_st_folder(tmp_path_factory.mktemp("embedder") / "model")


def test_spearman_is_the_correlation_of_ranks_and_int8_is_held_to_f32(model: Path) -> None:
    rows = [{"sentence1": a, "sentence2": b, "score": score / 5} for a, b, score in ROWS]
    pairs = Pairs(rows, against=model)
    found = pairs.measure(model)
    embedder = weft.Embedder(str(model))
    left, right = (embedder.encode([row[side] for row in ROWS]).astype(np.float64) for side in (0, 1))
    cosines = (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    ranks = [np.argsort(np.argsort(values)) for values in (cosines, [row[2] for row in ROWS])]
    assert found.spearman == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-12)
    assert found.pearson == pytest.approx(np.corrcoef(cosines, [row[2] for row in ROWS])[0, 1], abs=1e-6)
    assert found.pairs == 6 and found.lost == found.farthest == 0 and found.bytes > 1000
    rounded = pairs.measure(model, compute="int8")
    assert rounded.compute == "int8" and rounded.lost is not None and rounded.farthest is not None
    assert 0 < rounded.lost <= rounded.farthest < 0.05


def test_files_of_stsb_and_rows_of_json_are_the_same_pairs(tmp_path: Path) -> None:
    own, rows = tmp_path / "sts.csv", tmp_path / "rows.jsonl"
    own.write_text("".join(f"main\tx\ty\t1\t{score}\t{a}\t{b}\r\n" for a, b, score in ROWS), encoding="utf-8")
    made = [{"sentence1": a, "sentence2": b, "score": score / 5} for a, b, score in ROWS]
    rows.write_text("\n".join(map(json.dumps, made)), encoding="utf-8")
    first, second = read_pairs(own), read_pairs(rows)
    assert first[:2] == second[:2] and first[2] == pytest.approx([5 * score for score in second[2]])


def test_refusals(model: Path, tmp_path: Path) -> None:
    (tmp_path / "no.jsonl").write_text('{"sentence1": "a"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="line 1 has other fields"):
        read_pairs(tmp_path / "no.jsonl")
    other = write_st_folder(tmp_path / "other")
    (tmp_path / "pairs.csv").write_text("".join(f"m\tx\ty\t1\t{s}\t{a}\t{b}\n" for a, b, s in ROWS), encoding="utf-8")
    assert Pairs(tmp_path / "pairs.csv").measure(other).lost is None
