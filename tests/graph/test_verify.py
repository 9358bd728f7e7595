"""The verifier refuses every kind of broken program, and says which value or instruction is at fault."""

from dataclasses import replace

import pytest

from weft.dtype import dtype
from weft.errors import FormatError
from weft.graph import B, Program, T, Trace
from weft.graph.plan import plan
from weft.graph.verify import verify
from weft.ops import add, gated, kv_write, matmul, rms_norm
from weft.ops.spec import Dim


def good() -> Program:
    """%0 matmul, %1 rms_norm (over %0), %2 reshape, kv_write, %3 matmul, %4 gated, %5 add, then the output."""
    with Trace("good") as trace:
        x = trace.input("x", (T, 8))
        table = [trace.input("positions", (T,), "i32"), trace.input("segments", (B + 1,), "i32")]
        pages = trace.input("pages", (B, 2), "i32")
        weight = trace.weight("weight", (8, 8))
        a = rms_norm(matmul(x, weight), trace.weight("norm", (8,)), eps=1e-5)
        k = a.reshape(T, 2, 4)
        kv_write(k, k, trace.kv("kv", (2, 4)), *table, pages)
        b = matmul(a, weight, trace.weight("bias", (8,)))
        c = gated(a, b, kind="silu")
        trace.output("y", matmul(add(c, a), weight))
    return plan(trace.program())


def edit(which, **changes):
    """Change fields of a value."""
    return lambda p: replace(p, values=tuple(replace(v, **changes) if v.name == which else v for v in p.values))


def redo(index, **changes):
    """Change fields of an instruction."""
    return lambda p: replace(p, body=tuple(replace(i, **changes) if n == index else i for n, i in enumerate(p.body)))


def moved(source, target):
    def mutate(p):
        body = list(p.body)
        body.insert(target, body.pop(source))
        return replace(p, body=tuple(body))

    return mutate


BROKEN = {
    "an unknown op": (redo(0, op="conv"), "unknown op"),
    "an unknown operand": (redo(0, inputs=("z", "weight", None)), "unknown value z"),
    "an unknown result": (redo(0, outputs=("%9",)), "unknown value %9"),
    "a value read before it is written": (moved(0, 1), "read before"),
    "a value written twice": (redo(1, outputs=("%0",)), "written twice"),
    "an input written": (redo(0, outputs=("x",)), "written twice, or cannot be written"),
    "an output never written": (lambda p: replace(p, body=p.body[:-1]), "never written"),
    "a name used twice": (lambda p: replace(p, values=(*p.values, p.values[0])), "used twice"),
    "an unknown kind": (edit("x", kind="thing"), "unknown kind"),
    "a buffer with a weight's name": (edit("norm", kind="buffer"), "not the name"),
    "a name with a space": (edit("x", name="x y"), "not the name"),
    "an operand too many": (redo(1, inputs=("%0", "norm", None)), "takes 2 operands"),
    "an operand missing": (redo(1, inputs=("%0", None)), "weight is missing"),
    "a missing optional operand's place": (redo(0, inputs=("x", "weight")), "takes 4 operands"),
    "an attribute missing": (redo(1, attrs={}), "eps is missing"),
    "an attribute left to its default": (redo(0, attrs={}), "incomplete"),
    "an unknown attribute": (redo(1, attrs={"eps": 1e-5, "epsilon": 1}), "no attribute is called epsilon"),
    "an attribute of the wrong type": (redo(1, attrs={"eps": "small"}), "must be a finite number"),
    "an attribute that is not finite": (redo(1, attrs={"eps": float("inf")}), "must be a finite number"),
    "a word not in the list": (redo(5, attrs={"kind": "none"}), "one of gelu"),
    "a shape the op does not give": (edit("%1", shape=(T, 9)), "the op gives"),
    "a type the op does not give": (edit("%1", dtype=dtype("a8_32"), shape=(T, 32)), "%1"),
    "operands that do not fit": (edit("norm", shape=(9,)), "weight must be f32[8]"),
    "integers where floats belong": (edit("x", dtype=dtype("i32")), "must be floats"),
    "a buffer as a weight": (redo(1, inputs=("%0", "x")), "weight must be f32[8]"),
    "an input as a weight": (edit("weight", kind="input"), "weight must be a weight: got the input"),
    "an input as a state": (redo(3, inputs=("%2", "%2", "x", "positions", "segments", "pages", None, None)), "state"),
    "a state as an array": (redo(0, inputs=("kv", "weight", None, None)), "weight must be [N, 4]"),
    "a table of the wrong rank": (edit("kv", kind="table", dtype=dtype("f32"), shape=(2, 4, 1, 1)), "[rows, cols]"),
    "a table as a state": (edit("kv", kind="table", dtype=dtype("f32")), "state must be a kv: got the table kv"),
    "a result too many": (redo(1, outputs=("%1", "%3")), "has 1 results"),
    "a type no buffer has": (edit("%0", dtype=dtype("f16")), "cannot be f16"),
    "a state of the wrong rank": (edit("kv", shape=(2, 4, 1)), "[heads, dim]"),
    "too many axes": (edit("x", shape=(T, 1, 2, 2, 2)), "1 to 4 axes"),
    "a negative size": (edit("x", shape=(T, -8)), "not a size"),
    "a size beyond all numbers": (edit("x", shape=(T, 2**60)), "not a size"),
    "axes beyond all memory": (edit("x", shape=(T, 2**35, 2**35)), "beyond all memory"),
    "two symbolic axes": (edit("x", shape=(T, B)), "one symbolic axis"),
    "a number beyond all doubles": (redo(1, attrs={"eps": 10**400}), "must be a finite number"),
    "a falling size": (edit("x", shape=(8 - T, 8)), "not a size"),
    "a symbolic weight": (edit("weight", shape=(T, 8)), "fixed sizes"),
    "a cut block": (edit("weight", dtype=dtype("q8_0")), "whole blocks"),
    "a reshaped input": (redo(2, inputs=("x",)), "only buffers are reshaped"),
    "a buffer without a slot": (edit("%3", slot=None), "has no slot"),
    "a slot that is not there": (edit("%3", slot=99), "has no slot"),
    "a weight with a slot": (edit("weight", slot=0), "has no slot"),
    "a slot too small": (lambda p: replace(p, slots=(Dim(T=16), *p.slots[1:])), "does not fit its slot"),
    "a reshape elsewhere": (edit("%2", slot=1), "outside the slot"),
    "two live buffers in a slot": (edit("%3", slot=0), "shares slot"),
    "a program name that breaks the text": (lambda p: replace(p, name="a\nb"), "printable"),
}


def test_the_program_that_the_mutations_break_is_good():
    verify(good())
    assert good().table["%1"].slot == good().table["%0"].slot == good().table["%2"].slot == 0


@pytest.mark.parametrize("mutate, complaint", BROKEN.values(), ids=BROKEN.keys())
def test_refuses(mutate, complaint):
    with pytest.raises(FormatError) as caught:
        verify(mutate(good()))
    assert complaint in str(caught.value)


def test_a_result_may_not_overwrite_an_operand_that_is_read_again_for_every_element():
    """x dies in the product, but the product cannot lie over it; in a norm it can."""
    with Trace("p") as trace:
        x = add(trace.input("x", (T, 8)), trace.weight("bias", (8,)))
        y = matmul(x, trace.weight("weight", (8, 8)))
        trace.output("z", matmul(rms_norm(y, trace.weight("norm", (8,)), eps=1e-5), trace.weight("weight", (8, 8))))
    program = plan(trace.program())
    x_slot, y_slot, norm_slot = (value.slot for value in program.of_kind("buffer"))
    assert x_slot != y_slot == norm_slot
    with pytest.raises(FormatError, match="shares slot"):
        verify(edit("%1", slot=x_slot)(edit("%2", slot=x_slot)(program)))
