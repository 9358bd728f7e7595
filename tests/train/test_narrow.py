"""Training in half precision and bfloat16: near f32, the same bits however the work is cut, and refused by name."""

from hashlib import sha256
from itertools import product

import gradient_cases
import numpy as np
import pytest
import tiny

from weft import train
from weft.backends.cpu.backend import CpuBackend, fast_at, levels_present
from weft.errors import InputError, UnsupportedError
from weft.graph.passes.lower_narrow import lower_narrow
from weft.graph.single import single
from weft.ops.registry import catalogue
from weft.train import Learner, Lesson, kept
from weft.train.learner import NEAR, Choice, choose_compute, distance

HALVES = "f16" in fast_at(levels_present()[-1])
NARROW = ("f16", "bf16") if HALVES else ("bf16",)
# Of the f32 gradient's norm: roundings of 2^-11 and 2^-8 on the way through a few layers.
DISTANCE = {"f16": 1e-2, "bf16": 2e-2}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    made = {}

    def base(name, dtype="f32"):
        key = f"{name}-{dtype}"
        if key not in made:
            cfg = tiny.CONFIGS[name]
            cfg = cfg if dtype == "f32" else gradient_cases.wide(cfg)
            made[key] = gradient_cases.checkpoint_of(tmp_path_factory.mktemp(key), cfg, dtype)
        return made[key]

    return base


def learner_of(base, **options):
    learner = Learner(base, gradient_cases.changes(base), **options)
    return learner, gradient_cases.parameters(learner.shapes), gradient_cases.lessons(base.config)


@pytest.mark.parametrize("compute", NARROW)
@pytest.mark.parametrize(
    "name, dtype", [("llama-grouped", "f32"), ("llama-grouped", "q4_1"), ("qwen3_moe", "f32"), ("gemma2", "f32")]
)
def test_gradients_are_near_those_of_f32(bases, name, dtype, compute):
    learner, trained, lessons = learner_of(bases(name, dtype))
    loss, wanted = learner.gradients(lessons, trained, learner.no_gradient())
    learner.use(compute)
    narrow, found = learner.gradients(lessons, trained, learner.no_gradient())
    assert 0 < distance(found, wanted) <= DISTANCE[compute]
    assert 0 < abs(narrow / loss - 1) <= 0.1 * DISTANCE[compute]
    assert learner.losses(lessons, trained) == narrow


@pytest.mark.parametrize("compute", NARROW)
def test_neither_threads_nor_cuts_nor_recomputation_change_a_bit(bases, compute):
    found = set()
    for threads, share in ((1, 0), (2, 1), (4, 0.5)):
        learner, trained, lessons = learner_of(bases("qwen3_moe"), threads=threads, compute=compute)
        learner.again = round(share * learner.parts)
        for cut in (1, len(lessons)):
            sums = learner.no_gradient()
            for first in range(0, len(lessons), cut):
                _, sums = learner.gradients(lessons[first : first + cut], trained, sums)
            found.add(sha256(b"".join(sums[key].tobytes() for key in sorted(sums))).hexdigest())
    assert len(found) == 1


@pytest.mark.parametrize("compute", NARROW)
@pytest.mark.parametrize("power", [-60, 40])
def test_gradients_of_any_size_lose_nothing(bases, compute, power):
    """A power of two that all gradients have in common comes out as it went in: none under- or overflows halves."""
    learner, trained, lessons = learner_of(bases("llama-grouped"), compute=compute)
    scaled = [Lesson(lesson.ids, np.ldexp(lesson.shares, power)) for lesson in lessons]
    _, wanted = learner.gradients(lessons, trained, learner.no_gradient())
    _, found = learner.gradients(scaled, trained, learner.no_gradient())
    assert all(np.array_equal(np.ldexp(wanted[name], power), found[name]) for name in wanted)
    assert all(wanted[name].any() for name in wanted)


@pytest.mark.parametrize("kind, compute", [("lora", NARROW[0]), ("lora", "bf16"), ("dpo", NARROW[0])])
def test_a_training_follows_that_in_f32(chatty, chats, kind, compute):
    rows = chats
    if kind == "dpo":
        rows = [{"prompt": f"say {i}", "chosen": f" it is {i}", "rejected": f" no {i}{i}"} for i in range(12)]
    options = {"rate": 0.01, "batch_tokens": 200, "steps": 20}
    curves = []
    for arithmetic_ in ("f32", compute):
        training = getattr(train, kind)(chatty, rows, compute=arithmetic_, **options)
        curves.append([step.loss for step in training])
        assert training.options.compute == training.learner.compute == arithmetic_
    first, other = np.asarray(curves)
    assert first[-1] < 0.8 * first[0]
    assert np.abs(other - first).max() <= 0.01 * first[0]
    assert (other != first).any()


def test_what_chooses_experts_stays_f32(bases):
    learner, _, _ = learner_of(bases("qwen3_moe"))
    lowered = lower_narrow(learner._base, "bf16")
    products = {str(instr.inputs[1]): instr.op for instr in lowered.body if instr.op.startswith("matmul")}
    routers = {name for name, op in products.items() if op == "matmul"}
    assert routers == {name for name in products if name.endswith(gradient_cases.ROUTERS)} != set()
    assert sum(instr.op == "head_loss_narrow" for instr in lowered.body) == 1


def test_f16_is_refused_where_there_is_no_half_precision(bases, chatty, chats):
    base = bases("llama-grouped")
    for level in levels_present():
        if "f16" in fast_at(level):
            assert learner_of(base, level=level, compute="f16")[0].compute == "f16"
            continue
        with pytest.raises(UnsupportedError, match=f"f16 needs half-precision arithmetic, which cpu-{level} does not"):
            learner_of(base, level=level, compute="f16")
    with pytest.raises(InputError, match="must be one of f32, f16, bf16"):
        learner_of(base, compute="int8")
    with pytest.raises(InputError, match="must be one of f32, f16, bf16, auto"):
        train.lora(chatty, chats, compute="half")


def test_all_levels_have_the_bits_of_bf16():
    """And rows have them in any batch, of any team; halves have bits of their own at the levels that have them."""
    rng = np.random.default_rng(8)
    x, matrix = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 300), (330, 300)))
    grad = rng.standard_normal((70, 330)).astype(np.float32)
    for name, rows in (("matmul_narrow", x), ("matmul_back_narrow", grad)):
        op = catalogue()[name]
        for to in ("f16", "bf16"):
            found = {}
            for level, threads, count in product(levels_present(), (1, 3), (1, 17, 70)):
                bound = single(op, (rows[:count], matrix), {"to": to})
                got = CpuBackend(level, threads).compile(bound.program, bound.weights, {}).run(bound.inputs)["out0"]
                key = level if to == "f16" else "all"
                assert found.setdefault(key, got[:1]).tobytes() == got[:1].tobytes()
                assert count < 17 or found.setdefault(f"{key} 17", got[:17]).tobytes() == got[:17].tobytes()


def test_auto_takes_what_is_faster_and_near(bases, monkeypatch):
    learner, trained, lessons = learner_of(bases("llama-grouped"))
    choice = choose_compute(learner, lessons, trained)
    assert choice.compute == learner.compute and choice.distance <= NEAR
    if not {"f16", "bf16"} & learner.backend.fast:
        assert choice.compute == choice.measured == "f32"
        return
    assert choice.distance > 0 and choice.measured in str(choice)
    monkeypatch.setattr(train.learner, "FASTER", 0.0)
    assert choose_compute(learner, lessons, trained).compute == learner.compute == choice.measured
    monkeypatch.setattr(train.learner, "NEAR", 0.0)
    assert choose_compute(learner, lessons, trained).compute == learner.compute == "f32"
    monkeypatch.setattr(train.learner, "NEAR", 1.0)
    monkeypatch.setattr(train.learner, "FASTER", 1e9)
    assert choose_compute(learner, lessons, trained).compute == "f32"


def test_a_run_goes_on_with_the_arithmetic_it_began_with(chatty, chats, tmp_path, monkeypatch):
    options = {"rate": 0.01, "batch_tokens": 200, "steps": 3, "save_every": 0.0, "output": tmp_path / "run"}
    measured = iter([Choice("bf16", "bf16", 2.0, 0.01)])
    monkeypatch.setattr(train.training, "choose_compute", lambda *given: next(measured))  # once, not when it goes on
    for number, _ in enumerate(begun := train.lora(chatty, chats, compute="auto", **options)):
        if number == 1:
            break
    assert begun.options.compute == "bf16" == kept.compute(tmp_path / "run")
    with pytest.raises(InputError, match="was 'bf16' when this run began"):
        train.lora(chatty, chats, resume=True, **options)
    resumed = train.lora(chatty, chats, compute="auto", resume=True, **options)
    assert resumed.learner.compute == "bf16" and resumed.chosen is None
    assert [step.number for step in resumed][-1] == 3
    whole = train.lora(chatty, chats, compute="bf16", **{**options, "output": tmp_path / "whole"})
    assert len(list(whole)) == 3
    files = [tmp_path / name / "adapter_model.safetensors" for name in ("run", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("name", ["head_loss_narrow", "head_distill_narrow"])
def test_rows_of_a_head_have_their_bits_in_any_batch_of_any_team(name):
    rng, op = np.random.default_rng(9), catalogue()[name]
    x, matrix = (rng.standard_normal(shape).astype(np.float32) for shape in ((300, 70), (600, 70)))
    given = [rng.integers(0, 600, 300).astype(np.int32), rng.random(300, np.float32)]
    if name == "head_distill_narrow":
        given += [rng.integers(0, 600, (300, 4)).astype(np.int32), rng.random((300, 4), np.float32)]
    for level, to in product(levels_present(), ("f16", "bf16")):
        if to == "f16" and to not in fast_at(level):
            continue
        wanted: list[np.ndarray] = []
        for threads, count in product((1, 3), (300, 17, 1)):
            operands = (x[:count], matrix, *(one[:count] for one in given))
            bound = single(op, operands, {"to": to, "softcap": 20.0})
            got = CpuBackend(level, threads).compile(bound.program, bound.weights, {}).run(bound.inputs)
            found = [got["out0"], got["out1"]]
            wanted = wanted or found
            assert all(one.tobytes() == other[:count].tobytes() for one, other in zip(found, wanted, strict=True))
