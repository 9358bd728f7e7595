"""A vector for each text, from its hash, and rows of texts, to try evaluators and the choice of negatives on."""

from hashlib import sha256

import numpy as np

WIDTH = 16
QUERIES, DOCUMENTS = [f"query {n}" for n in range(20)], [f"document {n}" for n in range(60)]


def vector(text: str) -> np.ndarray:
    """A document is near to the query whose number is that of the document modulo 20; float32 [WIDTH]."""
    kind, number = text.split()
    own, near = _drawn(text), _drawn(f"topic {int(number) % len(QUERIES)}")
    found: np.ndarray = (own + (0.9 if kind == "document" else 0.6) * near).astype(np.float32)
    return found


def _drawn(text: str) -> np.ndarray:
    seed = int.from_bytes(sha256(text.encode()).digest()[:8], "big")
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(WIDTH)


def vectors(texts: list[str]) -> np.ndarray:
    return np.stack([vector(text) for text in texts])


def pairs() -> list[dict[str, str]]:
    """Queries with one positive, some with two."""
    rows = [{"anchor": QUERIES[n], "positive": DOCUMENTS[n]} for n in range(20)]
    return rows + [{"anchor": QUERIES[n], "positive": DOCUMENTS[n + 20]} for n in range(0, 20, 3)]


def scores() -> list[float]:
    """Of QUERIES with the first DOCUMENTS; some are the same."""
    return [round(float(abs(_drawn(f"score {n}")[0])), 1) for n in range(20)]


def relevant() -> dict[str, set[str]]:
    return {query: {DOCUMENTS[n], *([DOCUMENTS[n + 40]] if n % 2 else [])} for n, query in enumerate(QUERIES)}


MININGS: dict[str, dict[str, float]] = {
    "plain": {"num_negatives": 3},
    "range": {"num_negatives": 2, "range_min": 2, "range_max": 9},
    "absolute": {"num_negatives": 3, "absolute_margin": 0.1},
    "relative": {"num_negatives": 4, "relative_margin": 0.3, "range_max": 12},
    "scores": {"num_negatives": 3, "max_score": 0.35, "min_score": 0.1},
}
# what weft calls them
NAMES = {
    "num_negatives": "negatives",
    "range_min": "first",
    "range_max": "last",
    "absolute_margin": "margin",
    "relative_margin": "relative_margin",
    "max_score": "most",
    "min_score": "least",
}
