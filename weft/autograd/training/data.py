"""Data in batches: samplers decide the order, a loader makes the arrays.

An order is a pure function of a seed and the number of the epoch, so that a run can be taken up anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from weft.errors import InputError, ShapeError


class Sampler(Protocol):
    """Which rows an epoch has, in which order."""

    def indices(self, epoch: int) -> np.ndarray: ...


def _count(where: str, field: str, value: Any) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise InputError(where, "must be a whole number of at least 1", field=field, given=value)
    return int(value)


class SequentialSampler:
    """All rows in their order."""

    def __init__(self, count: int) -> None:
        self.count = _count("SequentialSampler", "count", count)

    def indices(self, epoch: int) -> np.ndarray:
        return np.arange(self.count)


class RandomSampler:
    """All rows, in another order every epoch."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count, self.seed = _count("RandomSampler", "count", count), seed

    def indices(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.count)


class WeightedSampler:
    """`count` rows, each drawn with a probability in proportion to its weight, with replacement or without."""

    def __init__(self, weights: Any, count: int | None = None, *, replacement: bool = True, seed: int = 0) -> None:
        self.weights = np.asarray(weights, np.float64)
        self.count = _count("WeightedSampler", "count", len(self.weights) if count is None else count)
        self.replacement, self.seed = replacement, seed
        if self.weights.ndim != 1 or not np.isfinite(self.weights).all() or (self.weights < 0).any():
            raise InputError("WeightedSampler", "must be a row of numbers, none below zero", field="weights")
        positive = int((self.weights > 0).sum())
        if positive == 0 or (not replacement and self.count > positive):
            what = f"must be at most the {positive} rows with a weight above zero"
            raise InputError("WeightedSampler", what, field="count", given=self.count)

    def indices(self, epoch: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, epoch])
        share = self.weights / self.weights.sum()
        return rng.choice(len(share), self.count, replace=self.replacement, p=share)


class BatchSampler:
    """The rows of a sampler in batches; `drop_last` leaves out a last one that is not full."""

    def __init__(self, sampler: Sampler, size: int, *, drop_last: bool = False) -> None:
        self.sampler, self.size, self.drop_last = sampler, _count("BatchSampler", "size", size), drop_last

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The rows of each batch of an epoch."""
        order = self.sampler.indices(epoch)
        found = [order[at : at + self.size] for at in range(0, len(order), self.size)]
        return found[:-1] if self.drop_last and found and len(found[-1]) < self.size else found


class ArrayDataset:
    """Arrays of the same number of rows; a row is one of each."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = tuple(np.asarray(one) for one in arrays)
        if not self.arrays or any(one.ndim == 0 for one in self.arrays):
            raise InputError("ArrayDataset", "must be arrays with rows", field="arrays", given=arrays)
        for one in self.arrays[1:]:
            if len(one) != len(self.arrays[0]):
                raise ShapeError(
                    "ArrayDataset", f"must have {len(self.arrays[0])} rows", field="arrays", given=one.shape
                )

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(one[index] for one in self.arrays)


def stack(rows: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Rows of a dataset as one array for each of their parts."""
    parts = [row if isinstance(row, tuple) else (row,) for row in rows]
    shapes = {tuple(np.shape(part) for part in row) for row in parts}
    if len(shapes) != 1:
        advice = "give the loader a collate= that makes them so"
        raise ShapeError("stack", "must have parts of the same shapes", field="rows", given=sorted(map(str, shapes)),
                         advice=advice)  # fmt: skip
    return tuple(np.stack([np.asarray(row[part]) for row in parts]) for part in range(len(parts[0])))


class DataLoader:
    """Batches of a dataset, each a tuple of arrays.

    A dataset has a length and rows by number; arrays alone will do: DataLoader((x, y), 32). Every `for` over a loader
    is the next epoch; `batches(epoch, start)` is any of them, from any batch on.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        sampler: Sampler | None = None,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        if isinstance(dataset, np.ndarray):
            dataset = ArrayDataset(dataset)
        elif isinstance(dataset, tuple):
            dataset = ArrayDataset(*dataset)
        if not len(dataset):
            raise InputError("DataLoader", "must have at least one row", field="dataset", given=0)
        if sampler is not None and shuffle:
            raise InputError("DataLoader", "cannot be given beside a sampler", field="shuffle", given=shuffle)
        count = len(dataset)
        order = sampler or (RandomSampler(count, seed) if shuffle else SequentialSampler(count))
        self.dataset, self.collate, self.transform = dataset, collate, transform
        self.sampler = BatchSampler(order, batch_size, drop_last=drop_last)
        self.epoch = 0
        if not len(self):
            what = "leaves no batch: there are fewer rows than in one"
            raise InputError("DataLoader", what, field="drop_last", given=f"{count} rows, batch_size {batch_size}")

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.sampler.batches(0))

    def __iter__(self) -> Iterator[Any]:
        now, self.epoch = self.epoch, self.epoch + 1
        return self.batches(now)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of this epoch, from number `start` on."""
        for rows in self.sampler.batches(epoch)[start:]:
            if rows.min() < 0 or rows.max() >= len(self.dataset):
                what = f"must give rows from 0 to {len(self.dataset) - 1}"
                raise InputError("DataLoader", what, field="sampler", given=int(rows.max()))
            batch = self._batch(rows)
            yield self.transform(*batch) if self.transform is not None else batch

    def _batch(self, rows: np.ndarray) -> Any:
        if isinstance(self.dataset, ArrayDataset) and self.collate is None:
            return self.dataset[rows]
        return (self.collate or stack)([self.dataset[int(row)] for row in rows])
