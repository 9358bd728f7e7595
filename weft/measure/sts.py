"""Embedders on pairs of sentences that people scored: how well cosines follow, and how far vectors moved."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from weft.embed import Embedder
from weft.errors import InputError
from weft.frozen import frozen
from weft.train.vectors.evaluation import pairs
from weft.train.vectors.examples import read_examples
from weft.weights.sources import locate

SCORE, LEFT, RIGHT = 4, 5, 6  # columns of STS-B's own files, parted by tabs


@frozen
class Sts:
    """What one embedder is worth on pairs. `lost` is 1 - cosine between its vectors and those of the reference model,
    the mean over all texts; `farthest` the largest."""

    spearman: float
    pearson: float
    pairs: int
    compute: str
    bytes: int
    seconds: float
    lost: float | None = None
    farthest: float | None = None

    def as_dict(self) -> dict[str, Any]:
        from dataclasses import asdict

        return {name: value for name, value in asdict(self).items() if value is not None}


class Pairs:
    """The pairs of a file: STS-B's own form, or rows with two texts and a score; `against` is a reference model."""

    def __init__(self, data: Any, *, against: str | os.PathLike[str] | None = None, threads: int | None = None) -> None:
        self.left, self.right, self.scores = read_pairs(data)
        self.threads = threads
        self._reference = None if against is None else self._encoded(against, "f32")[0]

    def measure(self, model: str | os.PathLike[str], *, compute: str = "f32") -> Sts:
        """The measure of one model."""
        import numpy as np

        vectors, embedder, seconds = self._encoded(model, compute)
        found = pairs(vectors[: len(self.left)], vectors[len(self.left) :], self.scores)
        lost = farthest = None
        if self._reference is not None:
            if vectors.shape != self._reference.shape:
                sizes = f"{vectors.shape[1]} and {self._reference.shape[1]} numbers"
                advice = "compare vectors of the same size"
                raise InputError("eval", f"vectors of {model} and of the reference have {sizes}", advice=advice)
            unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (vectors, self._reference)]
            apart = 0.5 * ((unit[0] - unit[1]) ** 2).sum(axis=1)  # 1 - cosine, and 0 where vectors are equal
            lost, farthest = float(apart.mean()), float(apart.max())
        return Sts(
            found["spearman"],
            found["pearson"],
            len(self.left),
            str(embedder.info["compute"]),
            size_of(locate(os.fspath(model)).path),
            seconds,
            lost,
            farthest,
        )

    def _encoded(self, model: str | os.PathLike[str], compute: str) -> tuple[Any, Embedder, float]:
        import numpy as np

        embedder = Embedder(os.fspath(model), compute=compute, threads=self.threads, truncate="head")
        begun = time.perf_counter()
        vectors = embedder.encode([*self.left, *self.right])
        return vectors.astype(np.float64), embedder, time.perf_counter() - begun


def read_pairs(data: Any) -> tuple[list[str], list[str], list[float]]:
    """Both texts and the scores of each pair."""
    rows = _sts_rows(Path(data)) if isinstance(data, (str, os.PathLike)) else None
    if rows is None:
        examples = read_examples(data, "cosine")
        assert examples.labels is not None  # this loss wants scores
        return [row[0] for row in examples.texts], [row[1] for row in examples.texts], examples.labels.tolist()
    return [row[LEFT] for row in rows], [row[RIGHT] for row in rows], [float(row[SCORE]) for row in rows]


def _sts_rows(path: Path) -> list[list[str]] | None:
    """The rows of a file in STS-B's form; None for other files."""
    try:
        lines = path.read_bytes().decode("utf-8").replace("\r\n", "\n").split("\n")
    except (OSError, UnicodeDecodeError):
        return None  # the reader of other files says what is wrong
    rows = [line.split("\t") for line in lines if line]
    return rows if rows and all(len(row) > RIGHT and _number(row[SCORE]) for row in rows) else None


def _number(text: str) -> bool:
    try:
        return 0 <= float(text) <= 5
    except ValueError:
        return False


def size_of(path: Path) -> int:
    """The bytes of a model's weights: a file, or the weight files of a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.iterdir() if one.suffix in (".safetensors", ".gguf"))
