"""Sizes are linear forms of T, B and L that print, parse and compute exactly."""

import itertools

import numpy as np
import pytest

from weft.errors import ShapeError
from weft.ops.spec import B, Dim, L, Spec, T, as_dtype, linear, parse_size


@pytest.mark.parametrize(
    "text, size",
    [("T", T), ("B+1", B + 1), ("2*T", 2 * T), ("2*T+B-1", 2 * T + B - 1), ("-L+3", 3 - L), ("576", 576), ("-1", -1)],
)
def test_prints_and_parses(text, size):
    assert str(size) == text
    assert parse_size(text) == size


def test_every_small_form_round_trips():
    for coefficients in itertools.product((-12, -1, 0, 1, 2), repeat=4):
        form = Dim(*coefficients)
        assert linear(parse_size(str(form))) == form


@pytest.mark.parametrize(
    "text", ["", "t", "T T", "T+", "2T", "T*2", "T*B", "T+T", "1+1", "2*3", "1.5", "+", None, 1.5, True]
)
def test_refuses_what_is_no_size(text):
    with pytest.raises(ShapeError, match="not a size"):
        parse_size(text)


def test_arithmetic_agrees_with_numbers():
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = Dim(*rng.integers(-5, 6, 4).tolist()), Dim(*rng.integers(-5, 6, 4).tolist())
        n, sizes = int(rng.integers(-5, 6)), dict(zip("TBL", rng.integers(0, 100, 3).tolist()))
        assert linear(a + b).at(**sizes) == a.at(**sizes) + b.at(**sizes)
        assert linear(a - b).at(**sizes) == a.at(**sizes) - b.at(**sizes)
        assert linear(n * a).at(**sizes) == n * a.at(**sizes)
        assert linear(n - a).at(**sizes) == n - a.at(**sizes)


def test_a_form_without_symbols_is_an_int():
    assert T - T + 3 == 3
    assert isinstance(T - T + 3, int)


def test_a_product_of_symbols_is_refused():
    with pytest.raises(ShapeError, match="not linear"):
        T * B


def test_bytes_of_packed_rows_are_linear():
    assert Spec((T, 64), as_dtype("a8_32")).nbytes == 80 * T
    assert Spec((B + 1, 3), as_dtype("f32")).nbytes == 12 * B + 12
    assert Spec((2 * L, 512), as_dtype("q4_k")).at(T=0, B=0, L=3).nbytes == 6 * 288
