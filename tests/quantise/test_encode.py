"""Encoded blocks lose no more than llama.cpp's, nearly as little as a search of every scale, whatever the threads."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from weft.errors import InputError, UnsupportedError
from weft.quantise import encode
from weft.quantise.encoding import ENCODED
from weft.weights import quantise

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "encode"
_spec = importlib.util.spec_from_file_location("make_encode", GOLDEN / "make_encode.py")
assert _spec and _spec.loader
maker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(maker)
LOST = json.loads((GOLDEN / "encode.json").read_text())


@pytest.mark.parametrize("name", ENCODED)
def test_no_more_is_lost_than_by_llama_cpp(name: str) -> None:
    values, importance = maker.rows()
    plain = maker.lost(values, encode(values, name).numpy(), np.ones(768))
    weighted = maker.lost(values, encode(values, name, importance=importance).numpy(), importance)
    assert 0 < plain < LOST[name]["plain"] and 0 < weighted < LOST[name]["weighted"]


@pytest.mark.parametrize("name, low, high", [("q4_0", -8, 7), ("q5_0", -16, 15)])
def test_the_scale_is_nearly_the_best_of_all(name: str, low: int, high: int) -> None:
    rng = np.random.default_rng(3)
    blocks = rng.standard_normal((60, 32)).astype(np.float32)
    weights = np.sqrt((blocks**2).mean(1, keepdims=True) + blocks**2).astype(np.float64)
    made = encode(blocks, name).numpy().astype(np.float64)
    found = (weights * (blocks - made) ** 2).sum(1)
    scales = np.abs(blocks).max() / high * np.linspace(0.02, 1.3, 6000)[:, None, None]
    best = np.full(60, np.inf)
    for sign in (-1, 1):
        for part in np.array_split(sign * scales, 60):
            near = part * np.clip(np.round(blocks / part), low, high)
            best = np.minimum(best, (weights * (blocks - near) ** 2).sum(2).min(0))
    assert (found <= best * 1.02).mean() > 0.9 and found.sum() <= best.sum() * 1.01


@pytest.mark.parametrize("name", ENCODED)
def test_the_bytes_do_not_depend_on_threads_or_neighbours(name: str) -> None:
    values, importance = maker.rows()
    whole = encode(values[:7], name, importance=importance).bytes()
    for threads in (2, 3, 16):
        assert np.array_equal(encode(values[:7], name, importance=importance, threads=threads).bytes(), whole)
    alone = [encode(row, name, importance=importance).bytes() for row in values[:7]]
    assert np.array_equal(np.concatenate(alone), whole)
    doubled = encode(values[:7], name, importance=2 * importance).bytes()
    assert np.array_equal(doubled, whole), "only the ratios of the importance count"


@pytest.mark.parametrize("name", ENCODED)
def test_plain_blocks(name: str) -> None:
    rows = np.zeros((4, 256), np.float32)
    rows[1], rows[2], rows[3, 9] = 0.75, -0.75, 2.0
    made = encode(rows, name).numpy()
    assert np.array_equal(made[0], np.zeros(256))
    assert np.abs(made[1:3] - rows[1:3]).max() < (0.26 if name == "mxfp4" else 0.01)
    assert abs(made[3, 9] - 2.0) < 0.01
    assert np.abs(np.delete(made[3], 9)).max() < (
        0.02 if name.startswith("iq4") else 0.01
    )  # these have no level of zero
    tiny = encode(np.full((1, 256), 1e-42, np.float32), name).numpy()
    assert np.abs(tiny).max() < 1e-30


@pytest.mark.parametrize("name", ["q4_0", "q5_0", "q8_0", "iq4_nl", "mxfp4"])
def test_what_was_encoded_is_encoded_to_itself(name: str) -> None:
    values, _ = maker.rows()
    made = encode(values, name).numpy()
    again = encode(made, name).numpy()
    assert np.abs(again - made).max() <= 2e-3 * np.abs(made).max()


def test_columns_without_importance_may_lose_all() -> None:
    values, importance = maker.rows()
    importance[::2] = 0
    made = encode(values, "q2_k", importance=importance).numpy()
    error = ((values - made) ** 2).sum(0)
    even = ((values - encode(values, "q2_k").numpy()) ** 2).sum(0)
    assert error[1::2].sum() < even[1::2].sum() and error[::2].sum() > even[::2].sum()
    assert np.isfinite(encode(values, "q2_k", importance=np.zeros(768)).numpy()).all()


def test_floats_are_rounded() -> None:
    values, _ = maker.rows()
    for name in ("f32", "f16", "bf16"):
        assert np.array_equal(encode(values, name).bytes(), quantise(values, name).bytes())


def test_bad_input_is_refused() -> None:
    rows = np.zeros((2, 256), np.float32)
    for values in (np.zeros((2, 100), np.float32), np.zeros((0, 256), np.float32), np.float32(1)):
        with pytest.raises(InputError, match="whole blocks of 256"):
            encode(values, "q4_k")
    for bad in (np.nan, np.inf, -np.inf, 1e6):
        wrong = rows.copy()
        wrong[1, 3] = bad
        with pytest.raises(InputError, match="finite and at most 65504"):
            encode(wrong, "q4_0")
    with pytest.raises(UnsupportedError, match="iq2_xxs"):
        encode(rows, "iq2_xxs")
    with pytest.raises(UnsupportedError, match="q9"):
        encode(rows, "q9")
    for importance, message in ((np.ones(255), "256 columns"), (np.full(256, -1.0), "not negative")):
        with pytest.raises(InputError, match=message):
            encode(rows, "q4_0", importance=importance)
