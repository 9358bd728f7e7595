"""Distances agree with float64 at every level, are the same alone and among others, and refuse what has no answer."""

import subprocess
import sys

import numpy as np
import pytest

from weft import vectors
from weft.dtype import bf16_to_f32, f32_to_bf16
from weft.errors import InputError, ShapeError

DIMS = (1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 384, 768, 1024)
FLOATS = ("dot", "cosine", "sqeuclidean", "euclidean", "manhattan")


def wide_distance(metric, a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if metric == "dot":
        return b @ a
    if metric == "cosine":
        return (b @ a) / (np.linalg.norm(b, axis=-1) * np.linalg.norm(a))
    if metric == "manhattan":
        return np.abs(b - a).sum(-1)
    squared = ((b - a) ** 2).sum(-1)
    return squared if metric == "sqeuclidean" else np.sqrt(squared)


def typed(x, dtype):
    """x as arrays of the type, what they stand for, and the keywords that say so."""
    if dtype == "bf16":
        bits = f32_to_bf16(x)
        return bits, bf16_to_f32(bits), {"dtype": "bf16"}
    if dtype == "int8":
        whole = np.clip(np.round(x * 40), -128, 127).astype(np.int8)
        whole.flat[0] = -128
        return whole, whole.astype(np.float64), {}
    return x.astype(dtype), x.astype(dtype), {}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bf16", "int8"])
@pytest.mark.parametrize("metric", FLOATS)
def test_agrees_with_float64(metric, dtype, level):
    rng = np.random.default_rng(1)
    measure = getattr(vectors, metric)
    for dim in DIMS:
        rows, wide_rows, said = typed(rng.standard_normal((7, dim), np.float32) + 0.1, dtype)
        query, wide_query, _ = typed(rng.standard_normal(dim, np.float32) + 0.1, dtype)
        want = wide_distance(metric, wide_query, wide_rows)
        got = measure(query, rows, **said)
        scale = 1 + np.abs(wide_rows).max() * np.abs(wide_query).max() * dim if metric == "dot" else 1 + np.abs(want)
        assert got.dtype == np.float32 and got.shape == (7,)
        assert np.all(np.abs(got - want) <= 3e-7 * scale), (dim, np.abs(got - want).max())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bf16", "int8"])
@pytest.mark.parametrize("metric", FLOATS)
def test_a_pair_has_the_same_bits_alone_among_many_and_with_any_team(metric, dtype, level):
    rng = np.random.default_rng(2)
    measure = getattr(vectors, metric)
    rows, _, said = typed(rng.standard_normal((3000, 67), np.float32), dtype)
    queries = np.ascontiguousarray(rows[5:12])
    many = measure(queries, rows, threads=3, **said)
    assert many.tobytes() == measure(queries, rows, threads=1, **said).tobytes()
    for q, r in ((0, 0), (6, 2999), (3, 1234)):
        assert measure(queries[q], rows, **said)[r] == many[q, r]
        assert np.float32(measure(queries[q], rows[r], **said)) == many[q, r]
        assert measure(rows[r : r + 1], queries, **said)[0, q] == many[q, r]


def test_levels_with_a_fused_multiply_add_agree_to_the_bit():
    from weft import _core
    from weft.backends.cpu import levels_present

    rng = np.random.default_rng(3)
    query, rows = rng.standard_normal(100, np.float32), rng.standard_normal((50, 100), np.float32)
    seen = set()
    for name in levels_present()[1:]:
        _core.vectors.set_level(name)
        seen.add(b"".join(getattr(vectors, metric)(query, rows).tobytes() for metric in FLOATS))
    _core.vectors.set_level("")
    assert len(seen) <= 1


def test_shapes_say_what_comes_back():
    a, b = np.ones(8, np.float32), np.ones((3, 8), np.float32)
    assert isinstance(vectors.dot(a, a), float)
    assert vectors.dot(a, b).shape == vectors.dot(b, a).shape == (3,)
    assert vectors.dot(b, b[:2]).shape == (3, 2)
    assert vectors.dot(b[:1], a).shape == (1,)
    assert vectors.dot([1, 2], [3, 4]) == 11.0
    out = np.empty(3, np.float32)
    assert vectors.dot(a, b, out=out).base is not None and np.all(out == 8)


def test_views_are_read_where_they_lie():
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((20, 64), np.float32)
    query = rng.standard_normal(64, np.float32)
    assert np.array_equal(vectors.dot(query[:48], rows[:, :48]), vectors.dot(query[:48].copy(), rows[:, :48].copy()))
    assert np.array_equal(
        vectors.dot(query[::2], rows[::-3, ::2]), vectors.dot(query[::2].copy(), rows[::-3, ::2].copy())
    )
    fixed = rows.copy()
    fixed.flags.writeable = False
    assert np.array_equal(vectors.dot(query, fixed), vectors.dot(query, rows))
    assert vectors.dot(query.astype(">f4"), rows[0]) == vectors.dot(query, rows[0])
    assert np.allclose(vectors.dot(query.astype(np.float16), rows), rows @ query.astype(np.float16), atol=1e-4)


def test_a_vector_is_at_one_from_itself():
    rng = np.random.default_rng(5)
    for dim in DIMS:
        x = rng.standard_normal(dim, np.float32)
        assert vectors.cosine(x, x) == 1.0 and vectors.cosine(x, -x) == -1.0 and vectors.euclidean(x, x) == 0.0


def test_hamming_counts_bits(level):
    rng = np.random.default_rng(6)
    for size in (1, 7, 48, 63, 64, 65, 128, 200):
        a, b = rng.integers(0, 256, size, np.uint8), rng.integers(0, 256, (4, size), np.uint8)
        want = np.unpackbits(a ^ b, axis=1).sum(1)
        assert np.array_equal(vectors.hamming(a, b), want) and vectors.hamming(a, b[0]) == want[0]


ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: vectors.dot(ones, ones[:3]), ShapeError, "4 and 3 numbers"),
        (lambda: vectors.dot(ones, np.ones((2, 3), np.float32)), ShapeError, "4 and 3 numbers"),
        (lambda: vectors.cosine(ones, zeros), InputError, "row 0 has a norm of zero"),
        (lambda: vectors.cosine(zeros, np.stack([ones, ones])), InputError, "query 0 has a norm of zero"),
        (lambda: vectors.cosine(ones, np.stack([ones, zeros])), InputError, "row 1 has a norm of zero"),
        (lambda: vectors.cosine(np.zeros(4, np.int8), np.ones(4, np.int8)), InputError, "norm of zero"),
        (lambda: vectors.dot(ones, np.stack([ones, ones * np.nan])), InputError, "row 1 holds NaN"),
        (lambda: vectors.euclidean(ones * np.inf, ones), InputError, "query 0 holds NaN or inf"),
        (lambda: vectors.dot(ones * 1e30, ones * 1e30), InputError, "too large"),
        (lambda: vectors.dot(ones, ones.astype(np.int8)), InputError, "float32 and int8"),
        (lambda: vectors.dot(ones.astype(np.int32), ones), InputError, "elements must be .*got 'int32'"),
        (lambda: vectors.dot(ones.astype(np.uint16), ones), InputError, "dtype='bf16'"),
        (lambda: vectors.dot(ones.astype(np.uint8), ones.astype(np.uint8)), InputError, "hamming"),
        (lambda: vectors.hamming(ones, ones), InputError, "hamming"),
        (lambda: vectors.dot(ones[:0], ones[:0]), ShapeError, "at least one number"),
        (lambda: vectors.dot(np.ones((1, 1, 1), np.float32), ones), ShapeError, r"\[n, d\]"),
        (lambda: vectors.dot(["a"], ones), InputError, "rows of numbers of one length"),
        (lambda: vectors.dot(np.ones(65537, np.float32), np.ones(65537, np.float32)), InputError, "65,536"),
        (lambda: vectors.dot(ones, ones, threads=0), InputError, "threads"),
        (lambda: vectors.dot(ones, ones, dtype="f64"), InputError, "dtype"),
        (lambda: vectors.normalise(zeros), InputError, "row 0 has a norm of zero"),
        (lambda: vectors.normalise(ones * np.nan), InputError, "row 0 holds NaN"),
    ],
)
def test_what_has_no_answer_is_an_error_that_says_why(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_normalise_gives_unit_rows(level):
    rng = np.random.default_rng(7)
    for dim in DIMS:
        x = rng.standard_normal((9, dim), np.float32) * 3
        unit = vectors.normalise(x)
        want = x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
        assert np.abs(unit - want).max() < 3e-7 and vectors.is_unit(unit) and not vectors.is_unit(x * 2)
        assert np.array_equal(vectors.normalise(x[3]), unit[3])
        assert vectors.normalise(x, out=x) is not None and np.array_equal(x, unit)
    assert abs(vectors.norms([3.0, 4.0]) - 5) < 1e-6


@pytest.mark.parametrize("scale", [1e-25, 1e-18, 1e19, 1e30])
def test_cosine_of_what_float32_cannot_square_is_an_error_and_normalise_helps(scale: float) -> None:
    rng = np.random.default_rng(5)
    near, far = rng.normal(size=(2, 384)).astype(np.float32)
    odd = (near * np.float64(scale)).astype(np.float32)
    for call in (
        lambda: vectors.cosine(odd, far),
        lambda: vectors.cosine(far, odd),
        lambda: vectors.cosine(far, np.stack([near, odd])),
        lambda: vectors.top_k(far, np.stack([near, odd]), 1),
        lambda: vectors.top_k(odd, np.stack([near, far]), 1),
    ):
        with pytest.raises(InputError, match="too large or too small for float32"):
            call()
    unit = vectors.normalise(odd)
    assert abs(np.linalg.norm(unit.astype(np.float64)) - 1) < 1e-6
    assert np.allclose(unit, near / np.linalg.norm(near), atol=1e-6)


def test_norms_that_are_given_must_be_norms() -> None:
    rows = np.float32([[4, -3], [3, 4]])
    with pytest.raises(InputError, match="row 0 has a norm of zero"):
        vectors.top_k(np.float32([3, 4]), rows, 2, norms=np.zeros(2))
    assert vectors.top_k(np.float32([3, 4]), rows, 1, norms=[5, 5]).rows.tolist() == [1]
    for wrong in (1.5, "3", True, 0):
        with pytest.raises(InputError, match="k must be"):
            vectors.top_k(np.float32([3, 4]), rows, wrong)  # type: ignore[arg-type]
    for wrong in ("2", 0, 100_000):
        with pytest.raises(InputError, match="threads must be"):
            vectors.top_k(np.float32([3, 4]), rows, 1, threads=wrong)  # type: ignore[arg-type]


def test_a_child_of_a_busy_process_has_its_own_turn() -> None:
    """A fork while another thread has the pool's lock: nobody in the child would ever give it back."""
    code = """
import os, threading, time
import numpy as np
from weft import vectors
rows = np.random.default_rng(0).normal(size=(20000, 64)).astype(np.float32)
stop = threading.Event()
def search():
    while not stop.is_set():
        vectors.top_k(rows[0], rows, 3, threads=2)
busy = threading.Thread(target=search)
busy.start()
time.sleep(0.2)
for _ in range(5):
    child = os.fork()
    if child == 0:
        found = vectors.top_k(rows[7], rows, 1, threads=2).rows[0]
        os._exit(0 if found == 7 else 1)
    for _ in range(2000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        status = 9
    if status:
        break
stop.set()
busy.join()
print("right" if status == 0 else f"the child ended with {status}")
"""
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert found.stdout.strip() == "right", found.stderr


@pytest.mark.parametrize("given", [None, [None, 1.0], ["1", "2"], "ab", {"a": 1.0}, [1j, 2.0]])
def test_what_is_no_number_is_named_and_never_read_as_one(given):
    with pytest.raises(InputError, match=r"rows of numbers of one length: .* is (NoneType|str|dict|complex)"):
        vectors.cosine(given, [1.0, 2.0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("given", [[1e300, 1.0], np.array([1e300, 1.0]), [10**400, 1]])
def test_what_float32_does_not_hold_is_an_error_and_no_warning(given):
    with pytest.raises(InputError, match=r"larger than 3\.4e38"):
        vectors.cosine(given, [1.0, 2.0])


def test_codes_where_vectors_are_wanted_are_told_what_to_do_with():
    codes = vectors.quantise(np.eye(4, dtype=np.float32), "int8")
    with pytest.raises(InputError, match=r"codes cannot be used .*top_k.* x\.dequantise\(\)"):
        vectors.cosine([1.0, 0.0, 0.0, 0.0], codes)


def test_whole_numbers_in_an_array_are_told_how_they_become_vectors():
    with pytest.raises(InputError, match=r"got 'int64'.*x\.astype\('float32'\)"):
        vectors.dot(np.array([1, 2]), np.array([1, 2]))
