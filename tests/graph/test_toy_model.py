"""A traced model gives the same logits in one step, in chunks, token by token, and without a state."""

from pathlib import Path

import numpy as np
import pytest
from toy_model import PAGES, VOCAB, Toy, states, step

from weft.backends import backends_present
from weft.backends.reference import ReferenceBackend
from weft.graph.passes import optimise
from weft.graph.plan import arena, plan
from weft.graph.text import to_text
from weft.ops.tolerance import relative_error

GOLDEN = Path(__file__).parent.parent / "golden" / "programs" / "toy.txt"
LENGTHS = (70, 1, 33)  # over two pages, one token, one past a page


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(5)
    return [rng.integers(0, VOCAB, length).astype(np.int32) for length in LENGTHS]


@pytest.fixture(scope="module")
def stateless(prompts):
    """Logits of every token of every prompt, computed without a state: the meaning."""
    toy = Toy(paged=False)
    executable = ReferenceBackend().compile(plan(toy.program()), toy.weights(), {})
    logits = executable.run(step(prompts, [0] * 3, LENGTHS, paged=False))["logits"]
    return np.split(logits, np.cumsum(LENGTHS)[:-1])


def run_in_chunks(prompts, size, program=None, backend=None):
    """Every prompt at once, at most `size` tokens of each per step; logits per prompt."""
    toy, backend = Toy(paged=True), backend or ReferenceBackend()
    program = plan(program or toy.program())
    kind = "f64" if backend.name == "reference" else "f32"
    own = {name: backend.state_from(state) for name, state in states(PAGES * len(prompts), kind).items()}
    executable = backend.compile(program, toy.weights(), own)
    done, logits = [0] * len(prompts), [[] for _ in prompts]
    while any(start < len(ids) for start, ids in zip(done, prompts)):
        ends = [min(start + size, len(ids)) for start, ids in zip(done, prompts)]
        rows = executable.run(step(prompts, done, ends, paged=True))["logits"]
        for b, part in enumerate(np.split(rows, np.cumsum([e - s for s, e in zip(done, ends)])[:-1])):
            logits[b].append(part)
        done = ends
    return [np.concatenate(parts) for parts in logits]


@pytest.mark.parametrize("size", [100, 32, 7, 1])
def test_chunks_give_the_logits_of_one_step(prompts, stateless, size):
    for got, want in zip(run_in_chunks(prompts, size), stateless):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())


def test_optimising_keeps_the_logits(prompts, stateless):
    optimised = optimise(Toy(paged=True).program())
    assert len(optimised.body) < len(Toy(paged=True).program().body)
    for got, want in zip(run_in_chunks(prompts, 13, optimised), stateless):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())


@pytest.mark.parametrize("backend", backends_present()[1:], ids=repr)
@pytest.mark.parametrize("size", [100, 7])
def test_every_backend_gives_these_logits(prompts, stateless, backend, size):
    for got, want in zip(run_in_chunks(prompts, size, optimise(Toy(paged=True).program()), backend), stateless):
        assert relative_error(got, want) < 1e-5


@pytest.mark.parametrize("backend", backends_present()[1:], ids=repr)
def test_every_backend_gives_the_same_bits_in_chunks(prompts, backend):
    for whole, parts in zip(run_in_chunks(prompts, 100, backend=backend), run_in_chunks(prompts, 7, backend=backend)):
        np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("backend", backends_present()[1:], ids=repr)
@pytest.mark.parametrize("compute", ["f32", "int8"])
def test_every_backend_runs_quantised_weights(prompts, backend, compute):
    toy = Toy(paged=False, dtype="q8_0")
    program = plan(optimise(toy.program(), compute=compute))
    inputs = step(prompts, [0] * 3, LENGTHS, paged=False)
    want, got = (b.compile(program, toy.weights(), {}).run(inputs)["logits"] for b in (ReferenceBackend(), backend))
    # A sum that falls between two codes may round either way: one step in 127 of one value, seldom.
    assert relative_error(got, want) < (1e-5 if compute == "f32" else 1e-2)


def test_a_sequence_does_not_see_its_neighbours(prompts, stateless):
    for ids, want in zip(prompts, stateless):
        alone = run_in_chunks([ids], 40)[0]
        np.testing.assert_allclose(alone, want, rtol=0, atol=1e-12 * np.abs(want).max())


def test_prints_the_golden_program():
    printed = to_text(plan(optimise(Toy(paged=True).program())))
    assert printed == GOLDEN.read_text(), (
        "run python tests/graph/toy_model.py > tests/golden/programs/toy.txt and review"
    )


def test_depth_costs_no_memory():
    """A second layer reuses the slots of the first: the arena is that of the widest point of one layer."""
    planned = plan(optimise(Toy(paged=True).program()))
    per_token = sum(v.spec.at(T=1, B=0, L=0).nbytes for v in planned.of_kind("buffer") if "T" in str(v.shape[0]))
    bytes_ = arena(planned).T
    assert bytes_ < per_token / 4
