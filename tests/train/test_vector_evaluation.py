"""Evaluators and mined negatives are those of sentence-transformers."""

import json
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import text_vectors as cases

from weft.embed.base import BaseEmbedder
from weft.embed.inputs import How
from weft.embed.results import Embedded
from weft.errors import InputError
from weft.train.vectors import evaluation
from weft.train.vectors.mining import Mining, mine

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "train" / "evaluators.json").read_text())


class Given(BaseEmbedder):
    """Vectors by the texts' hashes."""

    dimension = cases.WIDTH  # type: ignore[assignment]
    fingerprint = "given"  # type: ignore[assignment]
    info = MappingProxyType({"fingerprint": "given"})  # type: ignore[assignment]
    prompts = MappingProxyType({})  # type: ignore[assignment]
    cache = None

    def _make(self, texts: list[str], how: How) -> Embedded:
        ones = np.ones(len(texts), np.int32)
        return Embedded(cases.vectors(texts), ones, 0 * ones, ones, lambda: "given")


def test_correlations_of_pairs() -> None:
    found = evaluation.pairs(cases.vectors(cases.QUERIES), cases.vectors(cases.DOCUMENTS[:20]), cases.scores())
    assert abs(found["spearman"] - GOLDEN["pairs"]["spearman_cosine"]) < 1e-12
    assert abs(found["pearson"] - GOLDEN["pairs"]["pearson_cosine"]) < 1e-6  # cosines in f32 there


def test_accuracy_of_triplets() -> None:
    columns = [cases.vectors(texts) for texts in (cases.QUERIES, cases.DOCUMENTS[:20], cases.DOCUMENTS[21:41])]
    assert abs(evaluation.triplets(columns)["accuracy"] - GOLDEN["triplets"]["cosine_accuracy"]) < 1e-6
    name, value = evaluation.scored(columns, None)
    assert name == "accuracy" and abs(value - 0.9) < 1e-12


def test_retrieval() -> None:
    place = {document: row for row, document in enumerate(cases.DOCUMENTS)}
    relevant = [{place[text]: 1.0 for text in wanted} for wanted in cases.relevant().values()]
    found = evaluation.retrieval(cases.vectors(cases.QUERIES), cases.vectors(cases.DOCUMENTS), relevant)
    for name, value in found.items():
        if name != "recall@100":
            assert abs(value - GOLDEN["retrieval"][f"cosine_{name}"]) < 1e-12, name
    assert found["recall@100"] == 1.0


def test_graded_documents_gain_more_when_the_best_come_first() -> None:
    vectors = np.eye(3)
    best_first = evaluation.retrieval([[3, 2, 1]], vectors, [{0: 4.0, 1: 1.0}])["ndcg@10"]
    best_last = evaluation.retrieval([[1, 2, 3]], vectors, [{0: 4.0, 1: 1.0}])["ndcg@10"]
    assert abs(best_first - 1) < 1e-12 and best_last < 0.7


def test_pairs_alone_are_searched_and_the_same_text_counts_once() -> None:
    rows = [(row["anchor"], row["positive"]) for row in cases.pairs()]
    columns = [cases.vectors([row[at] for row in rows]) for at in (0, 1)]
    name, value = evaluation.scored(columns, None, rows)
    documents = list(dict.fromkeys(text for _, text in rows))
    relevant = [{documents.index(text): 1.0 for query, text in rows if query == mine} for mine in cases.QUERIES]
    whole = evaluation.retrieval(cases.vectors(cases.QUERIES), cases.vectors(documents), relevant)
    assert (name, value) == ("ndcg@10", whole["ndcg@10"])


def test_average_precision_is_sklearns() -> None:
    labels = [float(score > 0.5) for score in cases.scores()]
    scores = [round(float(cases.vector(text)[0]), 1) for text in cases.DOCUMENTS[:20]]
    assert len(set(scores)) < len(scores)  # some are the same
    name, value = evaluation.relevance(scores, labels)
    assert name == "average_precision" and abs(value - GOLDEN["average_precision"]) < 1e-12
    assert evaluation.relevance([1.0, 2.0, 3.0], [0.1, 0.5, 0.9]) == ("spearman", 1.0)


@pytest.mark.parametrize("name", cases.MININGS)
def test_negatives_are_those_that_sentence_transformers_mines(name: str) -> None:
    options = {cases.NAMES[key]: value for key, value in cases.MININGS[name].items()}
    found = mine(Given(), cases.pairs(), corpus=cases.DOCUMENTS, **options)
    rows = [list(row.values()) for one in found for row in one.rows("triplet", int(options["negatives"]))]
    wanted = GOLDEN[f"mined {name}"]
    assert sorted(rows) == sorted(wanted) and len(rows) > 20
    order = {anchor: [row[2] for row in rows if row[:2] == [anchor, rows[0][1]]] for anchor in (rows[0][0],)}
    assert order[rows[0][0]] == [row[2] for row in wanted if row[:2] == rows[0][:2]]


def test_the_forms_of_mined_rows_and_random_choice() -> None:
    found = list(mine(Given(), cases.pairs(), negatives=2, last=12, sampling="random", seed=3))
    assert found == list(mine(Given(), cases.pairs(), negatives=2, last=12, sampling="random", seed=3))
    assert found != list(mine(Given(), cases.pairs(), negatives=2, last=12, sampling="random", seed=4))
    assert {tuple(row) for row in found[0].rows("tuple", 2)} == {("anchor", "positive", "negative_1", "negative_2")}
    assert [row["label"] for row in found[0].rows("pair", 2)] == [1, 0, 0]
    positives = {row["positive"] for row in cases.pairs() if row["anchor"] == found[0].anchor}
    assert not positives.intersection(found[0].negatives)


def test_an_anchor_is_not_its_own_negative() -> None:
    rows = [{"anchor": text, "positive": cases.DOCUMENTS[n]} for n, text in enumerate(cases.QUERIES)]
    found = mine(Given(), rows, corpus=cases.QUERIES, negatives=1)
    assert all(one.anchor not in one.negatives for one in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negatives": 0}, "negatives must be at least 1"),
        ({"first": -1}, "first must be 0 or more"),
        ({"first": 5, "last": 6}, "last must be at least 8"),
        ({"sampling": "best"}, "sampling must be top or random"),
    ],
)
def test_what_cannot_be_mined_is_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mining(**options)
