"""Loaders give every row in the order of seed and epoch; metrics are what their definitions say."""

from itertools import chain

import numpy as np
import pytest

from weft import autograd as ag
from weft.errors import InputError, ShapeError

X, Y = np.arange(20).reshape(10, 2), np.arange(10)


def order(loader, epoch):
    return np.concatenate([batch[1] for batch in loader.batches(epoch)]).tolist()


def test_every_row_comes_once_an_epoch():
    loader = ag.DataLoader((X, Y), 4)
    assert [len(x) for x, _ in loader] == [4, 4, 2] and len(loader) == 3
    assert order(loader, 0) == order(loader, 7) == list(range(10))
    assert [len(x) for x, _ in ag.DataLoader((X, Y), 4, drop_last=True)] == [4, 4]
    np.testing.assert_array_equal(next(iter(loader))[0], X[:4])


def test_an_order_is_a_function_of_seed_and_epoch():
    loader, same, other = (ag.DataLoader((X, Y), 3, shuffle=True, seed=seed) for seed in (1, 1, 2))
    assert sorted(order(loader, 0)) == list(range(10)) and order(loader, 0) == order(same, 0)
    assert order(loader, 0) != order(loader, 1) and order(loader, 0) != order(other, 0)
    first, second = ([y.tolist() for _, y in loader] for _ in range(2))  # two loops are two epochs
    assert [*chain(*first)] == order(loader, 0) and [*chain(*second)] == order(loader, 1)
    assert [y.tolist() for _, y in loader.batches(1, start=2)] == second[2:]


def test_rows_are_drawn_by_weight():
    weights = [0, 0, 1, 3, 0, 0, 0, 0, 0, 0]
    loader = ag.DataLoader((X, Y), 50, sampler=ag.WeightedSampler(weights, 4000, seed=1))
    counts = np.bincount(order(loader, 0), minlength=10)
    assert counts[[2, 3]].sum() == 4000 and abs(counts[3] / 4000 - 0.75) < 0.03
    few = ag.WeightedSampler(weights, 2, replacement=False)
    assert sorted(few.indices(0)) == [2, 3]
    batches = ag.BatchSampler(ag.SequentialSampler(5), 2, drop_last=True).batches(0)
    assert [rows.tolist() for rows in batches] == [[0, 1], [2, 3]]


def test_a_dataset_is_anything_with_rows():
    class Squares:
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return np.full(2, index), index * index

    x, y = next(iter(ag.DataLoader(Squares(), 5)))
    assert x.shape == (5, 2) and y.tolist() == [0, 1, 4, 9, 16]
    doubled = ag.DataLoader(Squares(), 5, transform=lambda x, y: (x * 2, y))
    assert next(iter(doubled))[0][3].tolist() == [6, 6]
    listed = ag.DataLoader(["a", "bb", "ccc"], 2, collate=lambda texts: [len(text) for text in texts])
    assert list(listed) == [[1, 2], [3]]
    assert next(iter(ag.DataLoader(X, 4)))[0].shape == (4, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ag.DataLoader((X, Y), 0),
        lambda: ag.DataLoader((X, Y[:5]), 2),
        lambda: ag.DataLoader([], 2),
        lambda: ag.DataLoader((X, Y), 11, drop_last=True),
        lambda: ag.DataLoader((X, Y), 2, shuffle=True, sampler=ag.SequentialSampler(3)),
        lambda: list(ag.DataLoader((X, Y), 2, sampler=ag.SequentialSampler(11))),
        lambda: list(ag.DataLoader([np.ones(2), np.ones(3)], 2)),
        lambda: ag.WeightedSampler([0, 0]),
        lambda: ag.WeightedSampler([1, -1]),
        lambda: ag.WeightedSampler([1, 0], 2, replacement=False),
        lambda: ag.RandomSampler(0),
    ],
)
def test_data_that_cannot_be_batched_is_an_input_error(call):
    with pytest.raises(InputError):
        call()


FOUND, WANTED = np.asarray([0, 1, 1, 2, 2, 2, 0, 1]), np.asarray([0, 1, 2, 2, 2, 1, 1, 1])


def test_metrics_of_classes():
    assert ag.accuracy(FOUND, WANTED) == 5 / 8
    assert ag.confusion_matrix(FOUND, WANTED).tolist() == [[1, 0, 0], [1, 2, 1], [0, 1, 2]]
    np.testing.assert_allclose(ag.precision(FOUND, WANTED, "none"), [1 / 2, 2 / 3, 2 / 3])
    np.testing.assert_allclose(ag.recall(FOUND, WANTED, "none"), [1, 1 / 2, 2 / 3])
    np.testing.assert_allclose(ag.f1(FOUND, WANTED, "none"), [2 / 3, 4 / 7, 2 / 3])
    assert ag.precision(FOUND, WANTED) == pytest.approx(np.mean([1 / 2, 2 / 3, 2 / 3]))
    assert ag.recall(FOUND, WANTED, "weighted") == ag.f1(FOUND, WANTED, "micro") == 5 / 8
    scores = np.eye(3)[FOUND]
    assert ag.accuracy(scores, WANTED) == 5 / 8 and ag.accuracy(ag.Variable(scores), ag.Variable(WANTED)) == 5 / 8
    np.testing.assert_array_equal(ag.f1([0, 0], [0, 2], "none"), [2 / 3, 0, 0])  # nothing is divided by zero
    assert ag.confusion_matrix([0], [1], classes=4).shape == (4, 4)


def test_metrics_of_numbers():
    found, wanted = np.asarray([1.0, 2.0, 4.0]), np.asarray([1.0, 3.0, 5.0])
    assert ag.mean_squared_error(found, wanted) == pytest.approx(2 / 3)
    assert ag.mean_absolute_error(found, wanted) == pytest.approx(2 / 3)
    assert ag.r2(found, wanted) == pytest.approx(1 - 2 / 8) and ag.r2(wanted, wanted) == 1.0


def test_metrics_refuse_what_does_not_fit():
    for call in (
        lambda: ag.accuracy([0, 1], [0]),
        lambda: ag.accuracy([0, 1], [0.0, 1.0]),
        lambda: ag.mean_squared_error([0.0], [0.0, 1.0]),
    ):
        with pytest.raises(ShapeError):
            call()
    for call in (
        lambda: ag.accuracy([-1], [0]),
        lambda: ag.accuracy([], np.asarray([], int)),
        lambda: ag.f1([0], [0], "best"),
        lambda: ag.r2([1.0, 2.0], [3.0, 3.0]),
        lambda: ag.confusion_matrix([0], [3], classes=2),
        lambda: ag.r2([], []),
    ):
        with pytest.raises(InputError):
            call()
