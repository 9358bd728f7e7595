"""Native dequantisation equals the format's reference bit for bit, for every block type."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from weft import _core
from weft.dtype import DTYPES, DType
from weft.errors import InputError, UnsupportedError

GOLDEN = Path(__file__).parent.parent / "golden" / "dequant"
SPEC = importlib.util.spec_from_file_location("make_dequant", GOLDEN / "make_dequant.py")
assert SPEC is not None and SPEC.loader is not None
make_dequant = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_dequant)

WEIGHTS = [d for d in DTYPES.values() if d.gguf is not None and (d.quantised or d.name in ("f32", "f16", "bf16"))]


@pytest.mark.parametrize("dtype", WEIGHTS, ids=str)
def test_golden_blocks_decode_to_the_golden_values(dtype: DType) -> None:
    golden = json.loads((GOLDEN / "dequant.json").read_text(encoding="utf-8"))[dtype.name]
    raw = make_dequant.blocks(dtype.name, dtype.size_bytes)
    values = _core.quant.dequantise(dtype.name, raw, make_dequant.BLOCKS * dtype.block)
    assert [float(v).hex() for v in values[:8]] == golden["first"]
    assert make_dequant.digest(values) == golden["sha256"]


@pytest.mark.parametrize("dtype", WEIGHTS, ids=str)
def test_random_blocks_decode_as_the_reference_does(dtype: DType) -> None:
    gguf = pytest.importorskip("gguf")
    raw = np.random.default_rng(3).integers(0, 256, 2048 * dtype.size_bytes, dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw.reshape(16, -1), gguf.GGMLQuantizationType(dtype.gguf)).ravel()
    values = _core.quant.dequantise(dtype.name, raw, 2048 * dtype.block)
    assert np.array_equal(np.isnan(values), np.isnan(expected))
    right = (values.view(np.uint32) == expected.view(np.uint32)) | np.isnan(expected)
    assert right.all(), f"{np.count_nonzero(~right)} of {right.size} differ"


def test_every_half_widens_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = _core.quant.dequantise("f16", bits.view(np.uint8), 1 << 16)
    assert np.array_equal(values, bits.view(np.float16).astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(values), bits >> 15 == 1)


def test_every_bfloat_widens_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = _core.quant.dequantise("bf16", bits.view(np.uint8), 1 << 16)
    assert np.array_equal(values.view(np.uint32), bits.astype(np.uint32) << 16)


def test_blocks_may_lie_at_odd_addresses() -> None:
    raw = make_dequant.blocks("q6_k", 210)
    shifted = np.concatenate([np.zeros(1, np.uint8), raw])[1:]
    assert np.array_equal(
        _core.quant.dequantise("q6_k", shifted, 64 * 256), _core.quant.dequantise("q6_k", raw, 64 * 256), equal_nan=True
    )


@pytest.mark.parametrize("count", [0, 1, 31, 33, 64, 1 << 62, (1 << 64) - 32])
def test_a_count_that_does_not_fit_the_bytes_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="34 bytes"):
        _core.quant.dequantise("q8_0", np.zeros(34, np.uint8), count)


def test_types_that_are_no_weights_are_refused() -> None:
    for name in ("a8_32", "i64"):
        with pytest.raises(UnsupportedError):
            _core.quant.dequantise(name, np.zeros(DTYPES[name].size_bytes, np.uint8), DTYPES[name].block)
    with pytest.raises(UnsupportedError):
        _core.quant.dequantise("q9_9", np.zeros(1, np.uint8), 1)
