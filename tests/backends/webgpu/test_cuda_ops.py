"""CUDA's kernels, thread after thread on a processor, against the float64 reference; the same bits in every batch.

With WEFT_TEST_GPU=1 on a machine with NVIDIA's driver and compiler the GPU runs them.
"""

import zlib

import numpy as np
import pytest
from emulated import emulated
from gpus import ALL, errors_of, ran

from weft.backends.webgpu.cuda import products
from weft.backends.webgpu.cuda.driver import CudaError, reason_against
from weft.backends.webgpu.cuda.translate import translated
from weft.backends.webgpu.launch import KERNELS, STORED
from weft.backends.webgpu.shader import Shader
from weft.dtype import rounded_bf16
from weft.errors import BackendError, MemoryPlanError
from weft.graph.single import single
from weft.ops.matmul import round_rows
from weft.ops.packed import wide
from weft.ops.registry import catalogue
from weft.ops.samples import normal, paged, segments
from weft.ops.samples import weight as blocks
from weft.ops.spec import spec_of
from weft.ops.tolerance import relative_error

FLOATS = ("f32", "f16", "bf16")


@pytest.fixture(scope="module")
def cuda():
    if ALL and not reason_against():
        from weft.backends.webgpu.cuda import CudaBackend

        return CudaBackend()
    return emulated()


def samples_of(name):
    """All on a GPU; on a processor, which takes a second to compile a kernel, the one in the middle."""
    found = list(catalogue()[name].samples_from(np.random.default_rng(zlib.crc32(name.encode()))))
    return found if ALL else found[len(found) // 2 :][:1]


@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"matmul", "attention_paged"}))
def test_an_op_agrees_with_its_reference(cuda, name):
    op = catalogue()[name]
    for operands, attrs in samples_of(name):
        types = [spec_of(value).dtype for value in operands if value is not None]
        if cuda.supports(name, types):
            assert max(errors_of(cuda, op, operands, attrs)) <= op.tolerance_for(operands)


@pytest.mark.parametrize("kind", STORED)
def test_rows_of_every_type_are_looked_up(cuda, kind):
    """By the shaders of WebGPU."""
    operands = np.array([3, 0, 16], np.int32), blocks(np.random.default_rng(3), kind, 17, 512)
    op = catalogue()["embedding"]
    assert max(errors_of(cuda, op, operands, {})) <= op.tolerance_for(operands)


@pytest.mark.parametrize("sizes", [(0, 3, 0, 1), (40, 1, 2, 0, 30)])
def test_rows_of_several_matrices_are_multiplied_by_the_shaders(cuda, sizes):
    rng, op = np.random.default_rng(1), catalogue()["matmul"]
    operands = (normal(rng, sum(sizes), 256), blocks(rng, "q4_k", len(sizes), 17, 256), None, segments(list(sizes)))
    assert max(errors_of(cuda, op, operands, {})) <= op.tolerance_for(operands)


@pytest.mark.parametrize("kind", STORED)
def test_products_have_the_same_bits_in_every_batch(cuda, kind):
    """One row, a few, more and many: four kernels, on matrix units."""
    rng = np.random.default_rng(5)
    depth = 264 if kind in FLOATS else 512
    x, weight = normal(rng, 70, depth), blocks(rng, kind, 19, depth)
    x[3] *= 1e6
    x[20, 256:] *= 1e6
    op, bias = catalogue()["matmul"], normal(rng, 19)

    def rows(first, end):
        bound = single(op, (x[first:end], weight, bias), {"activation": "silu"})
        return cuda.compile(bound.program, bound.weights, {}).run(bound.inputs)["out0"]

    whole = rows(0, 70)
    want = op(x, weight, bias, activation="silu")
    assert relative_error(whole, want) <= op.tolerance_for((x, weight, bias))
    for first, end in ((0, 1), (3, 4), (5, 9), (20, 40), (10, 60)):
        assert np.array_equal(rows(first, end), whole[first:end]), (first, end)


@pytest.mark.parametrize("kind, columns", [("f16", 75), ("q8_0", 96), ("q4_k", 64)])
def test_a_workgroup_may_take_several_eights_of_columns(cuda, monkeypatch, kind, columns):
    """As it does where a vocabulary is multiplied: with the same bits."""
    rng = np.random.default_rng(4)
    op = catalogue()["matmul"]
    operands = normal(rng, 1, 512), blocks(rng, kind, columns, 512), normal(rng, columns)
    _, _, wanted = ran(cuda, op, operands, {})
    monkeypatch.setattr(products, "MANY_COLUMNS", 64)
    _, _, found = ran(cuda, op, operands, {})
    assert np.array_equal(found["out0"], wanted["out0"])
    assert max(errors_of(cuda, op, operands, {})) <= op.tolerance_for(operands)


@pytest.mark.parametrize("size", [1e-10, 1e6])
def test_floats_that_two_halves_do_not_have_are_multiplied_in_f32(cuda, size):
    """As a regression on numbers of another unit has them."""
    rng, op = np.random.default_rng(11), catalogue()["matmul"]
    x, weight = normal(rng, 60, 40), normal(rng, 19, 40) * np.float32(size)
    whole = ran(cuda, op, (x, weight, None), {})[2]["out0"]
    assert relative_error(whole, op(x, weight, None)) <= op.tolerance_for((x, weight))
    assert np.array_equal(ran(cuda, op, (x[:1], weight, None), {})[2]["out0"], whole[:1])


@pytest.mark.parametrize("kind", FLOATS)
def test_parts_of_a_long_row_fit_into_a_groups_memory(cuda, kind):
    rng, op = np.random.default_rng(4), catalogue()["matmul"]
    operands = normal(rng, 1, 8960), blocks(rng, kind, 3, 8960), None
    assert max(errors_of(cuda, op, operands, {})) <= op.tolerance_for(operands)


@pytest.mark.parametrize("op, kind", [("matmul_half", "f16"), ("matmul_bf16", "bf16")])
def test_products_of_16_bits_have_the_same_bits_in_every_batch(cuda, monkeypatch, op, kind):
    """Rounded rows, one product for each: one row, a few, and tiles of two shapes."""
    rng, op = np.random.default_rng(7), catalogue()[op]
    x, weight, bias = normal(rng, 131, 288), blocks(rng, kind, 34, 288), normal(rng, 34)
    x[3] *= 1e6
    rounded = {"rounded": True} if kind == "bf16" else {}

    def rows(first, end, **attrs):
        given = round_rows(x[first:end]) if kind == "bf16" else x[first:end]
        bound = single(op, (given, weight, bias), {"activation": "gelu", **attrs})
        return wide(cuda.compile(bound.program, bound.weights, {}).run(bound.inputs)["out0"])

    whole = rows(0, 131)
    given = round_rows(x) if kind == "bf16" else x
    assert relative_error(whole, op(given, weight, bias, activation="gelu")) <= op.tolerance_for((given, weight))
    narrow = rows(0, 131, **rounded)
    assert kind != "bf16" or np.array_equal(narrow, rounded_bf16(whole))
    for first, end in ((3, 4), (5, 9), (20, 40), (40, 95)):
        assert np.array_equal(rows(first, end), whole[first:end]), (first, end)
        assert np.array_equal(rows(first, end, **rounded), narrow[first:end]), (first, end)
    monkeypatch.setitem(products.TILES, "single", products.Tile(4, 2, 4, chunks=2, ahead=2))
    assert np.array_equal(rows(0, 131), whole)
    assert np.array_equal(rows(0, 131, **rounded), narrow)


def test_what_has_no_kernel_in_16_bits_says_what_to_use(cuda):
    rng, op = np.random.default_rng(8), catalogue()["matmul_bf16"]
    matrices, starts = blocks(rng, "bf16", 2, 4, 32), segments([1, 2])
    bound = single(op, (round_rows(normal(rng, 3, 32)), matrices, None, starts), {})
    with pytest.raises(BackendError, match="mixtures"):
        cuda.compile(bound.program, bound.weights, {})
    bound = single(catalogue()["round_rows"], (normal(rng, 3, 32),), {"split": True})
    with pytest.raises(BackendError, match="bf16x3"):
        cuda.compile(bound.program, bound.weights, {})


def test_pages_in_bf16_are_read_as_in_f32(cuda):
    """Which is more exact than the op is defined, so that its reference is not what to compare with."""
    for operands, attrs in samples_of("attention_paged_bf16"):
        if cuda.supports("attention_paged", [spec_of(value).dtype for value in operands if value is not None]):
            op = catalogue()["attention_paged"]
            rounded, plain = (
                ran(cuda, catalogue()[name], operands, attrs)[2]["out0"] for name in ("attention_paged_bf16", op.name)
            )
            assert np.array_equal(rounded, plain)
            assert max(errors_of(cuda, op, operands, attrs)) <= op.tolerance_for(operands)


@pytest.mark.parametrize("name", ["round_rows", "attention_bf16"])
def test_an_op_of_16_bits_agrees_with_its_reference(cuda, name):
    op = catalogue()[name]
    for operands, attrs in samples_of(name):
        types = [spec_of(value).dtype for value in operands if value is not None]
        if cuda.supports(name, types) and not attrs.get("split"):
            assert max(errors_of(cuda, op, operands, attrs)) <= op.tolerance_for(operands)


@pytest.mark.parametrize("causal, window", [(False, 0), (True, 0), (False, 20)])
def test_attention_of_a_sequence_does_not_depend_on_the_others(cuda, causal, window):
    rng, op = np.random.default_rng(9), catalogue()["attention"]
    lengths = [3, 70, 16, 1, 33]
    q, k, v = (normal(rng, sum(lengths), heads, 64) for heads in (4, 2, 2))
    attrs = {"causal": causal, "window": window, "scale": 0.125}

    def result(first, sizes):
        here = slice(first, first + sum(sizes))
        bound = single(op, (q[here], k[here], v[here], segments(sizes)), attrs)
        return cuda.compile(bound.program, {}, {}).run(bound.inputs)["out0"]

    whole = result(0, lengths)
    assert relative_error(whole, op(q, k, v, segments(lengths), **attrs)) <= op.tolerance_for((q, k, v))
    for index, size in enumerate(lengths):
        first = sum(lengths[:index])
        assert np.array_equal(result(first, [size]), whole[first : first + size])


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("shape", [(4, 2, 4, 1, 3), (2, 1, 2, 2, 1)])
def test_tiles_of_every_shape_have_the_same_bits(cuda, monkeypatch, kind, shape):
    rng, op = np.random.default_rng(6), catalogue()["matmul"]
    x, weight = normal(rng, 131, 296), blocks(rng, kind, 133, 296)

    def rows(first):
        bound = single(op, (x[first:], weight, None), {})
        return cuda.compile(bound.program, bound.weights, {}).run(bound.inputs)["out0"]

    found = rows(0)
    assert relative_error(found, op(x, weight, None)) <= op.tolerance_for((x, weight, None))
    assert np.array_equal(rows(130), found[130:])
    monkeypatch.setitem(products.TILES, kind, products.Tile(*shape))
    assert np.array_equal(rows(0), found)


@pytest.mark.parametrize("window, kind", [(0, "f16"), (70, "f16"), (0, "i8r"), (70, "i4r")])
@pytest.mark.parametrize("starts, lengths", [([3, 0, 40], [9, 5, 1]), ([200], [1])])
def test_attention_has_the_same_bits_split_and_whole(cuda, monkeypatch, starts, lengths, window, kind):
    op, rng = catalogue()["attention_paged"], np.random.default_rng(1)
    state, *table = paged(rng, starts, lengths, 2, 32, kind)
    operands, attrs = (normal(rng, sum(lengths), 4, 32), state, *table), {"scale": 32**-0.5, "window": window}
    found = []
    for busy in (0, 512):  # queries from which on it is not split
        monkeypatch.setattr(type(cuda.device), "busy", busy)
        assert max(errors_of(cuda, op, operands, attrs)) <= op.tolerance_for(operands)
        bound = single(op, operands, attrs)
        states = {key: cuda.state_from(one) for key, one in bound.states.items()}
        found.append(cuda.compile(bound.program, bound.weights, states).run(bound.inputs)["out0"])
    assert np.array_equal(*found)


@pytest.mark.parametrize("kind", ["i8r", "i4r"])
@pytest.mark.parametrize("dim", [20, 64, 96])
def test_rotated_rows_are_written_as_on_a_processor(cuda, kind, dim):
    rng, op = np.random.default_rng(4), catalogue()["kv_write"]
    state, *table = paged(rng, [3, 0, 40], [9, 5, 1], 2, dim, kind)
    k, v = normal(rng, 15, 2, dim), normal(rng, 15, 2, dim)
    k[3, 1], v[4, 0, 5] = 0.0, np.inf
    want = state.copy()
    op(k, v, want, *table)
    bound = single(op, (k, v, state, *table), {})
    states = {key: cuda.state_from(one) for key, one in bound.states.items()}
    cuda.compile(bound.program, bound.weights, states).run(bound.inputs)
    (written,) = (cuda.state_to_array(one) for one in states.values())
    for found, wanted in zip(written.arrays, want.arrays):
        assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("row", [[-3.5, -0.25, -7.0], [0.0, -0.0, -1.0], [1e-40, 5.0, 5.0], [-1e38, -2e38, -3e38]])
def test_the_largest_of_one_row_is_numpys(cuda, row):
    numbers = np.array([row], np.float32)
    bound = single(catalogue()["scale"], (numbers,), {"by": 1.0})
    executable = cuda.compile(bound.program, bound.weights, {})
    found = executable.run_top(bound.inputs, "out0", 1)
    assert (found.ids.tolist(), found.values.tolist()) == ([[int(numbers.argmax())]], [[numbers.max()]])
    none = executable.run_top(bound.inputs, "out0", 1, [np.zeros(1, np.uint32)])
    assert none.values.tolist() == [[-np.inf]]


def test_what_is_asked_beside_the_largest_of_a_row(cuda):
    rng = np.random.default_rng(4)
    rows = rng.normal(0, 3, (2, 1500)).astype(np.float32)
    bound = single(catalogue()["scale"], (rows,), {"by": 1.0})
    aside = [np.array([7, int(rows[0].argmax())]), np.array([3])]
    executable = cuda.compile(bound.program, bound.weights, {})
    found = executable.run_top(bound.inputs, "out0", 64, None, aside, [1.0, 0.5])
    for place, (row, given, temperature) in enumerate(zip(rows, aside, (1.0, 0.5))):
        assert np.array_equal(found.values[place, 64 : 64 + len(given)], row[given])
        others = np.delete(row, given).astype(np.float64)
        assert found.values[place, 0] == others.max()
        largest, sums = found.masses[place].T.astype(np.float64)
        wanted = np.exp((others - others.max()) / temperature).sum()
        assert sums @ np.exp((largest - others.max()) / temperature) == pytest.approx(wanted, rel=1e-5)
        assert np.array_equal(found[place : place + 1].whole(), row)


def test_a_matrix_of_long_rows_is_split_by_a_kernel_of_its_own(cuda):
    rng = np.random.default_rng(2)
    operands = normal(rng, 1, 10_300), blocks(rng, "f16", 3, 10_300), None
    op = catalogue()["matmul"]
    assert max(errors_of(cuda, op, operands, {})) <= op.tolerance_for(operands)


def test_a_lost_gpu_fails_with_a_typed_error_and_computes_nothing_more():
    backend = emulated()
    op = catalogue()["scale"]
    bound = single(op, (np.ones((2, 3), np.float32),), {"by": 2.0})
    made = backend.compile(bound.program, bound.weights, {})
    backend.device.driver.fail = CudaError("cuLaunchKernel", 719, "unspecified launch failure")
    with pytest.raises(BackendError, match="was lost"):
        made.run(bound.inputs)
    with pytest.raises(BackendError, match="was lost"):
        made.run(bound.inputs)
    assert "719" in backend.info["lost"]


def test_a_gpu_without_memory_says_so():
    backend = emulated()
    backend.device.driver.fail = CudaError("cuLaunchKernel", 2, "out of memory")
    bound = single(catalogue()["scale"], (np.ones((2, 3), np.float32),), {"by": 2.0})
    made = backend.compile(bound.program, bound.weights, {})
    with pytest.raises(MemoryPlanError, match="no memory left"):
        made.run(bound.inputs)
    assert not backend.device.lost
    assert made.run(bound.inputs)["out0"].tolist() == [[2, 2, 2], [2, 2, 2]]


def test_declarations_of_wgsl_become_those_of_c():
    text = """struct Params {
  x: u32,
}
@group(0) @binding(0) var<storage, read_write> arena: array<u32>;
const EIGHT = 8u;
var<workgroup> few: array<f32, EIGHT>;
fn twice(a: f32, b: u32) -> f32 { let c = 2.0; return c * max(a, f32(b)); }
@compute @workgroup_size(EIGHT)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  var kept: array<f32, 2>;
  few[lane] = twice(1e-3, at.x);
}
"""
    made = translated(Shader("shown", text, (("x", "u32"),), ()))
    assert made.threads == 8
    for wanted in (
        "CONST auto EIGHT = 8u;",
        "__shared__ array<f32, EIGHT> few;",
        "FN f32 twice(f32 a, u32 b) { const auto c = 2.0f; return c * w_max(a, f32(b)); }",
        "array<f32, 2> kept{};",
        "twice(1e-3f, at.x)",
    ):
        assert wanted in made.text
