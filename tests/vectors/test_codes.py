"""Codes follow their formulas exactly, scores of codes theirs, at every level; a query meets rows of its tier only."""

import numpy as np
import pytest

from weft import vectors
from weft.errors import InputError, ShapeError, TierError
from weft.vectors import Tier

DIMS = (1, 2, 7, 8, 9, 63, 64, 65, 128, 129, 384)


def half_away(x):
    return np.trunc(x + np.copysign(np.float64(0.5), x))


def int8_codes(x):
    largest = np.abs(x).max(1, keepdims=True)
    scale = np.where(largest > 1e-10, np.float32(127) / np.maximum(largest, 1e-30), 1).astype(np.float32)
    return np.clip(half_away((x * scale).astype(np.float64)), -127, 127), scale[:, 0]


def int4_codes(x):
    largest = np.abs(x).max(1, keepdims=True)
    scale = np.where(largest > 1e-10, np.float32(15) / (2 * np.maximum(largest, 1e-30)), 1).astype(np.float32)
    return np.clip(half_away(((x + largest) * scale).astype(np.float64)), 0, 15), scale[:, 0], largest[:, 0]


def test_int8_codes_are_rounded_half_away_and_never_minus_128():
    rng = np.random.default_rng(1)
    for dim in DIMS:
        x = rng.standard_normal((40, dim), np.float32)
        x[0], x[1] = 0, 1e-9
        codes = vectors.quantise(x, "int8")
        want, scale = int8_codes(x)
        assert np.array_equal(codes.data, want) and np.array_equal(codes.scales, scale) and codes.data.min() >= -127
        assert np.allclose(codes.norms, np.linalg.norm(x.astype(np.float64), axis=1), rtol=1e-7)
        assert np.abs(codes.dequantise() - x).max() <= 0.5001 / scale[2:].min()


@pytest.mark.parametrize("tier", ["int8", "int4"])
def test_a_row_too_small_for_a_scale_is_no_row_of_zeros(tier):
    x = np.eye(4, dtype=np.float32)
    x[2] *= 1e-10
    with pytest.raises(InputError, match="row 2 has no number above 1e-10"):
        vectors.quantise(x, tier)
    assert vectors.quantise(x * 1e20, tier).norms.all() and len(vectors.quantise(0 * x, tier)) == 4


def test_codes_are_a_sequence_with_an_end():
    codes = vectors.quantise(np.eye(3, 5, dtype=np.float32), "int8")
    assert [len(row) for row in codes] == [1, 1, 1]
    for place in (np.int64(2), -1):
        assert np.array_equal(codes[place].data, codes.data[2:])
    for place in (3, -4):
        with pytest.raises(IndexError):
            codes[place]
    assert len(codes[1:]) == 2 and len(codes[np.array([True, False, True])]) == 2 and len(codes[np.array([0, 0])]) == 2


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), "0", None])
def test_a_threshold_is_a_number(threshold):
    with pytest.raises(InputError, match="threshold must be"):
        vectors.quantise(np.eye(3, dtype=np.float32), "binary", threshold=threshold)


def test_candidates_are_row_numbers():
    x = np.eye(3, dtype=np.float32)
    for wrong in ([1.7], ["a"]):
        with pytest.raises(InputError, match="must be row numbers"):
            vectors.rescore(x[0], wrong, x, 1)


def test_int4_codes_have_even_places_in_the_high_half():
    rng = np.random.default_rng(2)
    for dim in DIMS:
        x = rng.standard_normal((40, dim), np.float32)
        x[0] = 0
        codes = vectors.quantise(x, "int4")
        want, scale, largest = int4_codes(x)
        assert np.array_equal(codes.data >> 4, want[:, ::2])
        assert np.array_equal((codes.data & 15)[:, : dim // 2], want[:, 1::2])
        assert np.array_equal(codes.scales, scale) and np.array_equal(codes.offsets, largest)
        assert np.array_equal(codes.sums, want.sum(1))


def test_binary_codes_have_the_first_bit_on_top():
    rng = np.random.default_rng(3)
    for dim in DIMS:
        x = rng.standard_normal((9, dim), np.float32)
        x[:, 0] = 0  # zero counts as set
        assert np.array_equal(vectors.quantise(x, "binary").data, np.packbits(x >= 0, axis=1))
        assert np.array_equal(vectors.quantise(x, Tier.BINARY, threshold=0.5).data, np.packbits(x >= 0.5, axis=1))


@pytest.mark.parametrize("tier", ["int8", "int4"])
def test_scores_of_codes_are_those_of_what_they_stand_for(tier, level):
    rng = np.random.default_rng(4)
    for dim in DIMS:
        x, q = rng.standard_normal((30, dim), np.float32), rng.standard_normal(dim, np.float32)
        rows, query = vectors.quantise(x, tier), vectors.quantise(q, tier)
        wide = [
            c.data.astype(np.float64) if tier == "int8" else int4_codes(v)[0] for c, v in ((rows, x), (query, q[None]))
        ]
        wide = [v / np.float64(c.scales)[:, None] for v, c in zip(wide, (rows, query))]
        if tier == "int4":
            wide = [v - np.float64(c.offsets)[:, None] for v, c in zip(wide, (rows, query))]
        want = wide[0] @ wide[1][0]
        got = vectors.PreparedQuery(q, tier, metric="dot").scores(rows)
        assert np.allclose(got, want, rtol=1e-6, atol=1e-5)
        cosine = vectors.PreparedQuery(q, tier).scores(rows)
        assert np.allclose(cosine, want / (np.linalg.norm(x, axis=1) * np.linalg.norm(q)), rtol=1e-5, atol=1e-5)


def test_binary_cosine_is_estimated_from_the_bits_that_differ(level):
    rng = np.random.default_rng(5)
    x, q = rng.standard_normal((30, 77), np.float32), rng.standard_normal(77, np.float32)
    differing = ((x >= 0) != (q >= 0)).sum(1)
    rows = vectors.quantise(x, "binary")
    assert np.allclose(vectors.PreparedQuery(q, "binary").scores(rows), 1 - 2 * differing / 77, atol=1e-7)
    assert np.array_equal(vectors.PreparedQuery(q, "binary", metric="hamming").scores(rows), differing)


def test_scores_of_codes_are_the_same_at_every_level():
    from weft import _core
    from weft.backends.cpu import levels_present

    rng = np.random.default_rng(6)
    x, q = rng.standard_normal((200, 131), np.float32), rng.standard_normal((3, 131), np.float32)
    for tier in ("int8", "int4", "binary"):
        rows, query, seen = vectors.quantise(x, tier), vectors.PreparedQuery(q, tier), set()
        for name in levels_present():
            _core.vectors.set_level(name)
            seen.add(query.scores(rows).tobytes())
        _core.vectors.set_level("")
        assert len(seen) == 1


def test_a_query_meets_rows_of_its_own_tier_only():
    x = np.eye(4, dtype=np.float32)
    rows = vectors.quantise(x, "int8")
    with pytest.raises(TierError, match=r"rows must be int4 codes.*got 'int8'"):
        vectors.PreparedQuery(x[0], "int4").scores(rows)
    with pytest.raises(TierError, match="metric must be dot or cosine for int8 codes"):
        vectors.PreparedQuery(x[0], "int8", metric="manhattan")
    with pytest.raises(ShapeError, match="3 and 4 numbers"):
        vectors.PreparedQuery(x[0, :3], "int8").top_k(rows, 1)
    with pytest.raises(InputError, match="one of full, int8, int4, binary"):
        vectors.quantise(x, "int2")
    with pytest.raises(InputError, match="row 2 holds NaN"):
        vectors.quantise(np.where(np.arange(4)[:, None] == 2, np.nan, x).astype(np.float32), "int8")
    with pytest.raises(InputError, match="row 0 has a norm of zero"):
        vectors.PreparedQuery(x[0], "int8").scores(vectors.quantise(x * 0, "int8"))


def test_tiers_know_their_size_and_age():
    assert [tier.ratio for tier in Tier] == [1, 4, 8, 32]
    assert [Tier.from_age_seconds(s) for s in (0, 3600, 86400, 7 * 86400)] == list(Tier)
    with pytest.raises(InputError):
        Tier.from_age_seconds(-1)
    rows = vectors.quantise(np.ones((10, 64), np.float32), "binary")
    assert rows.nbytes == 10 * (8 + 4) and len(rows[2:5]) == 3 and len(rows[3]) == 1 and len(rows[-1]) == 1


def test_bits_remember_their_threshold() -> None:
    x = np.random.default_rng(3).normal(size=(50, 64)).astype(np.float32)
    codes = vectors.quantise(x, "binary", threshold=0.5)
    found = vectors.top_k(x[7], codes, 1)
    assert (found.rows[0], found.scores[0]) == (7, 1) and codes[3:9].threshold == 0.5
    with pytest.raises(TierError, match=r"threshold 0\.0, as the query: got 0\.5"):
        vectors.PreparedQuery(x[7], "binary").scores(codes)
    with pytest.raises(InputError, match="Codes made by quantise"):
        vectors.PreparedQuery(x[7], "binary").scores(x)  # type: ignore[arg-type]


def test_bits_of_zeros_have_no_direction() -> None:
    x = np.ones((2, 16), np.float32)
    with pytest.raises(InputError, match="query 0 has a norm of zero"):
        vectors.top_k(np.zeros(16), vectors.quantise(x, "binary"), 1)
    x[1] = 0
    with pytest.raises(InputError, match="row 1 has a norm of zero"):
        vectors.top_k(np.ones(16), vectors.quantise(x, "binary"), 1)


def test_bfloat16_is_coded_as_what_it_stands_for() -> None:
    x = np.random.default_rng(4).normal(size=(5, 32)).astype(np.float32)
    bf16 = (x.view(np.uint32) >> 16).astype(np.uint16)
    wide = (bf16.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(vectors.quantise(bf16, "int8", dtype="bf16").data, vectors.quantise(wide, "int8").data)
    assert vectors.top_k(bf16[2], vectors.quantise(wide, "int8"), 1, dtype="bf16").rows[0] == 2
