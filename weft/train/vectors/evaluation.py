"""How good vectors are: for pairs with scores, for triplets, for searching; sentence-transformers' numbers.

Functions of vectors, in float64, so that a model under training and a served one are measured by the same code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np

CUT, DEPTHS = 10, (1, 3, 5, 10, 100)  # of nDCG and MRR; of recall
DEEP = 100  # of the mean average precision
ROWS = 512  # of queries whose scores are in memory together


def pearson(left: Any, right: Any) -> float:
    """The linear correlation; nan where one of both never changes."""
    import numpy as np

    a, b = (np.asarray(side, np.float64) - np.mean(side, dtype=np.float64) for side in (left, right))
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else math.nan


def spearman(left: Any, right: Any) -> float:
    """The correlation of ranks; equal numbers share the mean of theirs."""
    return pearson(_ranks(left), _ranks(right))


def _ranks(values: Any) -> np.ndarray:
    import numpy as np

    _, place, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ends: np.ndarray = np.cumsum(counts)
    mean = ends - (counts - 1) / 2
    return mean[place]


def pairs(left: Any, right: Any, scores: Any) -> dict[str, float]:
    """How well cosines of rows follow their scores (EmbeddingSimilarityEvaluator)."""
    cosines = (_unit(left) * _unit(right)).sum(axis=1)
    if len(cosines) < 2:
        raise InputError("evaluate", "needs at least two rows with scores", given=len(cosines))
    return {"spearman": spearman(cosines, scores), "pearson": pearson(cosines, scores)}


def triplets(columns: Sequence[Any]) -> dict[str, float]:
    """The part of all negatives that are farther from their anchor than the positive (TripletEvaluator, cosine)."""
    anchors, positives, *negatives = map(_unit, columns)
    near = (anchors * positives).sum(axis=1)
    right = sum(int((near > (anchors * negative).sum(axis=1)).sum()) for negative in negatives)
    return {"accuracy": right / (len(anchors) * len(negatives))}


def retrieval(
    queries: Any, documents: Any, relevant: Sequence[Mapping[int, float]], *, depths: Sequence[int] = DEPTHS
) -> dict[str, float]:
    """How well each query finds its documents by cosine (InformationRetrievalEvaluator).

    `relevant` has for each query the rows of its documents, with the gain of each: 1 where all count the same.
    """
    import numpy as np

    asked, found = _unit(queries), _unit(documents)
    if len(relevant) != len(asked) or not all(relevant):
        raise InputError("evaluate", "every query needs a relevant document", field="relevant")
    deepest = min(len(found), max(CUT, DEEP, *depths))
    sums = {f"ndcg@{CUT}": 0.0, f"mrr@{CUT}": 0.0, f"map@{DEEP}": 0.0, **{f"recall@{k}": 0.0 for k in depths}}
    for first in range(0, len(asked), ROWS):
        scores = asked[first : first + ROWS] @ found.T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :deepest]
        for row, wanted in zip(order.tolist(), relevant[first : first + ROWS]):
            gains = [float(wanted.get(document, 0.0)) for document in row]
            for name, value in _of_query(gains, wanted, depths).items():
                sums[name] += value
    return {name: value / len(asked) for name, value in sums.items()}


def _of_query(gains: Sequence[float], wanted: Mapping[int, float], depths: Sequence[int]) -> dict[str, float]:
    hits = [place for place, gain in enumerate(gains) if gain > 0]
    total = sum(gain > 0 for gain in wanted.values())
    best = _discounted(sorted(wanted.values(), reverse=True)[:CUT])
    early = [place for place in hits if place < DEEP]
    precision = sum(number / (place + 1) for number, place in enumerate(early, 1))
    return {
        f"ndcg@{CUT}": _discounted(gains[:CUT]) / best if best else 0.0,
        f"mrr@{CUT}": 1 / (hits[0] + 1) if hits and hits[0] < CUT else 0.0,
        f"map@{DEEP}": precision / min(DEEP, total),
        **{f"recall@{k}": sum(place < k for place in hits) / total for k in depths},
    }


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(place + 2) for place, gain in enumerate(gains))


def scored(columns: Sequence[Any], labels: Any, texts: Sequence[Sequence[str]] | None = None) -> tuple[str, float]:
    """The name and value of what says most about examples of this form: the higher, the better.

    Scores: Spearman's correlation. Negatives: the part that is farther than the positive. Pairs alone: nDCG@10 of the
    search for each first text's second ones among all of them, for which the `texts` tell what is the same. Vectors of
    a teacher: minus the mean squared difference.
    """
    name = score_name(labels, len(columns))
    if name == "negative_mse":
        from weft.train.vectors.losses import mse

        return name, -mse([column.astype("f8") for column in columns], labels)[0]
    if name == "spearman":
        return name, pairs(columns[0], columns[1], labels)[name]
    if name == "accuracy":
        return name, triplets(columns)[name]
    assert texts is not None
    return name, _search_of_pairs(columns, texts)


def score_name(labels: Any, width: int) -> str:
    """What `scored` measures for examples of so many texts."""
    import numpy as np

    if labels is not None:
        return "negative_mse" if np.ndim(labels) > 1 else "spearman"
    return "accuracy" if width > 2 else f"ndcg@{CUT}"


def _search_of_pairs(columns: Sequence[Any], texts: Sequence[Sequence[str]]) -> float:
    import numpy as np

    places: list[dict[str, int]] = [{}, {}]
    rows: list[list[int]] = [[], []]
    relevant: list[dict[int, float]] = []
    for number, (query, document) in enumerate(texts):
        for side, text in enumerate((query, document)):
            if text not in places[side]:
                places[side][text] = len(rows[side])
                rows[side].append(number)
        relevant += [{}] * 0 if places[0][query] < len(relevant) else [{}]
        relevant[places[0][query]][places[1][document]] = 1.0
    queries, documents = (np.asarray(column)[chosen] for column, chosen in zip(columns, rows))
    return retrieval(queries, documents, relevant)["ndcg@10"]


def _unit(x: Any) -> np.ndarray:
    import numpy as np

    wide = np.asarray(x, np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)


def relevance(scores: Any, labels: Any) -> tuple[str, float]:
    """The name and value of how well scores of pairs follow their labels: the average precision where these are 0 and 1
    (CrossEncoderClassificationEvaluator), else Spearman's correlation."""
    name = relevance_name(labels)
    return name, average_precision(scores, labels) if name == "average_precision" else spearman(scores, labels)


def relevance_name(labels: Any) -> str:
    """What `relevance` measures."""
    import numpy as np

    return "average_precision" if set(np.unique(labels)) == {0.0, 1.0} else "spearman"


def average_precision(scores: Any, labels: Any) -> float:
    """The mean, over all relevant pairs, of the precision among those that score at least as high."""
    import numpy as np

    given, wanted = np.asarray(scores, np.float64), np.asarray(labels, np.float64)
    order = np.argsort(-given, kind="stable")
    right = np.cumsum(wanted[order])
    last = np.flatnonzero(np.diff(given[order], append=np.nan) != 0)  # of pairs with the same score
    gained = np.diff(right[last], prepend=0.0)
    return float((gained * right[last] / (last + 1)).sum() / right[-1])
