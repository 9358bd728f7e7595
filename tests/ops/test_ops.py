"""Every op on every backend agrees with its reference. New ops and new backends are covered by being there."""

import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from weft.backends import backends_present
from weft.graph.single import single
from weft.ops.registry import Op, catalogue, missing_parts
from weft.ops.spec import spec_of
from weft.ops.state import KvArray, SlotArray
from weft.ops.tolerance import relative_error


def samples_of(op: Op) -> list[tuple[tuple, dict]]:
    return list(op.samples_from(np.random.default_rng(zlib.crc32(op.name.encode()))))


def cases() -> Iterator[object]:
    for op in catalogue().values():
        for index, (operands, attrs) in enumerate(samples_of(op)):
            shape = "x".join(map(str, spec_of(operands[0]).shape))
            yield pytest.param(op, operands, attrs, id=f"{op.name}-{index}-{shape}")


def copied(operands: tuple) -> tuple:
    """The operands with states of their own, since ops write into them; views stay views."""
    return tuple(value.copy() if isinstance(value, (KvArray, SlotArray)) else value for value in operands)


def as_tuple(results: object) -> tuple:
    return () if results is None else results if isinstance(results, tuple) else (results,)


def explain(op: Op, backend: object, error: float, limit: float) -> str:
    return (
        f"{op.name} on {backend}: relative error {error:.3g} is over {limit:.3g} ({op.because}); if that is the price "
        f"of the method, say so: {op.name}.tolerance(f32={error * 2:.1g}, because=...)"
    )


@pytest.mark.parametrize("backend", backends_present(), ids=repr)
@pytest.mark.parametrize("op, operands, attrs", list(cases()))
def test_agrees_with_reference(op, operands, attrs, backend):
    types = [spec_of(value).dtype for value in operands if value is not None]
    if not backend.supports(op.name, types):
        pytest.skip(f"{backend} has no {op.name} for {', '.join(map(str, types))}")
    expected = copied(operands)
    want = as_tuple(op(*expected, **attrs))
    bound = single(op, copied(operands), attrs)
    states = {name: backend.state_from(state) for name, state in bound.states.items()}
    got = backend.compile(bound.program, bound.weights, states).run(bound.inputs)
    errors = [relative_error(got[f"out{index}"], result) for index, result in enumerate(want)]
    for name, state in states.items():
        before = next(value for operand, value in zip(op.operands, expected) if operand.name == name)
        if not isinstance(before, (KvArray, SlotArray)):  # a table, which no op writes
            continue
        for kept, wanted in zip(backend.state_to_array(state).arrays, before.arrays):
            errors.append(relative_error(kept.reshape(wanted.shape), wanted))
    limit = op.tolerance_for(operands)
    assert max(errors) <= limit, explain(op, backend, max(errors), limit)


@pytest.mark.parametrize("op", catalogue().values(), ids=repr)
def test_has_all_six_parts(op):
    assert missing_parts(op) == []
    assert "->" in op.__doc__ or op.effect, f"{op.name}'s first sentence must say its shapes"


@pytest.mark.parametrize("op", catalogue().values(), ids=repr)
def test_samples_cover_the_corners(op):
    """Length 1, a view that is not contiguous, and a wide dynamic range, wherever the op takes floats."""
    firsts = [operands[0] for operands, _ in samples_of(op)]
    assert any(min(spec_of(x).shape) == 1 for x in firsts)
    arrays = [value for operands, _ in samples_of(op) for value in operands if isinstance(value, np.ndarray)]
    floats = [array for array in arrays if array.dtype.kind == "f" and array.size > 8]
    states = [value.value for operands, _ in samples_of(op) for value in operands if isinstance(value, KvArray)]
    if op.name in ("matmul_q", "matmul_bf16", "matmul_i8", "group"):  # their rows are packed, or integers
        return
    assert any(not array.flags.c_contiguous for array in floats)
    sizes = [np.abs(array[array != 0]).astype(np.float64) for array in floats + states if array.any()]
    assert max(size.max() / size.min() for size in sizes) > 1e6


@pytest.mark.parametrize("op", [op for op in catalogue().values() if op.decomposition], ids=repr)
def test_decomposition_means_the_same(op):
    for operands, attrs in samples_of(op):
        widened = [x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in operands]
        got, want = as_tuple(op.decomposition(*widened, **attrs)), as_tuple(op(*widened, **attrs))
        assert max(map(relative_error, got, want)) < 1e-14


# Ops that only copy, or whose result is specified to the bit, have no arithmetic to be judged.
EXACT = ("embedding", "take_rows", "reshape", "quantise_rows", "matmul_q", "round_rows", "matmul_bf16", "kv_write")
EXACT += ("group", "quantise_tokens", "matmul_i8", "rms_norm_a8", "add_rms_norm_a8", "gated_a8")
ARITHMETIC = [op for op in catalogue().values() if op.name not in EXACT]


@pytest.mark.parametrize("op", [op for op in ARITHMETIC if op.name != "matmul"], ids=repr)
def test_plain_float32_arithmetic_meets_the_tolerance(op):
    for operands, attrs in samples_of(op):
        narrow = op.reference(*operands, **op.bind(operands, attrs)[1])  # operands stay float32: nobody widens them
        errors = list(map(relative_error, as_tuple(narrow), as_tuple(op(*operands, **attrs))))
        assert max(errors) <= op.tolerance_for(operands), f"{op.name} {attrs}: {errors}"


def test_a_float32_chain_meets_the_tolerance_of_matmul():
    rng = np.random.default_rng(3)
    x, weight = (rng.standard_normal((n, 4096)).astype(np.float32) for n in (5, 17))
    chain = np.zeros((5, 17), np.float32)
    for k in range(4096):
        chain += x[:, k, None] * weight[None, :, k]
    matmul = catalogue()["matmul"]
    assert 1e-7 < relative_error(chain, matmul(x, weight)) <= matmul.tolerance_for((x, weight))


# Ops that round to bfloat16 or halves inside cannot tell finer roundings of their operands.
COARSE = ("attention_bf16", "attention_half", "attention_paged_bf16", "matmul_half")
COARSE += ("matmul_narrow", "matmul_back_narrow", "head_loss_narrow", "head_distill_narrow")


@pytest.mark.parametrize("op", [op for op in ARITHMETIC if op.name not in COARSE], ids=repr)
def test_half_precision_operands_would_be_noticed(op):
    operands, attrs = samples_of(op)[2]
    half = [x.astype("f2").astype("f4") if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in operands]
    errors = map(relative_error, as_tuple(op(*half, **attrs)), as_tuple(op(*operands, **attrs)))
    assert max(errors) > op.tolerance_for(operands)
