"""The catalogue's machinery: signatures become interfaces, and misuse is an error that says what to do."""

import re
from pathlib import Path

import numpy as np
import pytest

from weft.errors import InputError, NotFoundError, ShapeError
from weft.ops import catalogue, matmul, quantise_rows, reshape, rms_norm, rope
from weft.ops.registry import ACTIVATIONS, NARROWS, POOL_MODES, Array, Cost, find, missing_parts, op
from weft.ops.spec import Spec, T, as_dtype, spec_of
from weft.ops.tolerance import DEFAULTS, relative_error

ROOT = Path(__file__).parents[2]
x = np.ones((3, 8), np.float32)


def test_the_words_are_those_of_the_kernels():
    header = (ROOT / "csrc" / "core" / "words.h").read_text()
    lists = dict(re.findall(r"const char\* k(\w+)\[\] = \{(.*?)\}", header, re.DOTALL))
    assert re.findall(r'"(\w+)"', lists["Activations"]) == list(ACTIVATIONS)
    assert re.findall(r'"(\w+)"', lists["PoolModes"]) == list(POOL_MODES)
    source = (ROOT / "csrc" / "core" / "program.cpp").read_text()
    assert re.findall(r'"(\w+)"', source.split("kNarrows[] = {")[1].split("}")[0]) == list(NARROWS)
    header = (ROOT / "csrc" / "kernels" / "narrow_blocks.h").read_text()
    assert header.split("enum class Narrow : int { ")[1].split(" }")[0].split(", ") == list(NARROWS)


def test_the_catalogue_is_the_table_of_the_design_page():
    page = (ROOT / "docs" / "design" / "core.md").read_text()
    table = page.split("## The ops")[1].split("\n\n`window`")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    named = {name: row for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert set(named) == set(catalogue())
    for name, row in named.items():
        words = set(re.findall(r"\w+", row[3].split(":")[0]))
        assert words == set(catalogue()[name].attributes), name


def test_the_signature_is_the_interface():
    assert [(o.name, o.role, o.optional) for o in matmul.operands] == [
        ("x", "array", False),
        ("weight", "weight", False),
        ("bias", "weight", True),
        ("starts", "integers", True),
    ]
    assert list(rope.attributes) == ["interleaved", "scale"]
    assert matmul.attributes["activation"].words == ACTIVATIONS


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: rms_norm(x, x[0]), "[rms_norm] eps is missing"),
        (lambda: rms_norm(x, eps=1e-5), "[rms_norm] weight is missing"),
        (lambda: rms_norm(x, x[0], x[0], eps=1e-5), "takes 2 operands"),
        (lambda: rms_norm(x, x[0], eps="1e-5"), "eps must be a finite number"),
        (lambda: rms_norm(x, x[0], eps=float("nan")), "eps must be a finite number"),
        (lambda: rms_norm(x, x[0], epsilon=1e-5), "no attribute is called epsilon; its attributes are eps"),
        (lambda: matmul(x, x, activation="swish"), "one of none, gelu"),
        (lambda: quantise_rows(x, block=True), "block must be an integer"),
        (lambda: reshape(x, shape=24), "shape must be a tuple of sizes"),
    ],
)
def test_misuse_is_an_input_error(call, complaint):
    with pytest.raises(InputError) as caught:
        call()
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rms_norm(x, x, eps=1e-5),
        lambda: matmul(x, x[:, :7]),
        lambda: matmul(x, x, x[0, :2]),
        lambda: matmul(x.astype(np.int32), x),
        lambda: matmul(x.astype(np.complex64), x),
        lambda: quantise_rows(x, block=32),
        lambda: reshape(x, shape=(5, 5)),
        lambda: rope(x[:, None], np.zeros(3, np.int64), x[0, :4]),
        lambda: rope(x[:, None], np.zeros(3, np.int32), x[0, :5]),
        lambda: matmul([1.0], x),
    ],
)
def test_operands_that_do_not_fit_are_a_shape_error(call):
    with pytest.raises(ShapeError, match=r"^\[\w+\] "):
        call()


def test_an_unknown_op_is_not_found():
    with pytest.raises(NotFoundError, match="no op is called 'conv'"):
        find("conv")


def test_an_incomplete_op_is_noticed():
    @op
    def half(x: Array, *, by: float) -> Array:
        return x * by

    assert missing_parts(half) == ["reference", "shape", "cost", "samples", "gradient", "tolerance"]
    half.shape(lambda x, by: x)
    half.no_gradient("because")
    assert missing_parts(half) == ["reference", "cost", "samples", "tolerance"]
    assert half(np.ones(3, np.float32), by=0.5).dtype == np.float32


def test_results_are_rounded_once_to_the_operands_type():
    for dtype in (np.float32, np.float64):
        assert rms_norm(x.astype(dtype), x[0].astype(dtype), eps=1e-5).dtype == dtype
    assert rms_norm.wide(x, x[0], eps=1e-5)[0].dtype == np.float64


def test_costs_count_the_work():
    weight = Spec((16, 8), as_dtype("f32"))
    assert matmul.cost_of(x, weight) == Cost(flops=2 * 3 * 16 * 8, bytes=4 * (3 * 8 + 16 * 8 + 3 * 16))
    assert matmul.cost_of(x, Spec((16, 8), as_dtype("f16"))).bytes == 4 * 3 * 8 + 2 * 16 * 8 + 4 * 3 * 16


def test_symbolic_sizes_go_through_shape_rules():
    specs = [Spec((T, 8)), Spec((16, 8)), None, None]
    assert matmul.infer(specs, {"activation": "none"}) == (Spec((T, 16)),)


def test_relative_error_is_one_number():
    want = np.array([3.0, 4.0])
    assert relative_error(want, want) == 0
    assert relative_error(np.array([3.05, 4.0]), want) == pytest.approx(0.01)
    assert relative_error(np.full(2, np.nan), want) == np.inf
    assert relative_error(want[:1], want) == np.inf
    assert relative_error(want * 1e300 * 10, want * 1e300) == pytest.approx(9)
    assert relative_error([np.inf, 1], [np.inf, 1]) == 0
    assert relative_error([-np.inf, 1], [np.inf, 1]) == np.inf


def test_every_tolerance_has_a_reason_and_none_is_sloppy():
    for one in catalogue().values():
        assert len(one.because) >= 12
        coarse = one.name in ("attention_bf16", "attention_half", "attention_paged_bf16", "matmul_half")
        coarse |= one.name.endswith("_narrow")
        assert one.tolerances["f32"] <= (2.0**-8 if coarse else 1e-5)
        assert set(one.tolerances) >= set(DEFAULTS)


def test_tolerance_follows_the_activations_not_the_weights():
    half = x.astype(np.float16)
    assert matmul.tolerance_for((x, half)) == matmul.tolerances["f32"]
    assert spec_of(half).dtype.name == "f16"


def test_a_shape_error_names_the_operand():
    with pytest.raises(ShapeError) as caught:
        matmul(x, x[:, :7])
    assert (caught.value.where, caught.value.field, caught.value.given) == ("matmul", "weight", spec_of(x[:, :7]))
    assert str(caught.value) == "[matmul] weight must be [N, 8] for x f32[3, 8]: got f32[3, 7]"
