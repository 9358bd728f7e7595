"""The references mean what the design page says: each is held against another way of computing the same."""

import math
import struct

import numpy as np
import pytest

from weft.dtype import f32_to_bf16
from weft.errors import InputError, ShapeError
from weft.ops import (
    activate,
    attention,
    attention_paged,
    embedding,
    kv_write,
    matmul,
    matmul_q,
    pool,
    quantise_rows,
    rope,
    softcap,
)
from weft.ops.packed import A8, Packed, pack
from weft.ops.samples import integers, normal, paged, segments, weight
from weft.ops.spec import as_dtype
from weft.ops.state import LEVELS, PAGE, KvArray, rotated, rounded
from weft.ops.tolerance import relative_error

f32 = np.float32


def quantised_by_hand(row: np.ndarray, block: int) -> bytes:
    """One block at a time, one value at a time, in float32, written with struct."""
    out = b""
    for values in row.reshape(-1, block):
        peak = f32(0)
        for value in values:
            if abs(value) > abs(peak):
                peak = value
        if peak == 0:
            d, codes = f32(0), [0] * block
        elif block == 32:
            d = f32(abs(peak)) / f32(127)
            codes = [round(float(f32(v * (f32(127) / f32(abs(peak)))))) for v in values]
        else:
            d = f32(peak / f32(-127))
            codes = [min(127, round(float(f32(v * (f32(-127) / peak))))) for v in values]
        sums = [sum(codes[i : i + 16]) for i in range(0, block, 16)]
        out += struct.pack(f"<f{len(sums)}h{block}b", d, *sums, *codes)
    return out


@pytest.mark.parametrize("block", [32, 256])
def test_quantise_rows_to_the_bit(block):
    rng = np.random.default_rng(0)
    x = normal(rng, 4, 2 * block) * f32(10) ** rng.integers(-3, 4, (4, 2 * block)).astype(f32)
    x[1, :block] = 0
    x[2, :block] = np.linspace(-127, 127, block, dtype=f32).round() / 2  # ties
    got = quantise_rows(x, block=block)
    assert got.data.tobytes() == b"".join(quantised_by_hand(row, block) for row in x)
    assert got.spec.dtype.name == f"a8_{block}" and got.data.size == 4 * 2 * as_dtype(f"a8_{block}").size_bytes


@pytest.mark.parametrize("block", [32, 256])
def test_rows_too_small_to_scale_are_zero(block):
    rows = quantise_rows(np.full((1, block), 1e-38, f32), block=block)
    assert not rows.data.any()


@pytest.mark.parametrize("block, dtype", [(32, "q8_0"), (256, "q6_k")])
def test_matmul_q_is_matmul_of_what_the_codes_stand_for(block, dtype):
    rng = np.random.default_rng(1)
    rows = quantise_rows(normal(rng, 3, 2 * block), block=block)
    w = weight(rng, dtype, 5, 2 * block)
    np.testing.assert_allclose(matmul_q(rows, w), matmul(rows.dense(), w), rtol=2e-5, atol=1e-4)
    assert np.abs(rows.data.view(A8[f"a8_{block}"])["q"]).max() == 127


@pytest.mark.parametrize("dtype", ["q8_0", "q4_1"])
def test_the_float32_chain_over_blocks_meets_the_tolerance_of_matmul_q(dtype):
    """The order of docs/design/core.md, with a rounding more per step (numpy has no fma), against the reference."""
    rng = np.random.default_rng(8)
    rows, w = quantise_rows(normal(rng, 3, 512), block=32), weight(rng, dtype, 5, 512)
    x = rows.data.view(A8["a8_32"]).reshape(3, 1, 16)  # [rows, 1, blocks]
    layout = [("d", "<f2"), ("q", "i1", 32)] if dtype == "q8_0" else [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]
    blocks = w.data.view(np.dtype(layout)).reshape(1, 5, 16)
    codes = blocks["q"] if dtype == "q8_0" else np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=-1)
    dot = (codes.astype(np.int64) * x["q"]).sum(axis=-1).astype(f32)  # exact
    acc = np.zeros((3, 5), f32)
    for b in range(16):
        acc = acc + blocks["d"][:, :, b].astype(f32) * x["d"][:, :, b] * dot[:, :, b]
        if dtype == "q4_1":
            acc = acc + blocks["m"][:, :, b].astype(f32) * (
                x["d"][:, :, b] * x["sum"][:, :, b].sum(axis=-1).astype(f32)
            )
    assert acc.dtype == f32
    assert 0 < relative_error(acc, matmul_q(rows, w)) < matmul_q.tolerance_for((rows, w))


def test_known_activations():
    values = np.array([-2.0, 0.0, 1.0], np.float64)
    known = {
        "gelu": [-0.04550026389635842, 0, 0.8413447460685429],
        "gelu_tanh": [-0.04540230591222494, 0, 0.8411919906082768],
        "silu": [-0.2384058440442351, 0, 0.7310585786300049],
        "relu": [0, 0, 1],
        "tanh": [-0.9640275800758169, 0, 0.7615941559557649],
        "sigmoid": [0.11920292202211755, 0.5, 0.7310585786300049],
        "softplus": [0.1269280110429725, 0.6931471805599453, 1.3132616875182228],
        "relu2": [0, 0, 1],
        "quick_gelu": [-0.06434137685579186, 0, 0.8457957659328212],
    }
    for kind, want in known.items():
        np.testing.assert_allclose(activate(values, kind=kind), want, rtol=1e-14, atol=1e-16)


def test_rope_is_a_product_of_complex_numbers():
    rng = np.random.default_rng(2)
    x, positions, freq = (
        rng.standard_normal((5, 2, 10)),
        integers([0, 1, 7, 100, 3]),
        np.array([1.0, 0.25, 0.5, 0.125], f32),
    )
    turn = 1.5 * np.exp(1j * positions[:, None] * freq)[:, None, :]
    pairs = (x[..., 0:8:2] + 1j * x[..., 1:8:2]) * turn
    got = rope(x, positions, freq, interleaved=True, scale=1.5)
    np.testing.assert_allclose(got[..., 0:8:2] + 1j * got[..., 1:8:2], pairs, rtol=1e-12)
    halves = (x[..., 0:4] + 1j * x[..., 4:8]) * turn
    got = rope(x, positions, freq, scale=1.5)
    np.testing.assert_allclose(got[..., 0:4] + 1j * got[..., 4:8], halves, rtol=1e-12)
    np.testing.assert_array_equal(got[..., 8:], x[..., 8:])


def test_softcap_lets_small_numbers_through_and_none_beyond_its_cap():
    np.testing.assert_allclose(softcap(np.array([1e-3, -1e-3]), cap=30.0), [1e-3, -1e-3], rtol=1e-8)
    np.testing.assert_allclose(softcap(np.array([30.0, -1e9]), cap=30.0), [30 * math.tanh(1), -30.0], rtol=1e-12)


def attended_by_hand(q, k, v, seen, scale, cap=0.0):
    """One query head over the keys it sees: q [D], k, v [m, D]."""
    scores = [scale * float(q @ k[j]) for j in seen]
    raised = [math.exp(cap * math.tanh(score / cap) if cap else score) for score in scores]
    return sum(e * v[j] for e, j in zip(raised, seen)) / sum(raised)


@pytest.mark.parametrize(
    "causal, window, cap",
    [(False, 0, 0.0), (True, 0, 0.0), (True, 1, 0.0), (True, 3, 0.0), (False, 0, 0.5), (True, 3, 0.5)],
)
def test_attention_sees_its_own_sequence_only(causal, window, cap):
    rng = np.random.default_rng(3)
    lengths = [4, 1, 6]
    q, k, v = rng.standard_normal((11, 4, 5)), rng.standard_normal((11, 2, 5)), rng.standard_normal((11, 2, 5))
    got = attention(q, k, v, segments(lengths), causal=causal, scale=0.3, window=window, softcap=cap)
    starts = np.repeat(np.cumsum([0, *lengths])[:-1], lengths)
    ends = np.repeat(np.cumsum(lengths), lengths)
    for t in range(11):
        seen = [j for j in range(starts[t], ends[t]) if not causal or (j <= t and (not window or j > t - window))]
        for h in range(4):
            want = attended_by_hand(q[t, h], k[:, h // 2], v[:, h // 2], seen, 0.3, cap)
            np.testing.assert_allclose(got[t, h], want, rtol=1e-12)


def test_a_sink_is_a_key_without_a_value_and_biases_are_added_by_distance():
    rng = np.random.default_rng(9)
    q, k, v = rng.standard_normal((6, 2, 5)), rng.standard_normal((6, 2, 5)), rng.standard_normal((6, 2, 5))
    sinks, table = rng.standard_normal(2), rng.standard_normal((3, 2))
    buckets = np.array([2, 0, 1, 1, 0], f32)  # distances -2 to 2
    starts = segments([6])
    got = attention(q, k, v, starts, sinks, table, buckets, causal=True, scale=0.3)
    for t in range(6):
        for h in range(2):
            row = {-2: 2, -1: 0, 0: 1}
            scores = [0.3 * q[t, h] @ k[j, h] + table[row[max(j - t, -2)], h] for j in range(t + 1)]
            total = math.exp(sinks[h]) + sum(map(math.exp, scores))
            want = sum(math.exp(score) * v[j, h] for j, score in enumerate(scores)) / total
            np.testing.assert_allclose(got[t, h], want, rtol=1e-12)
    state = KvArray.zeros(2, 2, 5, "f64")
    place = integers(range(6)), starts, integers([[1]])
    kv_write(k, v, state, *place)
    want = attention(q, k, v, starts, sinks, causal=True, scale=0.3)
    np.testing.assert_allclose(attention_paged(q, state, *place, sinks, scale=0.3), want, rtol=1e-12)


def test_biases_and_buckets_come_together():
    q = np.zeros((2, 2, 4), f32)
    with pytest.raises(ShapeError, match="come together"):
        attention(q, q, q, segments([2]), None, np.zeros((3, 2), f32), causal=False, scale=1.0)
    with pytest.raises(ShapeError, match=r"buckets must be \[2R\+1\]"):
        attention(q, q, q, segments([2]), None, np.zeros((3, 2), f32), np.zeros(4, f32), causal=False, scale=1.0)
    with pytest.raises(ShapeError, match="sinks must be one number for each head"):
        attention(q, q, q, segments([2]), np.zeros(3, f32), causal=False, scale=1.0)


@pytest.mark.parametrize("window, cap", [(0, 0.0), (5, 0.0), (5, 0.5)])
def test_paged_attention_is_attention_over_what_was_written(window, cap):
    rng = np.random.default_rng(4)
    lengths = [70, 3]
    q, k, v = rng.standard_normal((73, 4, 8)), rng.standard_normal((73, 2, 8)), rng.standard_normal((73, 2, 8))
    _, positions, starts, pages = paged(rng, [0, 0], lengths, 2, 8, "f32")
    state = KvArray.zeros(8, 2, 8, "f64")
    kv_write(k, v, state, positions, starts, pages)
    got = attention_paged(q, state, positions, starts, pages, scale=0.3, window=window, softcap=cap)
    want = attention(q, k, v, starts, causal=True, scale=0.3, window=window, softcap=cap)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_page_holds_keys_by_channel_and_values_by_token():
    rng = np.random.default_rng(5)
    k, v = normal(rng, 1, 2, 3), normal(rng, 1, 2, 3)
    state = KvArray.zeros(4, 2, 3, "f16")
    kv_write(k, v, state, integers([PAGE + 5]), integers([0, 1]), integers([[3, 1]]))
    np.testing.assert_array_equal(state.key[1, :, :, 5], k[0].astype(np.float16))
    np.testing.assert_array_equal(state.value[1, :, 5, :], v[0].astype(np.float16))
    assert np.count_nonzero(state.key) == np.count_nonzero(state.value) == 6


def test_a_state_in_int8_has_a_scale_for_each_row_that_is_exact_in_bfloat16():
    rng = np.random.default_rng(7)
    rows = normal(rng, 50, 64) * np.logspace(-6, 6, 50, dtype=f32)[:, None]
    codes, scale = rounded(rows, as_dtype("i8"))
    top = np.abs(rows).max(axis=1)
    assert scale.dtype == np.float32 and not np.any(scale.view(np.uint32) & 0xFFFF)
    assert np.all(scale >= top / f32(127)) and np.all(scale <= top / f32(127) * (1 + 2.0**-7))
    assert np.all(np.abs(codes * scale[:, None].astype("f8") - rows) <= scale[:, None] * 0.5001)


def test_rows_without_steps_are_zeros_and_those_not_finite_nan():
    rows = np.array([[0, 0], [1e-44, -1e-44], [1, np.inf], [np.nan, 1], [-254, 2]], f32)
    codes, scale = rounded(rows, as_dtype("i8"))
    np.testing.assert_array_equal(codes, [[0, 0], [0, 0], [0, 0], [0, 0], [-127, 1]])
    np.testing.assert_array_equal(scale, f32([0, 0, np.nan, np.nan, 2]))


@pytest.mark.parametrize("dim", [17, 64, 80, 96, 128])
def test_rows_are_rotated_by_walshs_matrix_which_turns_them_back(dim):
    size = next(n for n in (128, 64, 32, 16, 1) if dim % n == 0)
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron(matrix, np.array([[1, 1], [1, -1]]) / np.sqrt(2))
    rows = np.random.default_rng(3).standard_normal((7, dim))
    np.testing.assert_allclose(rotated(rows), rows @ np.kron(np.eye(dim // size), matrix).T, atol=1e-12)
    np.testing.assert_allclose(rotated(rotated(rows)), rows, atol=1e-12)


@pytest.mark.parametrize("kind, most", [("i8r", 0.008), ("i4r", 0.1)])
def test_a_state_of_rotated_codes_loses_little_of_a_row_with_an_outlier(kind, most):
    rng = np.random.default_rng(9)
    rows = normal(rng, 40, 64)
    state = KvArray.zeros(2, 40, 64, kind)
    state.write(1, 3, rows, rows)
    for got in state.read(np.asarray([1]), 4):
        assert np.linalg.norm(got[3] - rows) / np.linalg.norm(rows) < most
    rows[:, 5] = 40  # plain 8 bits would lose 40 / 254 a channel
    codes, scale = rounded(rows, as_dtype(kind))
    left = rotated(codes.astype("f8") * scale[:, None]) - rows
    assert np.linalg.norm(left) / np.linalg.norm(rows) < most
    assert not np.any(scale.view(np.uint32) & 0xFFFF)


def test_levels_of_four_bits_are_the_nearest_under_the_best_of_their_scales():
    rows = normal(np.random.default_rng(11), 60, 96) * np.logspace(-9, 9, 60, dtype=f32)[:, None]
    codes, scale = rounded(rows, as_dtype("i4r"))
    turned, levels = rotated(rows).astype("f8"), np.asarray(LEVELS, "f8")
    assert set(np.unique(codes)) <= set(LEVELS)

    def lost(scales):
        return np.min(np.abs(turned[..., None] - levels * scales[:, None, None]), axis=-1) ** 2

    mine = (codes * scale[:, None].astype("f8") - turned) ** 2
    assert np.all(mine.sum(axis=1) <= lost(scale.astype("f8")).sum(axis=1) * 1.03)  # nearest, but for steps of 1/254
    tops = np.abs(turned).max(axis=1)
    others = [lost(tops / 127 * ratio).sum(axis=1) for ratio in np.linspace(0.75, 1.0625, 11)]
    assert np.all(mine.sum(axis=1) <= np.min(others, axis=0) * 1.15)  # ratios are an eighth apart, a scale is bfloat16


def test_a_centre_of_keys_changes_no_weight_of_attention():
    rng = np.random.default_rng(13)
    k, v, q = normal(rng, 9, 2, 16), normal(rng, 9, 2, 16), normal(rng, 9, 4, 16)
    where = (integers(np.arange(9)), integers([0, 9]), integers([[0]]))
    centre, steady = normal(rng, 32) * 50, np.arange(16) % 3 == 0
    plain, moved = KvArray.zeros(1, 2, 16, "f64"), KvArray.zeros(1, 2, 16, "f64")
    kv_write(k, v, plain, *where)
    kv_write(k, v, moved, *where, centre, steady.astype(f32))
    assert np.abs(plain.key - moved.key).max() > 50
    results = [attention_paged(q, state, *where, scale=0.25) for state in (plain, moved)]
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def test_pool_modes():
    x = np.array([[1.0, 8], [3, 2], [5, 6]], f32)
    starts = integers([0, 2, 3])
    want = {"mean": [[2, 5], [5, 6]], "first": [[1, 8], [5, 6]], "last": [[3, 2], [5, 6]], "max": [[3, 8], [5, 6]]}
    for mode, rows in want.items():
        np.testing.assert_array_equal(pool(x, starts, mode=mode), rows)


def test_an_index_outside_is_refused():
    with pytest.raises(InputError, match="ids must be 0 to 4: got -1"):
        embedding(integers([2, -1]), np.zeros((5, 3), f32))


def test_packed_floats_are_exact():
    values = normal(np.random.default_rng(6), 3, 5)
    np.testing.assert_array_equal(pack(values, "f32").dense(), values)
    np.testing.assert_array_equal(pack(values, "f16").dense(), values.astype(np.float16).astype(f32))
    bits = pack(values, "bf16").data.view("<u2")
    np.testing.assert_array_equal(bits, f32_to_bf16(values).reshape(-1))
    np.testing.assert_array_equal(
        pack(values, "bf16").take(np.array([2, 0])).dense(), pack(values[[2, 0]], "bf16").dense()
    )


@pytest.mark.parametrize(
    "data", [np.zeros(33, np.uint8), np.zeros(34, np.int8), np.zeros((34, 1), np.uint8), np.zeros(68, np.uint8)[::2]]
)
def test_packed_bytes_must_be_whole(data):
    with pytest.raises(InputError, match=r"\[packed\]"):
        Packed(as_dtype("q8_0"), (1, 32), data)
    assert Packed(as_dtype("q8_0"), (1, 32), np.zeros(34, np.uint8)).dense().shape == (1, 32)
