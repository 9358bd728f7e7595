"""A training from files to files: validation, the best kept, early stopping, adapters to start from, resumed runs."""

import hashlib
import json

import numpy as np
import pytest
import tiny
from tiny_chat import write_chat_model

from weft import train
from weft.errors import InputError
from weft.runtime import Decoder, open_checkpoint
from weft.train import kept
from weft.train.adapter import read_start
from weft.train.measure import evaluate
from weft.weights.adapters import open_adapter

FAST = {"rate": 0.01, "batch_tokens": 200, "epochs": 4}


def digest(folder):
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_a_training_writes_an_adapter_and_its_report(chatty, chat_file, tmp_path):
    training = train.lora(chatty, chat_file, output=tmp_path / "a", valid=0.2, **FAST)
    steps = list(training)
    assert [step.number for step in steps] == list(range(1, training.run.steps + 1))
    assert steps[-1].loss < 0.6 * steps[0].loss and all(step.tokens > step.targets > 0 for step in steps)
    assert sum(step.tokens for step in steps) == 4 * training.data.tokens
    checks = [step.valid for step in steps if step.valid is not None]
    assert steps[-1].valid is not None and 5 <= len(checks) <= 10
    best, found = training.run.best
    assert best.valid == min(checks)
    written = open_adapter(tmp_path / "a").modules
    assert len(written) == 14 and all(module.rank == 8 and module.scale == 2 for module in written.values())
    _, parameters = read_start(tmp_path / "a", training.base.checkpoint, training.base.weights)
    assert all(np.array_equal(parameters[name], value) for name, value in found.items())
    assert digest(tmp_path / "a" / "last") != digest(tmp_path / "a") or best.number == len(steps)
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names >= {"loss.svg", "report.html", "last", "sample.jsonl"} and kept.FILE not in names


def test_the_served_loss_is_the_validation_loss(chatty, chat_file, chats, tmp_path):
    training = train.lora(chatty, chat_file, output=tmp_path / "a", valid=chats[:5], **FAST)
    last = list(training)[-1]
    measured = evaluate(chatty, chats[:5], adapter=tmp_path / "a" / "last", compute="f32")
    assert abs(measured.loss / last.valid - 1) <= 1e-5
    assert measured.targets == training.valid.targets and 0 < measured.accuracy <= 1
    assert evaluate(chatty, chats[:5]).loss > 2 * measured.loss


def test_modules_are_trained_in_full_and_served(chatty, chat_file, chats, tmp_path):
    """As PEFT's modules_to_save; each training has the bits of the one before, however much memory it has."""
    more = {"modules_to_save": ["embed_tokens", "layers.1.self_attn.o_proj"], "valid": chats[:5], **FAST}
    training = train.lora(chatty, chat_file, output=tmp_path / "a", threads=1, **more)
    last = list(training)[-1]
    measured = evaluate(chatty, chats[:5], adapter=tmp_path / "a" / "last", compute="f32")
    assert abs(measured.loss / last.valid - 1) <= 1e-5
    written, start = open_adapter(tmp_path / "a" / "last").modules, training.learner.start
    assert len(written) == 15 and start.keys() == set(training.learner.weights)
    for name, value in start.items():
        module = written[name.removesuffix(".weight")]
        assert module.down is None and np.array_equal(module.weight.numpy(), training.run.parameters[name])
        assert not np.array_equal(module.weight.numpy(), value)
    list(train.lora(chatty, chat_file, output=tmp_path / "b", memory=4_000_000, threads=2, **more))
    assert digest(tmp_path / "a" / "last") == digest(tmp_path / "b" / "last")


def test_neither_threads_nor_memory_change_a_bit(chatty, chat_file, tmp_path):
    found = set()
    for number, more in enumerate(({"threads": 1}, {"threads": 2}, {"memory": 2_000_000}, {"memory": 20_000_000})):
        training = train.lora(chatty, chat_file, output=tmp_path / f"{number}", **FAST, **more)
        list(training)
        found.add(digest(tmp_path / f"{number}"))
        assert "memory" not in more or sum(training.memory_plan(training.run.step_tokens).values()) <= more["memory"]
    assert len(found) == 1


@pytest.mark.parametrize("stop", [1, 5])
def test_a_stopped_run_goes_on_bit_for_bit(chatty, chat_file, tmp_path, stop):
    options = {**FAST, "valid": 0.2, "steps": 9, "valid_every": 2}
    whole = train.lora(chatty, chat_file, output=tmp_path / "whole", **options)
    history = list(whole)
    first = train.lora(chatty, chat_file, output=tmp_path / "cut", **options)
    for step in first:
        if step.number == stop:
            break
    first.keep()
    again = train.lora(chatty, chat_file, output=tmp_path / "cut", resume=True, **options)
    assert again.run.done == stop
    assert list(again) == history[stop:] and again.run.history == history
    for folder in ("", "last"):
        assert digest(tmp_path / "cut" / folder) == digest(tmp_path / "whole" / folder)


def test_a_run_goes_on_only_with_what_it_began_with(chatty, chat_file, chats, tmp_path):
    training = train.lora(chatty, chat_file, output=tmp_path / "a", **FAST)
    next(iter(training))
    training.keep()

    def again(model=chatty, data=chat_file, **more):
        return train.lora(model, data, output=tmp_path / "a", resume=True, **{**FAST, **more})

    wider = write_chat_model(tmp_path / "other.gguf", special=["<x>"])
    for call, what in (
        (lambda: again(model=wider), "the base model is not the one that this run began with"),
        (lambda: again(data=chats[:-1]), "the data is not the one that this run began with"),
        (lambda: again(valid=0.1), "the data is not the one"),
        (lambda: again(rate=0.02), "rate was 0.01 when this run began: got 0.02"),
        (lambda: again(rank=4), "rank was 8 when this run began: got 4"),
        (lambda: again(seed=1), "seed was 0 when this run began: got 1"),
        (
            lambda: train.lora(chatty, chat_file, output=tmp_path / "a", **FAST),
            "has a run that has not ended; go on with",
        ),
    ):
        with pytest.raises(InputError, match=what):
            call()
    assert again().run.done == 1


def test_early_stopping_keeps_the_best(chatty, chats, tmp_path):
    unlike = [{"prompt": "x", "completion": "zzzzzzzzzzzz"}]
    training = train.lora(
        chatty, chats, output=tmp_path / "a", valid=unlike, valid_every=1, patience=2, **{**FAST, "rate": 0.05}
    )
    steps = list(training)
    assert training.run.stopped_early and len(steps) < training.run.steps
    checks = [step.valid for step in steps]
    assert min(checks) == checks[-3] == training.run.best[0].valid
    assert list(training.run) == []


def test_a_training_goes_on_from_an_adapter(chatty, chat_file, tmp_path):
    first = train.lora(chatty, chat_file, output=tmp_path / "a", rank=3, alpha=5, targets="q_proj,down_proj", **FAST)
    end = list(first)[-1]
    second = train.lora(chatty, chat_file, output=tmp_path / "b", start=tmp_path / "a", **FAST)
    begin = next(iter(second))
    assert begin.loss < 1.5 * end.loss and second.learner.changes == first.learner.changes
    with pytest.raises(InputError, match="rank is given by the adapter that the training starts from"):
        train.lora(chatty, chat_file, start=tmp_path / "a", rank=4)


def test_rslora_scales_by_the_root_and_says_so(chatty, chat_file, tmp_path):
    training = train.lora(
        chatty, chat_file, output=tmp_path / "a", rslora=True, rank=4, alpha=6, **{**FAST, "epochs": 1}
    )
    list(training)
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["use_rslora"] and (config["r"], config["lora_alpha"]) == (4, 6)
    assert {module.scale for module in open_adapter(tmp_path / "a").modules.values()} == {3.0}


@pytest.mark.parametrize(
    "targets, wanted",
    [
        ("q_proj", {"q_proj"}),
        (["self_attn.v_proj", "up_proj"], {"v_proj", "up_proj"}),
        (r"model\.layers\.1\..*_proj", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_targets_are_names_or_a_pattern(chatty, chat_file, tmp_path, targets, wanted):
    training = train.lora(chatty, chat_file, output=tmp_path / "a", targets=targets, **{**FAST, "epochs": 1})
    list(training)
    modules = open_adapter(tmp_path / "a").modules
    assert {name.rpartition(".")[2] for name in modules} == wanted
    layers = {name.split(".")[2] for name in modules}
    assert layers == ({"1"} if "layers" in targets else {"0", "1"})
    listed = json.loads((tmp_path / "a" / "adapter_config.json").read_text())["target_modules"]
    assert len(listed) == (len(modules) if "layers" in targets else len(wanted))


def test_parts_of_a_stored_matrix_are_written_as_one_module(tmp_path):
    """phi3 stores query, key and value as one matrix; the adapter that decoding loads is what was trained."""
    from weft.graph.passes.learn import LowRank
    from weft.train import Learner, Lesson, Options, Run
    from weft.train.targets import changes_of, choose, products

    folder = tiny.write_folder(tmp_path / "base", tiny.CONFIGS["phi3"])
    checkpoint = open_checkpoint(folder)
    weights = products(checkpoint)
    modules = choose(weights, "qkv_proj,gate_up_proj")
    assert any(":" in name for name in weights) and all(name.endswith(("qkv_proj", "gate_up_proj")) for name in modules)
    learner = Learner(checkpoint, changes_of(weights, modules, LowRank(2, 1.5)))
    lessons = [Lesson((np.arange(20) * 7 % 29).astype(np.int32), np.ones(20, np.float32))]
    run = Run(learner, lessons, Options(rate=0.02, steps=4))
    list(run)
    run.save(tmp_path / "a", weights=weights)
    decoder = Decoder(open_checkpoint(folder), context=64)
    adapter = decoder.adapters.load("learnt", tmp_path / "a")
    logits = decoder.logits(lessons[0].ids, adapter=adapter).astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    served = -float(logits[np.arange(19), lessons[0].ids[1:]].sum())
    assert abs(served / learner.losses(lessons, run.parameters) - 1) <= 1e-5
    changes, parameters = read_start(tmp_path / "a", checkpoint, weights)
    assert changes == learner.changes
    assert all(np.array_equal(parameters[name], run.parameters[name]) for name in run.parameters)
