"""Every pass leaves what a program computes as it was, and does what it is for."""

import zlib
from collections import Counter

import numpy as np
import pytest
from toy_model import Toy, step

from weft.backends.reference import ReferenceBackend
from weft.errors import InputError
from weft.graph import Program, T, Trace
from weft.graph.passes import (
    dead_code,
    decompose,
    fold_activation,
    fold_bias,
    fuse_norm,
    fuse_rows,
    lower_int8,
    optimise,
)
from weft.graph.plan import plan
from weft.graph.verify import verify
from weft.ops import (
    activate,
    add,
    embedding,
    gated,
    layer_norm,
    matmul,
    mul,
    rms_norm,
    round_rows,
    scale,
)
from weft.ops.samples import weight
from weft.ops.tolerance import relative_error


class Net:
    """A trace with shorthands, for programs of a few lines."""

    def __init__(self) -> None:
        self.trace = Trace("net")
        self.x = self.trace.input("x", (T, 32))
        self.bias, self.norm = self.trace.weight("bias", (32,)), self.trace.weight("norm", (32,))

    def linear(self, x, name="w", dtype="f32"):
        return matmul(x, self.trace.weight(name, (32, 32), dtype))

    def done(self, **outputs) -> Program:
        for name, tensor in outputs.items():
            self.trace.output(name, tensor)
        return self.trace.program()


def ops_of(program: Program) -> Counter:
    return Counter(instr.op for instr in program.body)


def run(program: Program, split: bool = False, **inputs: np.ndarray) -> dict:
    def made(value):  # by name, so that a weight is the same before and after a pass
        rng = np.random.default_rng(zlib.crc32(value.name.encode()))
        if split:  # rounded values and rests of what is half as wide
            return round_rows(weight(rng, "f32", value.shape[0], value.shape[1] // 2), split=True)
        return weight(rng, value.dtype.name, *value.shape)

    weights = {value.name: made(value) for value in program.weights}
    x = np.random.default_rng(4).standard_normal((5, 32)).astype(np.float32)
    return ReferenceBackend().compile(plan(program), weights, {}).run({"x": x, **inputs})


def check(rewrite, program: Program, **expected: int) -> Program:
    after = rewrite(program)
    verify(after)
    assert ops_of(after) == Counter(expected)
    before, now = run(program), run(after)
    assert before.keys() == now.keys()
    for name in before:
        np.testing.assert_allclose(now[name], before[name], rtol=1e-12, atol=1e-13)
    return after


def test_a_bias_joins_its_product():
    net = Net()
    check(fold_bias, net.done(y=add(net.linear(net.x), net.bias)), matmul=1)


def test_a_bias_stays_when_the_product_is_read_elsewhere():
    net = Net()
    product = net.linear(net.x)
    check(fold_bias, net.done(y=add(product, net.bias), z=scale(product, by=2.0)), matmul=1, add=1, scale=1)


def test_a_bias_stays_when_the_product_is_an_output():
    net = Net()
    product = net.linear(net.x)
    check(fold_bias, net.done(y=add(product, net.bias), z=product), matmul=1, add=1)


def test_a_residual_is_no_bias():
    net = Net()
    check(fold_bias, net.done(y=add(net.linear(net.x), net.x)), matmul=1, add=1)


def test_a_row_that_comes_with_the_step_is_no_bias():
    net = Net()
    row = net.trace.input("row", (32,))
    program = net.done(y=add(net.linear(net.x), row))
    assert fold_bias(program) == program


def test_a_bias_does_not_slip_under_an_activation():
    net = Net()
    product = matmul(net.x, net.trace.weight("w", (32, 32)), activation="gelu")
    check(fold_bias, net.done(y=add(product, net.bias)), matmul=1, add=1)


def test_a_second_bias_is_not_lost():
    net = Net()
    check(fold_bias, net.done(y=add(add(net.linear(net.x), net.bias), net.norm)), matmul=1, add=1)


def test_an_activation_joins_its_product():
    net = Net()
    check(fold_activation, net.done(y=activate(net.linear(net.x), kind="gelu")), matmul=1)


def test_a_bias_after_an_activation_stays():
    net = Net()
    program = net.done(y=add(activate(net.linear(net.x), kind="gelu"), net.bias))
    after = check(optimise, program, matmul=1, add=1)
    assert after.body[0].attrs["activation"] == "gelu"


def test_bias_and_activation_both_fold():
    net = Net()
    check(optimise, net.done(y=activate(add(net.linear(net.x), net.bias), kind="silu")), matmul=1)


def test_two_activations_do_not_fold_into_one():
    net = Net()
    twice = activate(activate(net.linear(net.x), kind="gelu"), kind="tanh")
    check(optimise, net.done(y=twice), matmul=1, activate=1)
    net = Net()
    product = matmul(net.x, net.trace.weight("w", (32, 32)), activation="gelu")
    check(optimise, net.done(y=activate(product, kind="tanh")), matmul=1, activate=1)


@pytest.mark.parametrize("first", [True, False])
def test_a_product_with_an_activation_is_gated(first):
    net = Net()
    gate, up = activate(net.linear(net.x), kind="silu"), net.linear(net.x, "v")
    check(fold_activation, net.done(y=mul(gate, up) if first else mul(up, gate)), matmul=2, gated=1)


def test_two_activations_multiplied_are_gated_once():
    net = Net()
    gate, up = activate(net.x, kind="silu"), activate(net.linear(net.x), kind="tanh")
    check(fold_activation, net.done(y=mul(gate, up)), matmul=1, gated=1)


def test_a_square_of_an_activation_stays():
    net = Net()
    gate = activate(net.x, kind="silu")
    check(fold_activation, net.done(y=mul(gate, gate)), activate=1, mul=1)


def test_a_row_is_no_gate():
    net = Net()
    check(fold_activation, net.done(y=mul(activate(net.x, kind="silu"), net.bias)), activate=1, mul=1)


def test_a_sum_and_its_norm_are_one_op():
    net = Net()
    total = add(net.x, net.linear(net.x))
    program = net.done(y=rms_norm(total, net.norm, eps=1e-5), z=scale(total, by=2.0))
    check(fuse_norm, program, matmul=1, add_rms_norm=1, scale=1)


def test_the_sum_may_be_read_before_its_norm():
    net = Net()
    total = add(net.x, net.linear(net.x))
    other = scale(total, by=2.0)
    check(
        fuse_norm, net.done(y=add(rms_norm(total, net.norm, eps=1e-5), other)), matmul=1, add_rms_norm=1, scale=1, add=1
    )


def test_of_two_norms_of_a_sum_one_is_fused():
    net = Net()
    total = add(net.x, net.linear(net.x))
    a, b = rms_norm(total, net.norm, eps=1e-5), rms_norm(total, net.bias, eps=1e-6)
    check(fuse_norm, net.done(y=a, z=b), matmul=1, add_rms_norm=1, rms_norm=1)


def test_the_sum_may_be_an_output():
    net = Net()
    total = add(net.x, net.linear(net.x))
    check(fuse_norm, net.done(sum=total, y=rms_norm(total, net.norm, eps=1e-5)), matmul=1, add_rms_norm=1)


def test_layer_norm_fuses_only_where_the_sum_dies():
    net = Net()
    total = add(net.x, net.linear(net.x))
    check(fuse_norm, net.done(y=layer_norm(total, net.norm, net.bias, eps=1e-5)), matmul=1, add_layer_norm=1)
    net = Net()
    total = add(net.x, net.linear(net.x))
    y = layer_norm(total, net.norm, net.bias, eps=1e-5)
    check(fuse_norm, net.done(y=y, z=scale(total, by=2.0)), matmul=1, add=1, layer_norm=1, scale=1)


def test_the_norm_of_a_sum_with_a_row_stays():
    net = Net()
    check(fuse_norm, net.done(y=rms_norm(add(net.x, net.bias), net.norm, eps=1e-5)), add=1, rms_norm=1)


def test_dead_code_goes_with_its_weights():
    net = Net()
    net.linear(net.linear(net.x, "v"), "u")
    after = check(dead_code, net.done(y=net.linear(net.x)), matmul=1)
    assert [value.name for value in after.weights] == ["w"]


def test_effects_stay():
    program = Toy(paged=True).program()
    assert ops_of(dead_code(program))["kv_write"] == 2


def test_int8_rows_are_shared_by_products_of_one_block_size():
    net = Net()
    a, b = net.linear(net.x, "a", "q8_0"), net.linear(net.x, "b", "q4_1")
    c = net.linear(net.x, "c", "f16")
    program = net.done(y=gated(a, b, kind="silu"), z=c)
    after = optimise(program, compute="int8")
    assert ops_of(after) == Counter(quantise_rows=1, matmul_q=2, gated=1, round_rows=1, matmul_bf16=1)
    before, now = run(program), run(after)
    assert relative_error(now["z"], before["z"]) < 2e-2, "rows of 32 have no int8 path: bf16"
    assert 1e-4 < relative_error(now["y"], before["y"]) < 3e-2, "eight bits of activation"


def test_int8_keeps_bias_and_activation():
    net = Net()
    program = net.done(y=activate(add(net.linear(net.x, "a", "q8_0"), net.bias), kind="gelu"))
    after = optimise(program, compute="int8")
    assert ops_of(after) == Counter(quantise_rows=1, matmul_q=1)
    assert after.body[1].inputs[2] == "bias" and after.body[1].attrs["activation"] == "gelu"
    assert relative_error(run(after)["y"], run(program)["y"]) < 3e-2


def test_norms_and_gates_quantise_what_only_products_read():
    net = Net()
    total = add(net.x, net.linear(rms_norm(net.x, net.norm, eps=1e-5), "a", "q8_0"))
    normed = rms_norm(total, net.bias, eps=1e-5)
    gate, up = net.linear(normed, "gate", "q4_1"), net.linear(normed, "up", "q4_0")
    down = net.linear(gated(gate, up, kind="silu"), "down", "q8_0")
    program = lower_int8(fuse_norm(net.done(y=add(total, down))))
    check(fuse_rows, program, rms_norm_a8=1, add_rms_norm_a8=1, gated_a8=1, matmul_q=4, add=1)


def test_rows_that_something_else_reads_stay_floats():
    net = Net()
    normed = rms_norm(net.x, net.norm, eps=1e-5)
    program = lower_int8(net.done(y=net.linear(normed, "a", "q8_0"), z=net.linear(normed, "b")))
    check(fuse_rows, program, rms_norm=1, quantise_rows=1, matmul_q=1, matmul=1)
    net = Net()
    normed = rms_norm(net.x, net.norm, eps=1e-5)
    program = lower_int8(net.done(y=net.linear(normed, "a", "q8_0"), z=normed))
    check(fuse_rows, program, rms_norm=1, quantise_rows=1, matmul_q=1)


def test_rows_of_two_block_sizes_come_from_one_row_of_floats():
    trace = Trace("blocks")
    normed = rms_norm(trace.input("x", (T, 256)), trace.weight("norm", (256,)), eps=1e-5)
    for name, dtype in (("y", "q8_0"), ("z", "q6_k")):
        trace.output(name, matmul(normed, trace.weight(f"w.{name}", (32, 256), dtype)))
    after = optimise(trace.program(), compute="int8")
    assert ops_of(after) == Counter(rms_norm=1, quantise_rows=2, matmul_q=2)


def tokens_net() -> Program:
    """a x + c gelu(b x), and d of the norm of a x."""
    trace = Trace("tokens")
    x = trace.input("x", (T, 64))

    def linear(x, name, outputs=64):
        return matmul(x, trace.weight(name, (outputs, x.shape[-1])))

    a, inner = linear(x, "a"), activate(linear(x, "b", 128), kind="gelu")
    trace.output("y", add(a, linear(inner, "c")))
    trace.output("z", linear(layer_norm(a, trace.weight("norm", (64,)), trace.weight("beta", (64,)), eps=1e-6), "d"))
    return trace.program()


def test_int8_rounds_rows_once_and_where_they_are_made():
    program = tokens_net()
    after = optimise(program, compute="int8")
    assert ops_of(after) == Counter(quantise_tokens=2, matmul_i8=4, add=1, layer_norm=1)
    found = {
        i.inputs[2]: (i.inputs[4], i.attrs["equalised"], i.attrs["quantised"])
        for i in after.body
        if i.op == "matmul_i8"
    }
    assert found == {
        "a": (None, False, False),
        "b": ("c", False, True),
        "c": (None, True, False),
        "d": (None, True, False),
    }
    assert {i.inputs for i in after.body if i.op == "quantise_tokens"} == {("x", None), (after.body[-2].inputs[0], "d")}
    x = np.random.default_rng(4).standard_normal((5, 64)).astype(np.float32)
    weights = {
        v.name: weight(np.random.default_rng(zlib.crc32(v.name.encode())), "f32", *v.shape) for v in program.weights
    }
    before, now = (ReferenceBackend().compile(plan(p), weights, {}).run({"x": x}) for p in (program, after))
    for name in before:
        assert 1e-4 < relative_error(now[name], before[name]) < 3e-2


def test_int8_keeps_the_type_of_a_result_that_is_also_read():
    trace = Trace("read")
    first = matmul(trace.input("x", (T, 64)), trace.weight("a", (64, 64)))
    trace.output("y", first)
    trace.output("z", matmul(first, trace.weight("b", (64, 64))))
    after = optimise(trace.program(), compute="int8")
    assert ops_of(after) == Counter(quantise_tokens=2, matmul_i8=2)
    assert {value.name: value.dtype.name for value in after.outputs} == {"y": "f32", "z": "f32"}


def test_int8_leaves_models_that_generate_and_weights_that_others_read():
    program = Toy(paged=True).program()
    assert optimise(program, compute="int8") == optimise(program)
    trace = Trace("tied")
    hidden = embedding(trace.input("ids", (T,), "i32"), trace.weight("w", (50, 64)))
    trace.output("y", matmul(hidden, trace.weight("w", (50, 64))))
    assert ops_of(optimise(trace.program(), compute="int8")) == Counter(embedding=1, matmul=1)


def test_lowering_twice_changes_nothing_more():
    program = lower_int8(Toy(paged=False, dtype="q8_0").program())
    assert lower_int8(program) == program
    assert optimise(optimise(program)) == optimise(program)


def test_the_whole_toy_in_int8_is_close():
    toy = Toy(paged=False, dtype="q8_0")
    rng = np.random.default_rng(0)
    inputs = step([rng.integers(0, 50, 9)], [0], [9], paged=False)
    weights = toy.weights()
    exact, close = (
        ReferenceBackend().compile(plan(optimise(toy.program(), compute=compute)), weights, {}).run(inputs)["logits"]
        for compute in ("f32", "int8")
    )
    assert 0 < relative_error(close, exact) < 0.1


def test_fused_ops_that_a_backend_lacks_are_taken_apart():
    net = Net()
    hidden = activate(add(net.linear(net.x), net.bias), kind="gelu")
    total = add(net.x, gated(hidden, net.linear(net.x, "v"), kind="silu"))
    program = optimise(net.done(sum=total, y=rms_norm(total, net.norm, eps=1e-5)))
    assert ops_of(program) == Counter(matmul=2, gated=1, add_rms_norm=1)
    plain = ("matmul", "add", "mul", "activate", "rms_norm")
    after = decompose(program, lambda op, dtypes: op in plain)
    assert ops_of(after) == Counter(matmul=2, activate=1, mul=1, add=1, rms_norm=1)
    assert optimise(after) == program
    for name, want in run(program).items():
        np.testing.assert_allclose(run(after)[name], want, rtol=1e-12)


def test_taking_apart_ends_when_nothing_is_left_to_take_apart():
    net = Net()
    program = net.done(y=activate(add(net.linear(net.x), net.bias), kind="gelu"))
    after = decompose(optimise(program), lambda op, dtypes: False)
    assert after == dead_code(program)


def test_an_unknown_compute_is_refused():
    with pytest.raises(InputError, match="f32, f16, bf16x3, bf16, int8"):
        optimise(Toy(paged=True).program(), compute="int4")
