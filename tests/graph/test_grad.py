"""Gradients of whole models, against differences of their loss in float64."""

from itertools import pairwise

import numpy as np
import pytest
import tiny

from weft import nn, ops
from weft.backends.reference import ReferenceBackend
from weft.errors import InputError, UnsupportedError
from weft.graph import Trace
from weft.graph.grad import differentiate
from weft.graph.passes import cut_rows, dead_code
from weft.graph.passes.learn import LowRank, loss_seeds, with_lora, with_loss
from weft.graph.tensor import B, L, T
from weft.graph.verify import verify
from weft.models import model_module
from weft.nn.step import TracedStep
from weft.runtime import open_checkpoint

PAGED = [name for name, cfg in tiny.CONFIGS.items() if tiny.decodes(cfg) and not tiny.recurs(cfg)]
LENGTHS = (9, 1, 6)
BACKEND = ReferenceBackend()


class Learning:
    """The program of a model's loss with a change of rank 3 on all its products but the head, and its weights."""

    def __init__(self, folder, cfg):
        checkpoint = open_checkpoint(tiny.write_folder(folder, cfg))
        module = model_module(cfg["model_type"])
        with Trace(cfg["model_type"]) as trace:
            scope = nn.Scope(trace, checkpoint.stored)
            trace.output("logits", module.forward(scope, nn.read_config(module.Config, cfg), TracedStep(trace)))
        program = cut_rows(dead_code(trace.program()))
        products = {str(instr.inputs[1]) for instr in program.body if instr.op == "matmul"}
        self.changed = sorted(name for name in products if ".layers." in name)
        self.program = with_loss(with_lora(program, {name: LowRank(3, 0.5) for name in self.changed}))
        verify(self.program)
        weights, wanted = BACKEND.weights(), BACKEND.layouts(self.program)
        weights.load(wanted, checkpoint, trace.constants).finish()
        self.bound = weights.bound(wanted)

    def run(self, program, given):
        names = {value.name for value in program.weights}
        bound = {name: value for name, value in self.bound.items() if name in names}
        return BACKEND.compile(program, bound, {}).run({value.name: given[value.name] for value in program.inputs})


def numbers(program, rng):
    """Values of all inputs: three texts, of which some tokens are targets."""
    tokens = sum(LENGTHS)
    rows = np.asarray([0, 3, 8, 9, 11, 15], np.int32)
    given = {
        "ids": rng.integers(0, 30, tokens).astype(np.int32),
        "positions": np.concatenate([np.arange(n) for n in LENGTHS]).astype(np.int32),
        "segments": np.cumsum([0, *LENGTHS]).astype(np.int32),
        "rows": rows,
        "targets": rng.integers(0, 30, len(rows)).astype(np.int32),
        "shares": rng.uniform(0.1, 1.0, len(rows)),
    }
    for value in program.inputs:
        if value.name not in given:
            given[value.name] = rng.standard_normal(value.shape) * 0.3
    return given


def trained(program):
    return [value.name for value in program.inputs if value.name.startswith(("down.", "up."))]


# At the ends of a clamped gate the loss has no slope, and a step may cross one.
@pytest.mark.parametrize("name", [name for name in PAGED if "clamped" not in name])
def test_gradients_are_the_slopes_of_the_loss(tmp_path, name):
    model = Learning(tmp_path, tiny.CONFIGS[name])
    rng = np.random.default_rng(3)
    given = numbers(model.program, rng)
    names = trained(model.program)
    assert len(names) == 2 * len(model.changed) > 0
    program = differentiate(model.program, names, seeds=loss_seeds(model.program))
    verify(program)
    given.update({f"into.{key}": np.zeros(given[key].shape) for key in names})
    found = model.run(program, given)
    np.testing.assert_allclose(found["loss"], model.run(model.program, given)["loss"], rtol=1e-12)
    along = {key: rng.standard_normal(given[key].shape) for key in names}

    def loss(step):
        moved = {**given, **{key: given[key] + step * along[key] for key in names}}
        return float(model.run(model.program, moved)["loss"].sum())

    step = 1e-5
    slope = (8 * (loss(step) - loss(-step)) - (loss(2 * step) - loss(-2 * step))) / (12 * step)
    analytic = sum(float(np.sum(found[f"grad.{key}"] * along[key])) for key in names)
    size = sum(float(np.linalg.norm(found[f"grad.{key}"]) * np.linalg.norm(along[key])) for key in names)
    assert abs(slope - analytic) <= 1e-8 * size, (slope, analytic)


def test_a_batch_may_be_cut_into_steps(tmp_path):
    """The gradient of three texts in one step is that of three steps, each adding to what came before."""
    model = Learning(tmp_path, tiny.CONFIGS["llama-grouped"])
    rng = np.random.default_rng(5)
    given, names = numbers(model.program, rng), trained(model.program)
    program = differentiate(model.program, names, seeds=loss_seeds(model.program))
    sums = {f"into.{key}": np.zeros(given[key].shape) for key in names}
    whole = model.run(program, {**given, **sums})
    starts = given["segments"]
    for first, last in pairwise(starts):
        mine = (given["rows"] >= first) & (given["rows"] < last)
        part = {key: given[key][first:last] for key in ("ids", "positions")}
        part |= {"segments": np.asarray([0, last - first], np.int32), "rows": given["rows"][mine] - first}
        part |= {"targets": given["targets"][mine], "shares": given["shares"][mine]}
        found = model.run(program, {**given, **part, **sums})
        sums = {f"into.{key}": found[f"grad.{key}"] for key in names}
    for key in names:
        np.testing.assert_allclose(sums[f"into.{key}"], whole[f"grad.{key}"], rtol=1e-12, atol=1e-15)


def test_inputs_of_a_step_have_gradients_of_their_size():
    with Trace("toy") as trace:
        x = trace.input("x", (T, 8))
        y = trace.input("y", (8,))
        trace.input("segments", (B + 1,), "i32")
        trace.output("out", (x * x + y) * 3.0)
    program = differentiate(trace.program(), ["x", "y"])
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((5, 8)), "y": rng.standard_normal(8), "seed.out": rng.standard_normal((5, 8))}
    given |= {"into.y": np.ones(8), "segments": np.asarray([0, 2, 5], np.int32)}
    found = BACKEND.compile(program, {}, {}).run(given)
    np.testing.assert_allclose(found["grad.x"], 6 * given["x"] * given["seed.out"])
    np.testing.assert_allclose(found["grad.y"], 1 + 3 * given["seed.out"].sum(axis=0))


def test_what_cannot_be_differentiated_is_named(tmp_path):
    model = Learning(tmp_path, tiny.CONFIGS["llama-grouped"])
    with pytest.raises(InputError, match="must be inputs of the program"):
        differentiate(model.program, ["model.norm.weight"])
    with pytest.raises(InputError, match="nothing that is differentiated depends on shares"):
        differentiate(model.program, ["shares"], seeds=loss_seeds(model.program))
    with pytest.raises(InputError, match="must be weights that rows are multiplied by"):
        with_lora(model.program, {"model.norm.weight": LowRank(3, 1.0)})
    with Trace("stateful") as trace:
        x = trace.input("x", (T, 4))
        taps = trace.weight("taps", (4, 3))
        slots, segments = trace.input("slots", (B, 2), "i32"), trace.input("segments", (B + 1,), "i32")
        trace.output("y", ops.causal_conv(x, taps, trace.conv("conv.0", (4, 3)), slots, segments))
    with pytest.raises(UnsupportedError, match="keeps a state between steps"):
        differentiate(trace.program(), ["x"])


def test_a_head_with_a_bias_is_refused():
    with Trace("biased") as trace:
        x, rows = trace.input("x", (T, 8)), trace.input("rows", (L,), "i32")
        y = ops.matmul(ops.take_rows(x, rows), trace.weight("head", (20, 8)), trace.weight("bias", (20,)))
        trace.output("logits", y)
    with pytest.raises(UnsupportedError, match="cannot be trained through: logits are made by matmul"):
        with_loss(trace.program())
