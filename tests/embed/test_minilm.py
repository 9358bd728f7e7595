"""MiniLM gives the vectors of sentence-transformers, and its quality on STS-B."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from embed_texts import texts
from soaking import times

import weft

GOLDEN = Path(__file__).parent.parent / "golden" / "embed" / "minilm.npz"

SPEARMAN = 0.82032  # of sentence-transformers' vectors in float32 on STS-B's test set, 1,379 pairs

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def embedder(minilm: Path) -> weft.Embedder:
    return weft.Embedder(str(minilm), truncate="head")


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row, in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_vectors_are_those_of_sentence_transformers(embedder: weft.Embedder) -> None:
    expected = np.load(GOLDEN)["vectors"]
    assert len(texts()) >= 200
    distance = 1 - cosine(embedder.encode(texts()), expected)
    assert distance.max() <= 1e-6, f"text {distance.argmax()}: {texts()[distance.argmax()]!r}"


def test_a_text_has_the_same_bits_alone_and_in_a_batch(embedder: weft.Embedder) -> None:
    some = texts()[::7]
    together = embedder.encode(some)
    assert np.array_equal(together, np.stack([embedder.encode(text) for text in some]))
    assert np.array_equal(together, embedder.encode(some, batch_tokens=64))


@pytest.mark.soak
@pytest.mark.parametrize("compute, limit", [("f16", 2e-5), ("bf16", 2e-4), ("bf16x3", 1e-7), ("int8", 5e-3)])
def test_rounded_vectors_are_near_and_the_same_bits_in_any_batch(minilm: Path, compute: str, limit: float) -> None:
    rounded = weft.Embedder(str(minilm), truncate="head", compute=compute)
    every = times(1, 3)
    tried, want = texts()[::every], np.load(GOLDEN)["vectors"][::every]
    distance = 1 - cosine(rounded.encode(tried), want)
    assert distance.max() <= limit, f"text {distance.argmax()}: {tried[distance.argmax()]!r}"
    some = tried[::17]
    assert np.array_equal(rounded.encode(some), np.stack([rounded.encode(text) for text in some]))
    most = {"f16": 2e-3, "bf16": 1e-2, "bf16x3": 3e-5, "int8": 3e-2}[compute]
    assert np.abs(rounded.encode(some) - want[::17]).max() < most


def test_an_over_long_text_is_an_error_with_the_numbers(minilm: Path) -> None:
    strict = weft.Embedder(str(minilm))
    with pytest.raises(weft.WeftError, match=r"302 tokens, the model takes 256") as caught:
        strict.encode("word " * 300)
    assert (caught.value.length, caught.value.limit) == (302, 256)  # type: ignore[attr-defined]
    head, tail = strict.encode("word " * 300, truncate="head"), strict.encode("word " * 300, truncate="tail")
    assert head.shape == tail.shape == (384,)


def test_the_five_golden_texts(embedder: weft.Embedder, shared: Path) -> None:
    cases = json.loads((shared / "goldens" / "all-MiniLM-L6-v2.json").read_text())
    assert len(cases) >= 5
    for case in cases:
        assert embedder.tokenizer.encode(case["input"]) == case["input_ids"]
        expected = np.asarray([case["embedding"]], np.float32)
        assert 1 - cosine(embedder.encode([case["input"]]), expected)[0] <= 1e-6


def sts_b(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """The pairs of a file of STS-B, and how near people found them."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if len(row) >= 7]
    return [row[5] for row in rows], [row[6] for row in rows], np.array([float(row[4]) for row in rows])


@pytest.mark.parametrize("compute", ["f32", "f16", "bf16x3", "bf16", "int8"])
def test_sts_b_spearman(minilm: Path, shared: Path, compute: str) -> None:
    rounded = weft.Embedder(str(minilm), compute=compute)
    first, second, scores = sts_b(shared / "sts-b" / "sts-test.csv")
    found = spearman(cosine(rounded.encode(first), rounded.encode(second)), scores)
    assert abs(found - SPEARMAN) <= 0.0005


@pytest.mark.parametrize(
    ("compute", "least"), [("bf16x3", 0.999999), ("f16", 0.9999), ("bf16", 0.9995), ("int8", 0.995)]
)
def test_rounded_vectors_of_a_thousand_sentences_are_near(
    embedder: weft.Embedder, minilm: Path, shared: Path, compute: str, least: float
) -> None:
    first, second, _ = sts_b(shared / "sts-b" / "sts-dev.csv")
    some = list(dict.fromkeys([*first, *second]))[:1000]
    near = cosine(weft.Embedder(str(minilm), compute=compute).encode(some), embedder.encode(some))
    assert len(near) == 1000 and near.min() >= least


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of the ranks, ties sharing their mean rank."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2)[inverse]
