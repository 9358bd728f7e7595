"""Every op's vjp is the derivative of its reference, by central differences in float64."""

import zlib

import numpy as np
import pytest

from weft.ops.packed import Packed
from weft.ops.registry import catalogue

WITH_GRADIENT = [op for op in catalogue().values() if op.gradient]
STEP = 1e-6


def floating(value) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def small_samples(op):
    for operands, attrs in op.samples_from(np.random.default_rng(zlib.crc32(op.name.encode()))):
        if not any(isinstance(value, Packed) for value in operands) and operands[0].size < 20_000:
            yield [value.astype(np.float64) if floating(value) else value for value in operands], attrs


@pytest.mark.parametrize("op", WITH_GRADIENT, ids=repr)
def test_vjp_is_the_derivative(op):
    rng = np.random.default_rng(7)
    for operands, attrs in small_samples(op):
        operands, attrs = op.bind(operands, attrs)
        constant = [name.name in ("inv_freq", "buckets") for name in op.operands]  # differentiated by nobody
        # Directions in proportion to the operand, so that one step suits every magnitude.
        along = [
            value * rng.standard_normal(value.shape) if floating(value) and not fixed else None
            for value, fixed in zip(operands, constant)
        ]

        def at(step, operands=operands, along=along, attrs=attrs):
            moved = [v if d is None else v + step * d for v, d in zip(operands, along)]
            return op.wide(*moved, **attrs)

        results = at(0.0)
        grads = tuple(rng.standard_normal(result.shape) / (np.abs(result).max() + 1e-30) for result in results)
        slopes = [(ahead - behind) / (2 * STEP) for ahead, behind in zip(at(STEP), at(-STEP))]
        numeric = sum(float(np.sum(g * s)) for g, s in zip(grads, slopes))
        size = sum(float(np.sum(np.abs(g * s))) for g, s in zip(grads, slopes)) + 1e-12
        found = op.gradient(grads if len(grads) > 1 else grads[0], *operands, **attrs)
        assert len(found) == len(operands)
        for value, direction, gradient in zip(operands, along, found):
            assert (gradient is None) == (direction is None), "floating operands have a gradient, others none"
            assert gradient is None or gradient.shape == value.shape
        analytic = sum(float(np.sum(g * d)) for g, d in zip(found, along) if d is not None)
        assert abs(numeric - analytic) <= 1e-5 * size, (op.name, attrs, numeric, analytic)


def test_packed_weights_are_frozen():
    op = catalogue()["matmul"]
    samples = op.samples_from(np.random.default_rng(0))
    operands, attrs = next((o, a) for o, a in samples if isinstance(o[1], Packed))
    x, weight = operands[0].astype(np.float64), operands[1]
    to_x, to_weight, *_ = op.gradient(np.ones((len(x), weight.shape[0])), x, weight, None, **attrs)
    assert to_weight is None
    assert to_x.shape == x.shape


@pytest.mark.parametrize("op", [op for op in catalogue().values() if not op.gradient], ids=repr)
def test_an_op_without_a_gradient_says_why(op):
    assert len(op.gradient_refused) > 20
