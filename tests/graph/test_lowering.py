"""Passes that change numbers, as `compute` asks: each changes those it is for, and only as far as its type rounds."""

from collections import Counter

import numpy as np
import pytest
from test_passes import Net, ops_of, run

from weft.graph import B, Program, T, Trace
from weft.graph.passes import optimise
from weft.ops import activate, add, attention, attention_paged, embedding, matmul
from weft.ops.tolerance import relative_error


def test_bf16_takes_float_matrices_that_only_products_read():
    net = Net()
    a, b = net.linear(net.x, "a", "f32"), net.linear(net.x, "b", "q4_1")
    program = net.done(y=activate(add(a, net.bias), kind="gelu"), z=b, w=net.linear(net.x, "c", "f16"))
    after = optimise(program, compute="bf16")
    assert ops_of(after) == Counter(round_rows=1, matmul_bf16=2, matmul=1), "x is rounded once, for both"
    assert {value.name: value.dtype.name for value in after.weights if value.name in "abc"} == {
        "a": "bf16", "b": "q4_1", "c": "bf16",
    }  # fmt: skip
    fused = next(instr for instr in after.body if instr.op == "matmul_bf16" and instr.inputs[1] == "a")
    assert fused.inputs[2] == "bias" and fused.attrs["activation"] == "gelu"
    before, now = run(program), run(after)
    assert relative_error(now["z"], before["z"]) < 1e-14, "quantised weights are left alone"
    assert 1e-4 < relative_error(now["y"], before["y"]) < 2e-2, "eight bits of significand"


def test_bf16_rounds_where_a_value_is_made_if_only_products_read_it():
    net = Net()
    inner = activate(net.linear(net.x, "a"), kind="gelu")
    kept = net.linear(net.x, "b")
    program = net.done(y=net.linear(inner, "c"), z=add(net.linear(kept, "d"), kept))
    after = optimise(program, compute="bf16")
    assert ops_of(after) == Counter(round_rows=2, matmul_bf16=4, add=1), (
        "x and what the sum reads too are rounded apart"
    )
    rounded = {instr.inputs[1]: instr.attrs["rounded"] for instr in after.body if instr.op == "matmul_bf16"}
    assert rounded == {"a": True, "b": False, "c": False, "d": False}
    assert relative_error(run(after)["y"], run(program)["y"]) < 2e-2


def test_f16_takes_float_matrices_that_only_products_read():
    net = Net()
    inner = activate(add(net.linear(net.x, "a", "f32"), net.bias), kind="gelu")
    program = net.done(y=net.linear(inner, "c", "bf16"), z=net.linear(net.x, "b", "q4_1"))
    after = optimise(program, compute="f16")
    assert ops_of(after) == Counter(matmul_half=2, matmul=1)
    assert {value.name: value.dtype.name for value in after.weights if value.name in "abc"} == {
        "a": "f16", "b": "q4_1", "c": "f16",
    }  # fmt: skip
    fused = next(instr for instr in after.body if instr.inputs[1] == "a")
    assert fused.inputs[2] == "bias" and fused.attrs["activation"] == "gelu"
    assert relative_error(run(after)["y"], run(program)["y"]) < 2e-3


@pytest.mark.parametrize("dtype, want", [("f16", "matmul_half"), ("bf16", "matmul")])
def test_f16_leaves_tables_that_are_looked_up_as_they_are(dtype: str, want: str):
    trace = Trace("tied")
    hidden = embedding(trace.input("ids", (T,), "i32"), trace.weight("w", (50, 64), dtype))
    trace.output("y", matmul(hidden, trace.weight("w", (50, 64), dtype)))
    after = optimise(trace.program(), compute="f16")
    assert ops_of(after) == Counter(["embedding", want]) and after.table["w"].dtype.name == dtype


def test_split_bf16_is_near_f32():
    net = Net()
    inner = activate(net.linear(net.x, "a"), kind="gelu")
    program = net.done(y=net.linear(inner, "c"))
    after = optimise(program, compute="bf16x3")
    assert ops_of(after) == Counter(round_rows=1, matmul_bf16=2)
    assert {value.name: value.shape for value in after.weights} == {"a": (32, 64), "c": (32, 64)}
    error = relative_error(run(after, split=True)["y"], run(program)["y"])
    assert 1e-8 < error < 2e-5, "sixteen bits of significand"


def attending(causal: bool, dim: int) -> Program:
    trace = Trace("attend")
    q, k, v = (trace.input(name, (T, 2, dim)) for name in "qkv")
    segments = trace.input("segments", (B + 1,), "i32")
    trace.output("y", attention(q, k, v, segments, causal=causal, scale=0.5))
    return trace.program()


def test_bf16_takes_attention_to_the_whole_sequence_only():
    for causal, dim, want in ((False, 32, "attention_bf16"), (True, 32, "attention"), (False, 136, "attention")):
        program = attending(causal, dim)
        assert [instr.op for instr in optimise(program, compute="bf16").body] == [want]


def test_int8_and_f16_attend_in_half_precision_where_there_is_arithmetic_of_it():
    for causal, dim, want in ((False, 32, "attention_half"), (True, 32, "attention"), (False, 136, "attention")):
        program = attending(causal, dim)
        for compute in ("int8", "f16"):
            assert [instr.op for instr in optimise(program, compute=compute, half=True).body] == [want]
        for compute in ("f32", "bf16", "bf16x3"):
            assert optimise(program, compute=compute, half=True) == optimise(program, compute=compute)


def test_biases_go_along_and_sinks_stay_in_f32():
    with Trace("encoder") as trace:
        q, k, v = (trace.input(name, (T, 2, 32)) for name in "qkv")
        segments = trace.input("segments", (B + 1,), "i32")
        table, buckets, sinks = trace.weight("t", (5, 2)), trace.weight("b", (9,)), trace.weight("s", (2,))
        trace.output("biased", attention(q, k, v, segments, None, table, buckets, causal=False, scale=0.5))
        trace.output("sunk", attention(q, k, v, segments, sinks, causal=False, scale=0.5))
    for options, op in (({"compute": "bf16"}, "attention_bf16"), ({"compute": "f16", "half": True}, "attention_half")):
        biased, sunk = optimise(trace.program(), **options).body
        assert (biased.op, biased.inputs[-2:], sunk.op) == (op, ("t", "b"), "attention")


def test_bf16_rounds_around_attention_what_nothing_else_reads():
    def program(shared: bool) -> Program:
        net = Net()
        segments = net.trace.input("segments", (B + 1,), "i32")
        q, k, v = (net.linear(net.x, name) for name in "qkv")
        heads = (tensor.reshape(T, 2, 16) for tensor in (q, k, v))
        attended = attention(*heads, segments, causal=False, scale=0.5).reshape(T, 32)
        return net.done(y=net.linear(attended, "o"), **({"z": add(k, net.x)} if shared else {}))

    after = optimise(program(False), compute="bf16")
    assert ops_of(after) == Counter(round_rows=1, matmul_bf16=4, reshape=4, attention_bf16=1), "only x is rounded apart"
    attend = next(instr for instr in after.body if instr.op == "attention_bf16")
    assert attend.attrs["rounded"] and {after.table[name].dtype.name for name in attend.inputs[:3]} == {"bf16"}
    given = {"segments": np.asarray([0, 2, 5], np.int32)}
    error = relative_error(run(after, **given)["y"], run(program(False), **given)["y"])
    assert 1e-4 < error < 2e-2, "eight bits of significand"

    after = optimise(program(True), compute="bf16")
    attend = next(instr for instr in after.body if instr.op == "attention_bf16")
    assert {after.table[name].dtype.name for name in attend.inputs[:3]} == {"f32"}, "a sum reads the keys too"


def test_attention_over_a_state_is_rounded_where_activations_are():
    def attended(compute: str, dim: int, dtype: str) -> str:
        with Trace("attend") as trace:
            x, weight = trace.input("x", (T, 64)), trace.weight("w", (4 * dim, 64), dtype)
            table = [trace.input("positions", (T,), "i32"), trace.input("segments", (B + 1,), "i32")]
            table.append(trace.input("pages", (B, 2), "i32"))
            q, kv = matmul(x, weight).reshape(T, 4, dim), trace.kv("kv", (2, dim), "f16")
            trace.output("y", attention_paged(q, kv, *table, scale=0.5, window=7, softcap=2.0))
        instr = optimise(trace.program(), compute=compute).body[-1]
        assert instr.attrs == {"scale": 0.5, "window": 7, "softcap": 2.0}
        return instr.op

    assert attended("int8", 128, "q8_0") == attended("bf16", 128, "f32") == "attention_paged_bf16"
    assert attended("f16", 128, "bf16") == "attention_paged_bf16"
    assert attended("int8", 256, "q8_0") == attended("bf16", 256, "f32") == "attention_paged"
    for compute in ("int8", "bf16x3", "f32"):  # nothing to round for int8
        assert attended(compute, 128, "f32") == "attention_paged"
