"""Every op's back, run as a program in float64, is its vjp."""

import zlib

import numpy as np
import pytest

from weft.backends import backends_present
from weft.backends.reference import ReferenceBackend
from weft.graph.trace import Trace
from weft.ops.packed import Packed
from weft.ops.registry import catalogue
from weft.ops.spec import spec_of
from weft.ops.state import AdapterArray, KvArray, SlotArray

WITH_GRADIENT = [op for op in catalogue().values() if op.gradient]
# Operands with a gradient in vjp alone, beside weights: what is added or multiplied row by row and what shapes a
# recurrent layer are weights in every model.
FROZEN = {
    ("add", "y"),
    ("mul", "y"),
    ("causal_conv", "bias"),
    ("mamba2", "decay"),
    ("mamba2", "skip"),
    ("product", "weight"),
}


def test_every_vjp_has_a_back():
    assert [op.name for op in WITH_GRADIENT if op.backward is None] == []


@pytest.mark.parametrize("backend", [one for one in backends_present() if one.name != "reference"], ids=repr)
def test_every_op_of_gradients_has_a_kernel(backend):
    """So that none of them is skipped where kernels are held to their tolerances (test_ops.py)."""
    made = [op for op in catalogue().values() if not op.gradient and "second derivative" in op.gradient_refused]
    assert len(made) >= 20
    for op in made:
        samples = op.samples_from(np.random.default_rng(zlib.crc32(op.name.encode())))
        types = [[spec_of(value).dtype for value in operands if value is not None] for operands, _ in samples]
        assert any(backend.supports(op.name, each) for each in types), op.name


@pytest.mark.parametrize("op", WITH_GRADIENT, ids=repr)
def test_back_is_the_vjp(op):
    rng = np.random.default_rng(11)
    compared = 0
    for operands, attrs in op.samples_from(np.random.default_rng(zlib.crc32(op.name.encode()))):
        operands, attrs = op.bind(operands, attrs)
        if any(isinstance(value, (KvArray, SlotArray, AdapterArray)) for value in operands):
            continue
        results = op.infer([None if value is None else spec_of(value) for value in operands], attrs)
        grads = [rng.standard_normal(spec.shape) for spec in results]
        wanted = op.gradient(grads if len(grads) > 1 else grads[0], *map(_wide, operands), **attrs)
        if op.name == "embedding":  # ids have no gradient, and tables are frozen
            assert op.backward(None, None, None) == (None, None)
            return
        found = back(op, grads, operands, attrs)
        for number, (operand, got, want) in enumerate(zip(op.operands, found, wanted)):
            frozen = operand.role == "weight" or (op.name, operand.name) in FROZEN
            assert got is not None or want is None or frozen, (op.name, operand.name)
            if got is not None:
                compared += 1
                assert np.abs(got - want).max() <= 1e-12 * (np.abs(want).max() + 1e-300), (op.name, number, attrs)
    assert compared


def back(op, grads, operands, attrs):
    """The gradients of the operands that `back` makes; None where it makes none."""
    weights, inputs = {}, {}
    with Trace("back") as trace:
        tensors = []
        for number, (operand, value) in enumerate(zip(op.operands, operands)):
            if value is None:
                tensors.append(None)
                continue
            name, spec = f"in{number}", spec_of(value)
            if operand.role == "weight":
                weights[name] = value
                tensors.append(trace.weight(name, spec.shape, spec.dtype))
            else:
                inputs[name] = value
                tensors.append(trace.input(name, spec.shape, spec.dtype))
        seeds = []
        for number, grad in enumerate(grads):
            inputs[f"grad{number}"] = grad
            seeds.append(trace.input(f"grad{number}", grad.shape))
        found = op.backward(tuple(seeds) if len(seeds) > 1 else seeds[0], *tensors, **attrs)
        made = [number for number, tensor in enumerate(found) if tensor is not None]
        for number in made:
            trace.output(f"out{number}", found[number])
    run = ReferenceBackend().compile(trace.program(), weights, {}).run(inputs)
    return [run[f"out{number}"] if number in made else None for number in range(len(found))]


def _wide(value):
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(np.float64)
    return value


def test_packed_weights_are_frozen_in_back_too():
    op = catalogue()["matmul"]
    samples = op.samples_from(np.random.default_rng(0))
    operands, attrs = next((o, a) for o, a in samples if isinstance(o[1], Packed))
    operands, attrs = op.bind(operands, attrs)
    rows, columns = operands[0].shape[0], operands[1].shape[0]
    to_x, to_weight, to_bias, _ = back(op, [np.ones((rows, columns))], operands, attrs)
    assert to_x.shape == operands[0].shape and to_weight is None and to_bias is None
