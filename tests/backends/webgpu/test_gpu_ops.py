"""Every op that has a shader agrees with its float64 reference; products have the same bits in every batch."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from gpus import ALL, agree, errors_of, webgpu_only

from weft.backends.webgpu.launch import KERNELS, MANY, STORED
from weft.backends.webgpu.products import LARGE, PLAIN, ROW, SMALL
from weft.backends.webgpu.weights import ALIGNED, ROWS, upload
from weft.dtype import DTYPES
from weft.graph.single import single
from weft.ops.registry import catalogue
from weft.ops.samples import weight as blocks
from weft.ops.spec import spec_of

FEW = 3  # samples of each op in `make test`: a software device takes a second to compile a shader


def samples_of(name):
    op = catalogue()[name]
    found = list(op.samples_from(np.random.default_rng(zlib.crc32(name.encode()))))
    return found if ALL else found[1 :: max(1, len(found) // FEW)][:FEW]


@pytest.mark.parametrize("name", sorted([*KERNELS, "reshape"]))
def test_an_op_agrees_with_its_reference(gpu, name):
    op, ran = catalogue()[name], 0
    for operands, attrs in samples_of(name):
        types = [spec_of(value).dtype for value in operands if value is not None]
        if not gpu.supports(name, types):
            continue
        ran += 1
        errors = errors_of(gpu, op, operands, attrs)
        assert max(errors) <= op.tolerance_for(operands), (
            f"{name} {[str(spec_of(x)) for x in operands if x is not None]}"
        )
    assert ran


SHADERS = [replace(one, least=0, most=MANY) for one in (PLAIN, ROW, SMALL, LARGE)]


@webgpu_only
@pytest.mark.parametrize("kind", STORED if ALL else ["f16", "q4_k"])
def test_products_have_the_same_bits_in_every_shader_and_batch(gpu, kind, monkeypatch):
    rng = np.random.default_rng(5)
    depth = 200 if kind in ("f32", "f16", "bf16") else 1280
    x, weight = rng.standard_normal((67, depth)).astype("f4"), blocks(rng, kind, 70, depth)
    op, wholes = catalogue()["matmul"], []
    for product in SHADERS:
        monkeypatch.setattr(gpu.device, "products", (product,))
        found = []
        for first, end in ((0, 67), (5, 6), (40, 49)):
            bound = single(op, (x[first:end], weight, None), {})
            found.append((first, gpu.compile(bound.program, bound.weights, {}).run(bound.inputs)["out0"]))
        wholes.append(found[0][1])
        for first, rows in found:
            assert np.array_equal(rows, wholes[-1][first : first + len(rows)])
    plain, *others = wholes  # the others take turns on real devices: a batch decides which
    assert agree(gpu, others[0], plain)
    assert all(np.array_equal(one, others[0]) for one in others)


@pytest.mark.parametrize("kind", [kind for kind in STORED if DTYPES[kind].quantised])
def test_a_packed_weight_is_read_as_it_is_stored(gpu, kind):
    rng = np.random.default_rng(7)
    x, ids, weight = (
        rng.standard_normal((3, 512)).astype("f4"),
        np.array([0, 19, 7], np.int32),
        blocks(rng, kind, 20, 512),
    )
    stored = upload(gpu.device, weight, ROWS, "w")
    assert stored.stored == kind
    assert stored.nbytes < weight.data.nbytes + 20 * ALIGNED
    for name, operands in (("matmul", (x, weight, None)), ("embedding", (ids, weight))):
        op = catalogue()[name]
        assert max(errors_of(gpu, op, operands, {})) <= op.tolerance_for(operands)


def test_a_matrix_larger_than_a_binding_is_cut(gpu, monkeypatch):
    rng = np.random.default_rng(6)
    x, weight = rng.standard_normal((3, 64)).astype("f4"), rng.standard_normal((50, 64)).astype("f4")
    ids, bias = np.array([0, 49, 20, 33], np.int32), rng.standard_normal(50).astype("f4")
    matmul, embedding = catalogue()["matmul"], catalogue()["embedding"]

    def results():
        product, look_up = single(matmul, (x, weight, bias), {}), single(embedding, (ids, weight), {})
        return [gpu.compile(one.program, one.weights, {}).run(one.inputs)["out0"] for one in (product, look_up)]

    whole = results()
    monkeypatch.setitem(gpu.device.limits, "max-storage-buffer-binding-size", 16 * 256)  # 16 rows
    for cut, want in zip(results(), whole):
        assert np.array_equal(cut, want)
