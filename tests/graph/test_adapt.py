"""The pass `adapt` puts adapters behind products and embeddings, for each sequence of a step its own."""

import numpy as np
import pytest
from test_passes import Net, ops_of

from weft.backends.reference import ReferenceBackend
from weft.errors import InputError
from weft.graph import B, L, Program, T, Trace
from weft.graph.passes import adapt, optimise
from weft.graph.plan import plan
from weft.graph.text import from_text, to_text
from weft.ops import (
    activate,
    embedding,
    matmul,
    take_rows,
)
from weft.ops.samples import weight
from weft.ops.state import AdapterArray, AdapterPart
from weft.ops.tolerance import relative_error


def adaptable() -> Program:
    """Two products of tokens, one of them with an activation, and one of the rows that are asked for."""
    trace = Trace("net")
    x = trace.input("x", (T, 32))
    trace.input("segments", (B + 1,), "i32")
    rows = trace.input("rows", (L,), "i32")
    first = activate(matmul(x, trace.weight("w1", (32, 32))) + trace.weight("b1", (32,)), kind="silu")
    second = matmul(first, trace.weight("w2", (32, 32)))
    trace.output("hidden", second)
    trace.output("head", matmul(take_rows(second, rows), trace.weight("w3", (16, 32))))
    return trace.program()


def test_adapt_puts_each_sequence_s_adapter_behind_every_product():
    program = plan(optimise(adaptable(), adapters=True))
    assert ops_of(program)["lora"] == 3 and [value.name for value in program.tables] == [
        "lora/w1",
        "lora/w2",
        "lora/w3",
    ]
    assert Program.from_json(program.json) == program and from_text(to_text(program)) == program
    rng = np.random.default_rng(4)
    weights = {value.name: weight(rng, "f32", *value.shape) for value in program.weights}
    x, segments, rows = weight(rng, "f32", 5, 32), np.int32([0, 2, 5]), np.int32([4, 1])
    inputs = {"x": x, "segments": segments, "rows": rows}
    parts = {name: AdapterPart(shift=weight(rng, "f32", n)) for name, n in (("w1", 32), ("w2", 32), ("w3", 16))}

    def states(index: int) -> dict:
        return {v.name: AdapterArray(*v.shape, {index: parts[v.name[5:]]}) for v in program.tables}

    backend = ReferenceBackend()
    plain = backend.compile(plan(optimise(adaptable())), weights, {}).run(inputs)
    bound = backend.compile(program, weights, states(7))
    none = bound.run({**inputs, "adapters": np.int32([0, 3])})
    assert all(np.array_equal(plain[name], none[name]) for name in plain)
    one = bound.run({**inputs, "adapters": np.int32([7, 0])})
    assert np.array_equal(one["hidden"][2:], plain["hidden"][2:]) and np.array_equal(one["head"][0], plain["head"][0])
    before = x[:2].astype(np.float64) @ weights["w1"].T.astype(np.float64) + weights["b1"] + parts["w1"].shift
    inner = activate(before, kind="silu")
    want = inner @ weights["w2"].T.astype(np.float64) + parts["w2"].shift
    assert relative_error(one["hidden"][:2], want) < 1e-14
    assert relative_error(one["head"][1], want[1] @ weights["w3"].T.astype(np.float64) + parts["w3"].shift) < 1e-14


def test_adapt_puts_adapters_behind_the_embedding_of_tokens():
    trace = Trace("net")
    ids, positions = trace.input("ids", (T,), "i32"), trace.input("positions", (T,), "i32")
    trace.input("segments", (B + 1,), "i32")
    trace.input("rows", (L,), "i32")
    rows = embedding(ids, trace.weight("words", (9, 8))) + embedding(positions, trace.weight("places", (5, 8)))
    trace.output("rows_of", rows)
    program = plan(optimise(trace.program(), adapters=True))
    assert [(value.name, value.shape) for value in program.tables] == [("lora_embedding/words", (8, 9))]
    rng = np.random.default_rng(4)
    weights = {value.name: weight(rng, "f32", *value.shape) for value in program.weights}
    down, up = weight(rng, "f32", 2, 9), weight(rng, "f32", 8, 2)
    tables = {"lora_embedding/words": AdapterArray(8, 9, {1: AdapterPart(down, up, np.float32([2, 3]))})}
    inputs = {"ids": np.int32([8, 3, 3]), "positions": np.int32([0, 1, 0]), "segments": np.int32([0, 2, 3])}
    inputs |= {"rows": np.int32([]), "adapters": np.int32([1, 0])}
    got = ReferenceBackend().compile(program, weights, tables).run(inputs)["rows_of"]
    want = weights["words"][[8, 3, 3]].astype(np.float64) + weights["places"][[0, 1, 0]]
    want[:2] += (down[:, [8, 3]].T * np.float64([2, 3])) @ up.T
    assert relative_error(got, want) < 1e-14


def test_adapt_takes_programs_of_a_step_only():
    net = Net()
    with pytest.raises(InputError, match="must have the inputs segments and rows"):
        adapt(net.done(y=net.linear(net.x)))
