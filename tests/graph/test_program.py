"""A program survives text and JSON exactly, and anything else is refused with a FormatError."""

import contextlib
import json

import numpy as np
import pytest
from toy_model import Toy

from weft.errors import FormatError, InputError, ShapeError
from weft.graph import B, L, Program, T, Trace, named
from weft.graph.passes import optimise
from weft.graph.plan import plan
from weft.graph.program import bind_sizes
from weft.graph.text import from_text, to_text
from weft.graph.verify import verify
from weft.ops import add, embedding, matmul, rms_norm, scale


def programs():
    paged, plain = Toy(paged=True).program(), Toy(paged=False, dtype="q8_0").program()
    return [paged, plan(paged), plan(optimise(paged)), plan(optimise(plain, compute="int8"))]


@pytest.mark.parametrize("program", programs(), ids=["traced", "planned", "optimised", "int8"])
def test_round_trips(program):
    assert from_text(to_text(program)) == program
    assert Program.from_json(program.json) == program
    verify(from_text(to_text(program)))


def test_json_is_the_form_of_the_design_page():
    with Trace("toy") as trace:
        x = embedding(trace.input("ids", (T,), "i32"), trace.weight("table", (10, 16), "f16"))
        y = rms_norm(named(x, "embedded"), trace.weight("norm", (16,)), eps=1e-5)
        trace.output("hidden", matmul(y, trace.weight("head", (3, 16))))
    assert json.loads(plan(trace.program()).json) == {
        "weft": 1,
        "name": "toy",
        "values": [
            {"name": "ids", "kind": "input", "dtype": "i32", "shape": ["T"]},
            {"name": "table", "kind": "weight", "dtype": "f16", "shape": [10, 16]},
            {"name": "norm", "kind": "weight", "dtype": "f32", "shape": [16]},
            {"name": "head", "kind": "weight", "dtype": "f32", "shape": [3, 16]},
            {"name": "%0.embedded", "kind": "buffer", "dtype": "f32", "shape": ["T", 16], "slot": 0},
            {"name": "%1", "kind": "buffer", "dtype": "f32", "shape": ["T", 16], "slot": 0},
            {"name": "hidden", "kind": "output", "dtype": "f32", "shape": ["T", 3]},
        ],
        "slots": [{"T": 64, "const": 0}],
        "body": [
            {"op": "embedding", "in": ["ids", "table"], "out": ["%0.embedded"], "attrs": {}},
            {"op": "rms_norm", "in": ["%0.embedded", "norm"], "out": ["%1"], "attrs": {"eps": 1e-5}},
            {"op": "matmul", "in": ["%1", "head", None, None], "out": ["hidden"], "attrs": {"activation": "none"}},
        ],
    }


def test_hostile_json_is_refused():
    good = json.loads(plan(Toy(paged=True).program()).json)
    rng = np.random.default_rng(1)
    junk = [None, -1, 1.5, "x", [], {}, True, [[]], {"T": "T"}, 10**30]
    for _ in range(500):
        document = json.loads(json.dumps(good))
        place = document
        while isinstance(place, (dict, list)) and place:  # walk to a random depth and break what is there
            key = rng.choice(list(place)) if isinstance(place, dict) else int(rng.integers(len(place)))
            if not isinstance(place[key], (dict, list)) or rng.random() < 0.2:
                place[key] = junk[rng.integers(len(junk))]
                break
            place = place[key]
        with contextlib.suppress(FormatError):
            verify(Program.from_json(json.dumps(document)))


@pytest.mark.parametrize("text", ["", "[]", "{}", "not json", '{"weft": 2}', '{"weft": 1, "name": 3}', "[" * 100_000])
def test_what_is_no_program_is_refused(text):
    with pytest.raises(FormatError, match=r"\[program\]"):
        Program.from_json(text)


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("%1 : f32[T] = nothing(%0)", "no op is called"),
        ("%1 : f32[T, 4] = scale(%9) {by=1.0}", "%9 is not declared"),
        ("%1 : f32[T, 4] = scale(@x) {by=1.0}", "x is of kind input"),
        ("%1 : f33[T, 4] = scale(x) {by=1.0}", "unknown element type"),
        ("%1 : f32[Q, 4] = scale(x) {by=1.0}", "not a size"),
        ("%1 : f32[T, 4] = scale(x) {times=1.0}", "times"),
        ("%1 : f32[T, 4] = scale(x", "neither a declaration"),
        ("%1 : f32[T, 4], junk = scale(x) {by=1.0}", "neither a declaration"),
        ("weight w : f32[4]", "marked @"),
        ("slot 1 : 64*T", "slot 0 must come next"),
    ],
)
def test_broken_text_names_the_line(line, complaint):
    with pytest.raises(FormatError, match="line 4") as caught:
        from_text(f"program p\n\ninput x : f32[T, 4]\n{line}\n")
    assert complaint in str(caught.value)


def test_equal_models_print_equally_whatever_was_declared_when():
    def traced(first: str) -> str:
        with Trace("p") as trace:
            x = trace.input("x", (T, 4))
            unused = scale(x, by=3.0) if first == "unused" else None
            trace.output("y", add(x, scale(x, by=2.0)))
            assert unused is None or unused.shape == (T, 4)
        return to_text(optimise(trace.program()))

    assert traced("unused") == traced("nothing")


def test_sizes_come_from_the_inputs():
    program = Toy(paged=True).program()
    inputs = {
        "ids": np.zeros(5, np.int32),
        "positions": np.zeros(5, np.int32),
        "segments": np.zeros(3, np.int32),
        "rows": np.zeros(1, np.int32),
        "pages": np.zeros((2, 4), np.int32),
    }
    assert bind_sizes(program, inputs) == {"T": 5, "B": 2, "L": 1}
    for name, shape in [("positions", 4), ("pages", (3, 4)), ("pages", (2, 5)), ("segments", 0), ("ids", (5, 1))]:
        with pytest.raises(InputError, match=name):
            bind_sizes(program, {**inputs, name: np.zeros(shape, np.int32)})
    with pytest.raises(InputError, match="inputs must be"):
        bind_sizes(program, {"ids": inputs["ids"]})


def test_a_trace_refuses_confusions():
    trace, other = Trace("one"), Trace("two")
    x = trace.input("x", (T, 4))
    with pytest.raises(InputError, match="another trace"):
        add(x, other.input("x", (T, 4)))
    with pytest.raises(InputError, match="arrays and symbolic tensors together"):
        add(x, np.zeros(4, np.float32))
    with pytest.raises(InputError, match="already"):
        trace.weight("x", (4,))
    with pytest.raises(InputError, match="not a name"):
        trace.weight("a b", (4,))
    trace.constant("c", np.zeros(3))
    with pytest.raises(InputError, match="different values"):
        trace.constant("c", np.ones(3))
    with pytest.raises(InputError, match="not a valid name for an output"):
        trace.output("x", x)
    with pytest.raises(InputError, match="has no output"), Trace("empty"):
        pass


def test_outputs_never_share_memory():
    """An input given back, a reshape, and one tensor under two names are copied."""
    with Trace("p") as trace:
        x = trace.input("x", (L, 6))
        y = scale(x, by=2.0)
        for name, tensor in [("same", x), ("y", y), ("again", y), ("turned", y.reshape(L, 2, 3))]:
            trace.output(name, tensor)
    program = plan(trace.program())
    assert {value.name for value in program.outputs} == {"same", "y", "again", "turned"}
    assert all(program.body[program.writer[v.name]].op != "reshape" for v in program.outputs)
    assert trace.program() == trace.program()


@pytest.mark.parametrize(
    "shape, want",
    [((T, 2, -1), (T, 2, 3)), ((-1, 6), (T, 6)), ((-1, 3), (2 * T, 3)), ((T, -1), (T, 6)), ((2 * T, -1), (2 * T, 3))],
)
def test_reshape_finds_the_missing_size(shape, want):
    x = Trace("p").input("x", (T, 6))
    assert x.reshape(*shape).shape == want


@pytest.mark.parametrize("shape", [(T, 4), (T, 5, -1), (B, 6), (-1, -1), (T, B)])
def test_reshape_refuses_other_elements(shape):
    x = Trace("p").input("x", (T, 6))
    with pytest.raises(ShapeError, match=r"\[reshape\]|\[dim\]"):
        x.reshape(*shape)
