"""Vectors and labels that the test of losses and the script of its golden share."""

from typing import Any

import numpy as np

ROWS, WIDTH, DIMS = 9, 12, (12, 8, 5)


def vectors(columns: int, seed: int) -> list[np.ndarray]:
    """Columns of vectors of different lengths, some near to each other."""
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((ROWS, WIDTH))
    return [first + by * rng.standard_normal((ROWS, WIDTH)) * (0.5 + rng.random((ROWS, 1))) for by in range(columns)]


def labels(kind: str) -> Any:
    rng = np.random.default_rng(77)
    if kind == "teacher":
        return rng.standard_normal((ROWS, WIDTH))
    if kind == "teachers":
        return rng.standard_normal((ROWS, 2, WIDTH))
    if kind == "binary":
        return np.array([0.0, 1.0, 1.0, 0.0, 0.25, 1.0, 0.0, 0.5, 1.0])
    return np.array([0.0, 0.2, 0.2, 1.0, 0.4, 0.8, 0.2, 1.0, 0.6])  # some are the same


# name -> loss, columns, labels, options
CASES: dict[str, tuple[str, int, str | None, dict[str, float]]] = {
    "ranking": ("ranking", 2, None, {}),
    "ranking-one-negative": ("ranking", 3, None, {}),
    "ranking-three-negatives": ("ranking", 5, None, {}),
    "ranking-scale": ("ranking", 3, None, {"scale": 7.5}),
    "triplet": ("triplet", 3, None, {}),
    "triplet-margin": ("triplet", 3, None, {"margin": 0.5}),
    "cosine": ("cosine", 2, "scores", {}),
    "cosent": ("cosent", 2, "scores", {}),
    "cosent-scale": ("cosent", 2, "scores", {"scale": 3.0}),
    "mse": ("mse", 1, "teacher", {}),
    "mse-two": ("mse", 2, "teacher", {}),
    "mse-each": ("mse", 2, "teachers", {}),
}


def case(name: str) -> tuple[list[np.ndarray], Any]:
    _, columns, kind, _ = CASES[name]
    return vectors(columns, 5 + list(CASES).index(name)), None if kind is None else labels(kind)


def logits() -> np.ndarray:
    return np.linspace(-9.0, 7.0, ROWS)[:, None]
