"""LoRA on the matrices of experts: chosen by name, trained with the same bits however a batch is cut, served, taken up
again, and refused where PEFT has no words for it. Gradients and what peft loads have goldens of their own."""

import json

import gradient_cases
import numpy as np
import pytest
import tiny
from tiny_expert_adapters import each

from weft.errors import InputError, UnsupportedError, WeightError
from weft.graph.passes.learn import DOWN, LowRank
from weft.runtime import Decoder, open_checkpoint
from weft.train import Learner, Lesson, Options, Run
from weft.train.adapter import read_start, write_adapter
from weft.train.merge import _changed
from weft.train.targets import changes_of, check_dropout, choose, products
from weft.weights.adapters import open_adapter

LESSONS = [
    Lesson((np.arange(length) * 7 % 29 + 3).astype(np.int32), np.ones(length, np.float32)) for length in (20, 3, 11)
]


def opened(tmp_path, name="qwen3_moe"):
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path / "base", tiny.CONFIGS[name]))
    return checkpoint, products(checkpoint)


def learner_of(checkpoint, weights, targets="experts", **more):
    modules = choose(weights, targets, model_type=checkpoint.model_type)
    return Learner(checkpoint, changes_of(weights, modules, LowRank(2, 1.5), checkpoint.model_type), **more)


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "nemotron_h-experts", "granitemoehybrid-experts"])
def test_what_was_trained_is_served_and_taken_up_again(tmp_path, name):
    checkpoint, weights = opened(tmp_path, name)
    learner = learner_of(checkpoint, weights)
    run = Run(learner, LESSONS, Options(rate=0.02, steps=4))
    losses = [step.loss for step in run]
    assert losses[-1] < losses[0]
    run.save(tmp_path / "a", weights=weights)
    decoder = Decoder(checkpoint, context=64)
    adapter = decoder.adapters.load("learnt", tmp_path / "a")
    for lesson in LESSONS:
        logits = decoder.logits(lesson.ids, adapter=adapter).astype(np.float64)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        served = -float(logits[np.arange(len(lesson.ids) - 1), lesson.ids[1:]].sum())
        assert abs(served / learner.losses([lesson], run.parameters) - 1) <= 1e-5
    changes, parameters = read_start(tmp_path / "a", checkpoint, weights)
    assert changes == learner.changes
    assert all(np.array_equal(parameters[name], run.parameters[name]) for name in run.parameters)


def test_cuts_threads_and_recomputation_change_no_bit(tmp_path):
    checkpoint, weights = opened(tmp_path)
    cfg, found = tiny.CONFIGS["qwen3_moe"], []
    for threads, again, cut in ((1, 0, 3), (2, 0, 1), (2, 99, 2)):
        learner = learner_of(checkpoint, weights, "all-linear,experts", threads=threads)
        learner.again = min(again, learner.parts)
        parameters, sums = gradient_cases.parameters(learner.shapes), learner.no_gradient()
        lessons = gradient_cases.lessons(cfg)
        for first in range(0, len(lessons), cut):
            _, sums = learner.gradients(lessons[first : first + cut], parameters, sums)
        found.append(sums)
    assert any(value.ndim == 3 and value.any() for value in found[0].values())
    for other in found[1:]:
        assert all(np.array_equal(value, other[name]) for name, value in found[0].items())


def test_experts_are_chosen_by_their_name(tmp_path):
    _, weights = opened(tmp_path, "qwen2_moe")

    def chosen(targets):
        return {".".join(name.split(".")[3:]) for name in choose(weights, targets, model_type="qwen2_moe")}

    both = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}
    assert chosen("experts") == chosen("mlp.experts") == both
    assert chosen("experts.down_proj") == {"mlp.experts.down_proj"}
    assert chosen("down_proj") == {"mlp.shared_expert.down_proj"}
    assert chosen(r".*\.experts\..*") == both
    linear = chosen("all-linear")
    assert not linear & both and chosen("all-linear,experts") == chosen(["all-linear", "experts"]) == linear | both
    assert not chosen(r".*_proj") & both
    with pytest.raises(InputError, match=r"must fit modules of the model: got 'experts.up'; did you mean experts"):
        chosen("experts.up")


def test_the_config_names_parameters(tmp_path):
    checkpoint, weights = opened(tmp_path, "mixtral")
    learner = learner_of(checkpoint, weights, "q_proj,experts")
    Run(learner, LESSONS, Options(steps=1)).save(tmp_path / "a", weights=weights)
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj"]
    assert config["target_parameters"] == ["experts.down_proj", "experts.gate_up_proj"]
    modules = open_adapter(tmp_path / "a").modules
    assert modules["model.layers.0.mlp.experts.gate_up_proj"].matrices == 8
    one = learner_of(checkpoint, weights, r"model\.layers\.1\.mlp\.experts\.down_proj")
    Run(one, LESSONS, Options(steps=1)).save(tmp_path / "b", weights=weights)
    config = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    assert config["target_parameters"] == ["model.layers.1.mlp.experts.down_proj"]


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_modules_of_single_experts_are_taken_up(tmp_path, name):
    """As adapters of older checkpoints have them; of some experts only, or with DoRA, they cannot be trained."""
    checkpoint, weights = opened(tmp_path, name)
    cfg = tiny.CONFIGS[name]
    count = cfg.get("num_experts") or cfg["num_local_experts"]
    own = {"target_modules": ["w1", "w2", "w3"]} if name == "mixtral" else {}
    folder = each(tmp_path / "each", cfg, 1, range(count), **own)
    changes, parameters = read_start(folder, checkpoint, weights)
    assert len(changes) == 3 * cfg["num_hidden_layers"]
    write_adapter(tmp_path / "a", changes, parameters, weights=weights, model_type=name)
    ids, decoder = tiny.token_ids(cfg, 11), Decoder(checkpoint, compute="f32", kv_dtype="f32")
    logits = [
        decoder.logits(ids, adapter=decoder.adapters.load(label, path))
        for label, path in (("each", folder), ("all", tmp_path / "a"))
    ]
    assert np.abs(logits[0] - logits[1]).max() <= 1e-5
    with pytest.raises(UnsupportedError, match=f"2 experts have matrices, and the model has {count}"):
        read_start(each(tmp_path / "some", cfg, 1, (1, 4), **own), checkpoint, weights)
    dora = each(tmp_path / "dora", cfg, 1, range(count), use_dora=True, **own)
    with pytest.raises(UnsupportedError, match=r"has magnitude \(DoRA\); only plain LoRA can be trained on; serve it"):
        read_start(dora, checkpoint, weights)


def test_what_experts_cannot_have_is_refused(tmp_path):
    checkpoint, weights = opened(tmp_path)
    modules = choose(weights, "experts", model_type="qwen3_moe")
    with pytest.raises(InputError, match="dropout must be 0 where experts are adapted: PEFT has no dropout for them"):
        check_dropout(modules, 0.1)
    with pytest.raises(UnsupportedError, match="leave dropout out where experts are adapted"):
        learner_of(checkpoint, weights, dropout=0.1)
    run = Run(learner_of(checkpoint, weights), LESSONS, Options(steps=1))
    run.save(tmp_path / "a", weights=weights)
    with pytest.raises(UnsupportedError, match="an adapter of experts cannot be merged; serve it beside its base"):
        _changed(checkpoint, open_adapter(tmp_path / "a").modules, None)
    smaller = {**tiny.CONFIGS["qwen3_moe"], "num_experts": 8}
    other = open_checkpoint(tiny.write_folder(tmp_path / "other", smaller))
    with pytest.raises(WeightError, match=r"is for 12 matrices \[80, 48\], the model has 8 of \[80, 48\]"):
        read_start(tmp_path / "a", other, products(other))
    bad = {name: value.copy() for name, value in run.parameters.items()}
    next(value for name, value in bad.items() if name.startswith(DOWN))[0, 0, 0] = np.nan
    write_adapter(tmp_path / "b", run.learner.changes, bad, weights=weights, model_type="qwen3_moe")
    with pytest.raises(WeightError, match="holds numbers that are not finite"):
        read_start(tmp_path / "b", checkpoint, weights)
