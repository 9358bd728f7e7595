"""The quantisers equal the format's reference bit for bit, and every format has a description that adds up."""

import numpy as np
import pytest

from weft.dtype import DTYPES
from weft.errors import InputError, UnsupportedError, WeightError
from weft.weights import TensorView, describe, quantise

MADE = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")


def rows(scale: float) -> np.ndarray:
    """Random rows, and the ugly ones: zeros, a constant, one spike, ties."""
    rng = np.random.default_rng(5)
    values = (rng.standard_normal((32, 128)) * scale).astype(np.float32)
    values[0] = 0
    values[1] = 3 * scale
    values[2] = 0
    values[2, 7] = -scale
    values[3] = np.round(values[3] / scale) * scale / 2
    return values


@pytest.mark.parametrize("name", (*MADE, "f16", "bf16"))
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-8, 1e-30, 1e-40, 1e4, 1e37])
def test_quantisers_equal_the_reference(name: str, scale: float) -> None:
    gguf = pytest.importorskip("gguf")
    values = rows(scale)
    with np.errstate(all="ignore"):
        expected = gguf.quantize(values, gguf.GGMLQuantizationType[name.upper()])
    view = quantise(values, name)
    assert view.shape == values.shape
    assert np.array_equal(view.bytes(), expected.view(np.uint8).ravel())


@pytest.mark.parametrize("name, steps", [("q8_0", 127), ("q4_0", 8), ("q4_1", 15), ("q5_0", 16), ("q5_1", 31)])
def test_a_value_comes_back_within_a_step(name: str, steps: int) -> None:
    values = rows(1.0)
    spread = np.ptp(values.reshape(-1, 32), axis=-1).max() if name.endswith("1") else np.abs(values).max()
    assert np.abs(quantise(values, name).numpy() - values).max() <= spread / steps * 1.01


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(InputError, match="whole blocks"):
        quantise(np.zeros((2, 33), np.float32), "q8_0")
    with pytest.raises(InputError, match="finite"):
        quantise(np.full(32, np.inf, np.float32), "q4_0")
    with pytest.raises(UnsupportedError, match="q4_k"):
        quantise(np.zeros(256, np.float32), "q4_k")
    with pytest.raises(InputError, match="dtype must be one of"):
        quantise(np.zeros(32, np.float32), "q9")


def test_every_format_has_a_description() -> None:
    for dtype in DTYPES.values():
        form = describe(dtype)
        assert form.bits * dtype.block == 8 * dtype.size_bytes
        assert (form.scales != "none") == dtype.quantised
    assert str(describe("q4_k")).startswith("q4_k: 4.5 bits a weight, blocks of 256")


def test_rows_move_whole() -> None:
    values = rows(1.0)
    order = np.random.default_rng(6).permutation(32)
    view = quantise(values, "q5_1")
    assert np.array_equal(view.take(order).numpy(), view.numpy()[order])
    bias = TensorView.of(values[:, 0])
    assert np.array_equal(bias.take(order).numpy(), values[order, 0])
    with pytest.raises(WeightError):
        quantise(values[0], "q8_0").take(np.arange(4))


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    with pytest.raises(WeightError, match="takes 12 bytes, but the data has 8"):
        TensorView(DTYPES["f32"], (3,), bytes(8))
    with pytest.raises(WeightError, match="whole blocks"):
        TensorView(DTYPES["q8_0"], (2, 16), bytes(34))
