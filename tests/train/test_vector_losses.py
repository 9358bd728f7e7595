"""Losses of vectors beside sentence-transformers, and beside differences."""

from pathlib import Path
from typing import Any

import loss_cases as cases
import numpy as np
import pytest

from weft.errors import InputError
from weft.train.vectors import losses

GOLDEN = np.load(Path(__file__).resolve().parents[1] / "golden" / "train" / "vector-losses.npz")


def loss_of(name: str, short: bool) -> Any:
    kind, _, _, options = cases.CASES[name]
    return losses.loss_of(kind, **options, dims=cases.DIMS if short else ())


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("name", cases.CASES)
def test_values_and_gradients_are_those_of_sentence_transformers(name: str, short: bool) -> None:
    columns, labels = cases.case(name)
    value, grads = loss_of(name, short)(columns, labels)
    key = f"{name}-short" if short else name
    assert abs(value - GOLDEN[key]) < 1e-6
    assert np.abs(np.stack(grads) - GOLDEN[f"{key}.grad"]).max() < 1e-6


def test_binary_cross_entropy_is_torchs() -> None:
    value, (grad,) = losses.binary([cases.logits()], cases.labels("binary"))
    assert abs(value - GOLDEN["binary"]) < 1e-12
    assert np.abs(grad - GOLDEN["binary.grad"]).max() < 1e-12


@pytest.mark.parametrize("name", ["ranking-three-negatives", "triplet-margin", "cosent", "mse-two"])
def test_gradients_are_those_of_differences(name: str) -> None:
    columns, labels = cases.case(name)
    loss = loss_of(name, True)
    _, grads = loss(columns, labels)
    rng = np.random.default_rng(3)
    for at, grad in enumerate(grads):
        way = rng.standard_normal(grad.shape)
        ends = [[c + sign * 1e-6 * way if i == at else c for i, c in enumerate(columns)] for sign in (1, -1)]
        up, down = (loss(end, labels)[0] for end in ends)
        assert abs((up - down) / 2e-6 - (grad * way).sum()) < 1e-6


def test_many_anchors_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, _ = cases.case("ranking-one-negative")
    whole, grads = losses.ranking(columns)
    monkeypatch.setattr(losses, "ROWS", 4)
    value, parts = losses.ranking(columns)
    assert abs(value - whole) < 1e-14
    assert np.abs(np.stack(parts) - np.stack(grads)).max() < 1e-15


def test_vectors_that_are_the_same_or_zero_have_a_finite_gradient() -> None:
    same = np.ones((2, 4))
    for name, columns in (("triplet", [same, same, same]), ("ranking", [same * 0, same]), ("cosine", [same * 0, same])):
        value, grads = losses.loss_of(name)(columns, [0.5, 0.5])
        assert np.isfinite(value) and all(np.isfinite(grad).all() for grad in grads)


def test_a_loss_without_a_name_is_refused() -> None:
    with pytest.raises(InputError, match="ranking, triplet") as error:
        losses.loss_of("rankin")
    assert error.value.field == "loss"
