"""A map from the vectors of one model to those of another, learnt from items that both have embedded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from weft.errors import FingerprintError, FormatError, InputError, NotFoundError, ShapeError
from weft.transport.costs import points_of
from weft.transport.solver import sinkhorn

METHODS = ("procrustes", "linear", "transport")


@dataclass(frozen=True)
class Alignment:
    """v -> (v - source) @ matrix + target, from the old model's vectors [n, d] to the new one's [n, e].

    recall         of held-out items: the part of the nearest `k` by the new model's vectors that mapped vectors find
    query_recall   the same, where the old vectors stay and `queries` are mapped
    rows           items that it was learnt from
    models         fingerprints of the old and the new model; empty where they are not known
    """

    matrix: np.ndarray = field(repr=False)
    source: np.ndarray = field(repr=False)
    target: np.ndarray = field(repr=False)
    method: str
    rows: int
    recall: float
    k: int
    held_out: int
    query_recall: float = float("nan")
    models: tuple[str, str] = ("", "")

    def __call__(self, vectors: Any) -> np.ndarray:
        """Vectors [d] or [n, d] of the old model as vectors of the new one, of unit length, float32."""
        given = np.asarray(vectors, np.float64)
        if given.ndim not in (1, 2) or given.shape[-1] != len(self.source):
            what = f"must be vectors of {len(self.source)} numbers"
            raise ShapeError("align", what, given=given.shape, field="vectors")
        mapped = (given - self.source) @ self.matrix + self.target
        norms = np.linalg.norm(mapped, axis=-1, keepdims=True)
        return (mapped / np.maximum(norms, 1e-30)).astype(np.float32)

    def queries(self, vectors: Any) -> np.ndarray:
        """Queries [e] or [n, e] of the new model as vectors to search the old model's with, of unit length, float32.

        With M the matrix, q . (v M) = (q M^T) . v: the old vectors need not be mapped, and stay where they are.
        """
        given = np.asarray(vectors, np.float64)
        if given.ndim not in (1, 2) or given.shape[-1] != len(self.target):
            what = f"must be vectors of {len(self.target)} numbers"
            raise ShapeError("align", what, given=given.shape, field="vectors")
        mapped = given @ self.matrix.T
        norms = np.linalg.norm(mapped, axis=-1, keepdims=True)
        return (mapped / np.maximum(norms, 1e-30)).astype(np.float32)

    def check_models(self, old: str, new: str) -> None:
        """Refuse vectors of other models than those that the map was learnt from, where it knows their fingerprints."""
        for name, known, given in zip(("old", "new"), self.models, (old, new), strict=True):
            if known and given and known != given:
                what = f"the map is for the {name} model {known}, not for {given}"
                raise FingerprintError("map", what, advice="learn one for these models: weft drift align OLD NEW")

    def save(self, path: str | Path) -> None:
        """Write the map to an .npz file."""
        about = np.array([self.rows, self.recall, self.k, self.held_out, self.query_recall], np.float64)
        method, models = np.array(self.method), np.array(self.models)
        matrix, source, target = self.matrix, self.source, self.target
        np.savez(path, matrix=matrix, source=source, target=target, about=about, method=method, models=models)

    @classmethod
    def load(cls, path: str | Path) -> Alignment:
        """A map that `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as kept:
                rows, recall, k, held, *more = (float(number) for number in kept["about"])
                matrix, source, target = (np.asarray(kept[name], np.float64) for name in ("matrix", "source", "target"))
                if matrix.shape != (*source.shape, *target.shape) or not np.isfinite(matrix).all():
                    raise ValueError(f"its matrix {matrix.shape} does not fit {source.shape} and {target.shape}")
                old, new = (str(name) for name in kept["models"]) if "models" in kept else ("", "")
                return cls(
                    matrix,
                    source,
                    target,
                    str(kept["method"]),
                    int(rows),
                    recall,
                    int(k),
                    int(held),
                    more[0] if more else float("nan"),
                    (old, new),
                )
        except OSError as error:
            raise NotFoundError("map", f"cannot read {path}: {error.strerror or error}") from None
        except (KeyError, ValueError, TypeError, AttributeError, BadZipFile) as error:
            raise FormatError(str(path), f"is not a map of `weft drift align`: {error}") from error


def align(
    old: Any,
    new: Any,
    *,
    method: str = "procrustes",
    paired: bool = True,
    k: int = 10,
    held_out: float = 0.2,
    ridge: float = 1e-3,
    epsilon: float | None = None,
    rounds: int = 5,
    seed: int = 0,
    threads: int | None = None,
) -> Alignment:
    """Learn a map from `old` [n, d] to `new` [n, e], rows of the same items.

    method     "procrustes": the best rotation; "linear": least squares with a `ridge`; "transport": a rotation between
               items whose pairs are not known (paired=False), which matches items and turns them by turns, and needs
               spaces that already resemble each other
    held_out   the part of the items that recall is measured with; the map is then learnt again from all
    """
    first, second = points_of(old, "old").astype(np.float64), points_of(new, "new").astype(np.float64)
    if method not in METHODS:
        raise InputError("align", f"must be {', '.join(METHODS)}", given=method, field="method")
    if (paired or method != "transport") and len(first) != len(second):
        raise ShapeError("align", f"must have one row per item: {len(first)} and {len(second)}", field="old and new")
    if len(first) < 4:
        raise InputError("align", "needs at least four items", given=len(first))
    if method == "transport" and first.shape[1] != second.shape[1]:
        raise ShapeError("align", f"transport needs equal dimensions: {first.shape[1]} and {second.shape[1]}")

    def fitted(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if method == "transport" and not paired:
            y = _matched(x, y, epsilon, rounds, threads)
        source, target = x.mean(0), y.mean(0)
        x, y = x - source, y - target
        if method == "linear":
            gram = x.T @ x
            gram += ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
            return np.linalg.solve(gram, x.T @ y), source, target
        return _rotation(x, y), source, target

    order = np.random.default_rng(seed).permutation(len(first))
    count = max(2, int(len(first) * held_out)) if len(first) == len(second) else 0
    recall = by_queries = float("nan")
    if count:
        held, kept = order[:count], order[count:]
        trial = Alignment(*fitted(first[kept], second[kept]), method, len(kept), 0.0, k, count)
        recall = recall_of(trial(first), second, queries=held, k=k)
        by_queries = recall_of(first, second, queries=held, k=k, asked=trial.queries(second[held]))
    return Alignment(*fitted(first, second), method, len(first), recall, k, count, by_queries)


def recall_of(
    rows: np.ndarray, true: np.ndarray, *, queries: np.ndarray, k: int, asked: np.ndarray | None = None
) -> float:
    """Search rows with the true vectors of `queries`, or with `asked`: the part of the true nearest k that is found."""
    k = min(k, len(rows) - 1)
    unit, searched = (given / np.maximum(np.linalg.norm(given, axis=1, keepdims=True), 1e-30) for given in (true, rows))
    found = 0
    for row, query in zip(queries, unit[queries] if asked is None else asked, strict=True):
        wanted, got = unit @ unit[row], searched @ query
        wanted[row] = got[row] = -np.inf
        best = set(np.argpartition(-wanted, k)[:k].tolist())
        found += len(best & set(np.argpartition(-got, k)[:k].tolist()))
    return found / (k * len(queries))


def _rotation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The orthogonal matrix that turns x onto y; its scale is that of least squares."""
    left, sizes, right = np.linalg.svd(x.T @ y, full_matrices=False)
    return float(sizes.sum() / max((x**2).sum(), 1e-30)) * (left @ right)


def _matched(x: np.ndarray, y: np.ndarray, epsilon: float | None, rounds: int, threads: int | None) -> np.ndarray:
    """For every row of x where transport takes it among the rows of y, turning x towards them `rounds` times."""
    turned, target = x - x.mean(0) + y.mean(0), y
    for _ in range(rounds):
        scale = float(((turned - y.mean(0)) ** 2).sum(1).mean() + ((y - y.mean(0)) ** 2).sum(1).mean())
        plan = sinkhorn(turned, y, epsilon=epsilon or max(0.02 * scale, 1e-12), threads=threads).plan
        target = plan.map(y)
        centre = x.mean(0)
        turned = (x - centre) @ _rotation(x - centre, target - target.mean(0)) + y.mean(0)
    return target
