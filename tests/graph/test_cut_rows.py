"""Rows that nobody asks for are not computed, and the rows that are asked for stay as they were."""

from collections import Counter

import numpy as np
import pytest

from weft.backends.reference import ReferenceBackend
from weft.graph import B, L, Program, T, Trace
from weft.graph.passes import cut_rows
from weft.graph.plan import plan
from weft.graph.verify import verify
from weft.ops import add_rms_norm, gated, matmul, reshape, rms_norm, softmax, take_rows


class Net:
    def __init__(self) -> None:
        self.trace = Trace("net")
        self.x = self.trace.input("x", (T, 8))
        self.rows = self.trace.input("rows", (L,), "i32")

    def linear(self, x, name: str, wide: int = 8, narrow: int = 8):
        return matmul(x, self.trace.weight(name, (wide, narrow)))

    def norm(self, name: str):
        return self.trace.weight(name, (8,))

    def done(self, **outputs) -> Program:
        for name, tensor in outputs.items():
            self.trace.output(name, tensor)
        return self.trace.program()


def run(program: Program, rows: list[int], **more: list[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    made = {value.name: rng.standard_normal(value.shape).astype(np.float32) for value in program.weights}
    inputs = {"x": rng.standard_normal((6, 8)).astype(np.float32)}
    inputs |= {name: np.array(given, np.int32) for name, given in {"rows": rows, **more}.items()}
    return ReferenceBackend().compile(plan(program), made, {}).run(inputs)


def rewritten(program: Program) -> Program:
    after = cut_rows(program)
    verify(after)
    for rows in ([5], [0, 3, 3], [], [5, 4, 3, 2, 1, 0]):
        before, now = run(program, rows), run(after, rows)
        assert before.keys() == now.keys()
        for name in before:
            np.testing.assert_allclose(now[name], before[name], rtol=1e-12, atol=1e-13)
    return after


def tall(program: Program) -> Counter[str]:
    """The ops that still work on every row."""
    table = program.table
    return Counter(i.op for i in program.body if any(table[name].shape[0] == T for name in i.outputs))


def last_layer(net: Net):
    """What comes behind the attention of a decoder's last layer, the residual among it."""
    attended = reshape(reshape(net.linear(net.x, "q"), shape=(T, 2, 4)), shape=(T, 8))
    total, normed = add_rms_norm(net.x, net.linear(attended, "o"), net.norm("n1"), eps=1e-6)
    inner = gated(net.linear(normed, "gate", 16), net.linear(normed, "up", 16), kind="silu")
    return add_rms_norm(total, net.linear(inner, "down", 8, 16), net.norm("n2"), eps=1e-6)


def test_the_last_layer_works_on_the_rows_that_are_asked_for():
    net = Net()
    _, normed = last_layer(net)
    after = rewritten(net.done(logits=net.linear(take_rows(normed, net.rows), "head", 20)))
    assert tall(after) == Counter(matmul=1, reshape=2)  # of the attention
    assert Counter(i.op for i in after.body)["take_rows"] == 2  # of the residual and of the attention


def test_an_op_that_mixes_rows_stays_tall():
    net = Net()
    mixed = reshape(reshape(net.linear(net.x, "w"), shape=(T, 2, 4)), shape=(T, 8))
    after = rewritten(net.done(y=take_rows(rms_norm(mixed, net.norm("n"), eps=1e-6), net.rows)))
    assert tall(after)["matmul"] == 1 and tall(after)["rms_norm"] == 1  # an output is taken as it is


@pytest.mark.parametrize("reader", ["output", "softmax", "other rows"])
def test_a_value_that_somebody_reads_whole_stays_tall(reader):
    net = Net()
    product = net.linear(net.x, "w")
    outputs = {"y": net.linear(take_rows(product, net.rows), "head")}
    if reader == "output":
        outputs["z"] = product
    elif reader == "softmax":
        outputs["z"] = softmax(product)
    else:
        outputs["z"] = net.linear(take_rows(product, net.trace.input("more", (L,), "i32")), "head2")
    program = net.done(**outputs)
    assert cut_rows(program) == program


def test_a_program_without_take_rows_stays_as_it_is():
    net = Net()
    program = net.done(y=net.linear(net.x, "w"))
    assert cut_rows(program) == program


@pytest.mark.parametrize("same", [True, False])
def test_rows_of_rows_are_taken_one_after_the_other(same):
    net = Net()
    again = net.rows if same else net.trace.input("again", (B,), "i32")
    first = take_rows(net.linear(net.x, "one"), net.rows)
    program = net.done(found=net.linear(take_rows(net.linear(first, "two"), again), "three"))
    after = cut_rows(program)
    verify(after)
    more = {} if same else {"again": [2, 0]}
    np.testing.assert_allclose(
        run(after, [2, 0, 1], **more)["found"], run(program, [2, 0, 1], **more)["found"], rtol=1e-12
    )
    assert not tall(after)["matmul"]
