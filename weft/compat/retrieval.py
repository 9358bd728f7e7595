"""Searching and grouping by vectors, as sentence-transformers' `util` has them: numpy in, lists out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compat.similarity import Measure, cos_sim, normalize_embeddings, numbers
from weft.embed.inputs import check_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weft.compat.sentence_transformer import SentenceTransformer


def semantic_search(
    query_embeddings: Any,
    corpus_embeddings: Any,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500_000,
    top_k: int = 10,
    score_function: Measure = cos_sim,
) -> list[list[dict[str, Any]]]:
    """For each query the `top_k` vectors of the corpus with the highest scores: `corpus_id` and `score`, best first.

    Equal scores are ordered by `corpus_id`. The chunk sizes bound the memory, not the result.
    """
    queries, corpus = np.atleast_2d(numbers(query_embeddings)), np.atleast_2d(numbers(corpus_embeddings))
    check_count(top_k, "top_k")
    found: list[list[dict[str, Any]]] = []
    for ids, scores in _nearest(queries, corpus, query_chunk_size, corpus_chunk_size, top_k, score_function):
        rows = zip(ids.tolist(), scores.tolist())
        found += [[{"corpus_id": i, "score": score} for i, score in zip(*row)] for row in rows]
    return found


def paraphrase_mining(
    model: SentenceTransformer,
    sentences: Sequence[str],
    show_progress_bar: bool = False,
    batch_size: int = 32,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100_000,
    max_pairs: int = 500_000,
    top_k: int = 100,
    score_function: Measure = cos_sim,
    truncate_dim: int | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
) -> list[list[Any]]:
    """The pairs of sentences with the highest scores, [score, index, index], best first."""
    embeddings = model.encode(
        sentences,
        show_progress_bar=show_progress_bar,
        batch_size=batch_size,
        truncate_dim=truncate_dim,
        prompt_name=prompt_name,
        prompt=prompt,
    )
    return paraphrase_mining_embeddings(
        embeddings, query_chunk_size, corpus_chunk_size, max_pairs, top_k, score_function
    )


def paraphrase_mining_embeddings(
    embeddings: Any,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100_000,
    max_pairs: int = 500_000,
    top_k: int = 100,
    score_function: Measure = cos_sim,
) -> list[list[Any]]:
    """The `max_pairs` pairs of vectors with the highest scores, [score, index, index], best first; each pair once.

    Each vector brings its `top_k` best others. The chunk sizes bound the memory, not the result.
    """
    if not len(embeddings):
        return []
    rows = np.atleast_2d(numbers(embeddings))
    check_count(top_k, "top_k")
    check_count(max_pairs, "max_pairs")
    pairs: dict[tuple[int, int], float] = {}
    one = 0
    # one more than asked for: a vector itself is among its nearest
    for found in _nearest(rows, rows, query_chunk_size, corpus_chunk_size, top_k + 1, score_function):
        for ids, scores in zip(*(part.tolist() for part in found)):
            others = [(other, score) for other, score in zip(ids, scores) if other != one][:top_k]
            for other, score in others:
                pairs.setdefault((min(one, other), max(one, other)), score)
            one += 1
        if len(pairs) > 2 * max_pairs:
            pairs = dict(_first(pairs, max_pairs))
    return [[score, *pair] for pair, score in _first(pairs, max_pairs)]


def _first(pairs: dict[tuple[int, int], float], count: int) -> list[tuple[tuple[int, int], float]]:
    """The `count` best pairs, best first."""
    return sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:count]


def community_detection(
    embeddings: Any,
    threshold: float = 0.75,
    min_community_size: int = 10,
    batch_size: int = 1024,
    show_progress_bar: bool = False,
) -> list[list[int]]:
    """Groups of at least `min_community_size` vectors whose cosine to the group's first is `threshold` or more.

    The largest comes first, and each vector is in one group at most. In a group, indices are ordered by that cosine.
    """
    check_count(min_community_size, "min_community_size")
    check_count(batch_size, "batch_size")
    if len(embeddings) < min_community_size:
        return []
    rows, near = normalize_embeddings(np.atleast_2d(numbers(embeddings))), []
    for first in range(0, len(rows), batch_size):
        scores = rows[first : first + batch_size] @ rows.T
        close = scores >= np.float32(threshold)
        for at in np.flatnonzero(close.sum(axis=1) >= min_community_size):
            ids = np.flatnonzero(close[at])
            near.append((first + int(at), ids[np.argsort(-scores[at, ids], kind="stable")]))
    used, found = np.zeros(len(rows), bool), []
    for centre, group in sorted(near, key=lambda one: len(one[1]), reverse=True):
        left = group[~used[group]]
        if not used[centre] and len(left) >= min_community_size:
            used[left] = True
            found.append([centre, *left[left != centre].tolist()])
    return sorted(found, key=len, reverse=True)


def _nearest(
    queries: np.ndarray, corpus: np.ndarray, query_chunk: int, corpus_chunk: int, k: int, score: Measure
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each chunk of queries the `k` best of the corpus, best first: indices and scores, both [queries, k]."""
    check_count(query_chunk, "query_chunk_size")
    check_count(corpus_chunk, "corpus_chunk_size")
    for first in range(0, len(queries), query_chunk):
        part = queries[first : first + query_chunk]
        ids, scores = np.empty((len(part), 0), np.int64), np.empty((len(part), 0), np.float32)
        for start in range(0, len(corpus), corpus_chunk):
            more = np.asarray(score(part, corpus[start : start + corpus_chunk]))
            places = np.broadcast_to(np.arange(start, start + more.shape[1]), more.shape)
            ids, scores = _best(np.hstack([ids, places]), np.hstack([scores, more]), k)
        yield ids, scores


def _best(ids: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each row the `k` highest scores and their ids, best first; equal ones in the order given."""
    if k < scores.shape[1]:  # ties at the edge: the first ones
        edge = -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]
        above = scores > edge
        ties = (scores == edge) & (np.cumsum(scores == edge, axis=1) <= k - above.sum(axis=1, keepdims=True))
        kept = np.nonzero(above | ties)[1].reshape(len(scores), k)
        ids, scores = np.take_along_axis(ids, kept, 1), np.take_along_axis(scores, kept, 1)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)
