"""The nearest k are the first k of all scores in order, from floats and codes, for any team and any mask."""

import numpy as np
import pytest

from weft import vectors
from weft.errors import InputError, ShapeError

RNG = np.random.default_rng(1)
ROWS = RNG.standard_normal((5000, 96)).astype(np.float32)
ROWS[4000] = ROWS[17]
QUERIES = np.concatenate([ROWS[17:18], RNG.standard_normal((2, 96)).astype(np.float32)])


def in_order(scores, k, nearer_is_larger, allowed=None):
    order = np.lexsort((np.arange(len(scores)), -scores if nearer_is_larger else scores))
    return (order if allowed is None else order[allowed[order]])[:k]


@pytest.mark.parametrize("metric", ["dot", "cosine", "sqeuclidean", "euclidean", "manhattan"])
def test_the_first_k_of_all_scores(metric, level):
    allowed = RNG.random(5000) < 0.1
    for mask in (None, allowed, np.zeros(5000, bool)):
        found = vectors.top_k(QUERIES, ROWS, 25, metric=metric, allowed=mask)
        for q, query in enumerate(QUERIES):
            scores = getattr(vectors, metric)(query, ROWS)
            want = in_order(scores, 25, metric in ("dot", "cosine"), mask)
            assert np.array_equal(found.rows[q], want) and np.array_equal(found.scores[q], scores[want])
            alone = vectors.top_k(query, ROWS, 25, metric=metric, allowed=mask, threads=3)
            assert np.array_equal(alone.rows, want) and alone.rows.dtype == np.int64
    assert list(vectors.top_k(ROWS[17], ROWS, 2).rows) == [17, 4000]


@pytest.mark.parametrize("tier", ["full", "int8", "int4", "binary"])
def test_codes_too(tier, level):
    codes = vectors.quantise(ROWS, tier)
    query = vectors.PreparedQuery(QUERIES, tier)
    scores = query.scores(codes)
    found = query.top_k(codes, 30, threads=2)
    for q in range(3):
        assert np.array_equal(found.rows[q], in_order(scores[q], 30, True))
    again = vectors.top_k(QUERIES[1], codes, 30)
    assert np.array_equal(again.rows, found.rows[1]) and np.array_equal(again.scores, found.scores[1])


def test_rescoring_puts_candidates_in_their_true_order(level):
    coarse = vectors.top_k(QUERIES, vectors.quantise(ROWS, "int8"), 100)
    exact = vectors.top_k(QUERIES, ROWS, 10)
    fine = vectors.rescore(QUERIES, coarse.rows, ROWS, 10)
    assert np.array_equal(fine.rows, exact.rows) and np.array_equal(fine.scores, exact.scores)
    few = vectors.rescore(QUERIES[1], np.array([3, -1, 5]), ROWS, 3)
    assert set(few.rows[:2]) == {3, 5} and few.rows[2] == -1 and np.isnan(few.scores[2])


def test_half_precision_rows_meet_a_float32_query(level):
    half = ROWS.astype(np.float16)
    found = vectors.top_k(QUERIES[1], half, 10)
    assert np.array_equal(found.rows, vectors.top_k(QUERIES[1], half.astype(np.float32), 10).rows)


def test_known_norms_give_the_same_order():
    found = vectors.top_k(QUERIES, ROWS, 10, norms=vectors.norms(ROWS))
    assert np.array_equal(found.rows, vectors.top_k(QUERIES, ROWS, 10).rows)


def test_fewer_rows_than_asked_for_are_all_of_them():
    assert vectors.top_k(QUERIES, ROWS[:4], 10).rows.shape == (3, 4)
    assert vectors.top_k(QUERIES[0], ROWS[:0], 10).rows.shape == (0,)
    assert vectors.top_k(QUERIES[:0], ROWS, 10).rows.shape == (0, 10)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: vectors.top_k(QUERIES[0], ROWS, 0), InputError, "k must be .*got 0"),
        (lambda: vectors.top_k(QUERIES[0], ROWS[0], 1), ShapeError, "single vector"),
        (lambda: vectors.top_k(QUERIES[0], ROWS, 1, metric="jaccard"), InputError, "jaccard"),
        (lambda: vectors.top_k(QUERIES[0], ROWS, 1, allowed=np.ones(3, bool)), ShapeError, "one mark per row"),
        (lambda: vectors.top_k(QUERIES[0], ROWS, 1, norms=np.ones(3)), ShapeError, "one number per row"),
        (lambda: vectors.top_k(QUERIES[0, :5], ROWS, 1), ShapeError, "5 and 96"),
        (lambda: vectors.rescore(QUERIES, np.zeros((2, 5), int), ROWS, 1), ShapeError, "one row for each of the 3"),
        (lambda: vectors.rescore(QUERIES[0], np.array([5000]), ROWS, 1), InputError, "candidate 5000 is not a row"),
        (lambda: vectors.rescore(QUERIES[0], np.array([-2]), ROWS, 1), InputError, "candidate -2 is not a row"),
    ],
)
def test_what_cannot_be_asked_is_an_error(call, error, words):
    with pytest.raises(error, match=words):
        call()
