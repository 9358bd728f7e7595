"""Baselines of a gate: texts with the vectors that a model gave them once, and how far those of today are from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FormatError, NotFoundError

SENTENCES = (
    "The cat sat on the mat.",
    "Stock prices fell sharply after the announcement.",
    "How do I renew the certificate of my server?",
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
    "She plays the violin in a small orchestra.",
    "def add(a, b): return a + b",
    "Der Zug nach Berlin hat zwanzig Minuten Verspätung.",
    "A boundary layer forms where a fluid flows along a wall.",
    "Please cancel my order and refund the payment.",
    "1, 1, 2, 3, 5, 8, 13, 21",
)


def read_baseline(path: Path) -> dict[str, Any]:
    """The texts and vectors of a baseline."""
    if not path.is_file():
        raise NotFoundError("baseline", f"{path} does not exist", advice="write it with --update-baseline")
    kept = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(kept, dict) or not {"texts", "vectors"} <= set(kept):
        raise FormatError(str(path), "is not a baseline: it needs texts and vectors")
    return kept


def write_baseline(path: Path, model: str, texts: list[str], vectors: np.ndarray) -> None:
    rows = [[round(float(number), 7) for number in row] for row in vectors]
    path.write_text(json.dumps({"model": model, "texts": texts, "vectors": rows}, ensure_ascii=False), encoding="utf-8")


def moved(path: Path, kept: dict[str, Any], now: np.ndarray) -> np.ndarray:
    """1 - cosine of every vector of the baseline with that of today."""
    then = np.array(kept["vectors"], np.float64)
    if then.shape != now.shape:
        raise FormatError(str(path), f"has vectors of shape {then.shape}; the model gives {now.shape}")
    norms = np.linalg.norm(then, axis=1) * np.linalg.norm(now, axis=1)
    apart: np.ndarray = 1 - (then * now).sum(1) / np.maximum(norms, 1e-30)
    return apart
