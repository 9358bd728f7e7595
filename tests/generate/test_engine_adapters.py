"""Adapters in the engine: any mixture in one batch equals each alone, and a request keeps the version it began with."""

from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_adapters
from test_gguf_models import BLOCKED, write_model

import weft
from weft.errors import NotFoundError, UnsupportedError
from weft.generate import Engine, make_request
from weft.generate.admission import Admission

CFG = {**tiny.CONFIGS["llama-full-tied"], **BLOCKED}
KINDS = (
    tiny_adapters.PEFT,
    {**tiny_adapters.PEFT, "use_dora": True, "r": 20},
    {**tiny_adapters.PEFT, "r": 4},
    {**tiny_adapters.PEFT, "target_modules": ["v_proj", "down_proj"]},
)


def adapter_folder(tmp_path: Path, number: int) -> Path:
    kind = KINDS[number % len(KINDS)]
    return tiny_adapters.write_adapter(tmp_path / f"a{number}", CFG, kind, "f32", number + 1)


def loaded(tmp_path: Path, kind: str) -> weft.Model:
    path = tiny.write_folder(tmp_path / "m", CFG) if kind == "f32" else write_model(tmp_path / "m.gguf", CFG, kind)
    model = weft.load(str(path), threads=2)
    for number in range(4):
        model.adapters.load(f"a{number}", adapter_folder(tmp_path, number))
    return model


@pytest.mark.parametrize("kind", ["f32", "q4_0"])
def test_four_adapters_and_none_in_one_batch_equal_each_alone(tmp_path: Path, kind: str) -> None:
    model = loaded(tmp_path, kind)
    prompt = [int(i) for i in tiny.token_ids(CFG, 70)]
    names = [None, "a0", "a1", "a2", "a3"] * 3
    options = {"max_tokens": 12, "ignore_eos": True, "logprobs": 1, "temperature": 1.0}
    engine = Engine(model, step_tokens=40)
    asked = [make_request(prompt[: 40 + 2 * i], adapter=name, seed=i, **options) for i, name in enumerate(names)]
    handles = [engine.submit(request) for request in asked]
    together = [handle.result() for handle in handles]
    for request, result in zip(asked, together):
        alone = Engine(model, prefix_cache=False).submit(request).result()
        assert (alone.tokens, alone.logprobs) == (result.tokens, result.logprobs)
    assert len({result.logprobs for result in together}) == len(names)


def test_prefixes_are_not_shared_between_adapters(tmp_path: Path) -> None:
    model = loaded(tmp_path, "f32")
    prompt = [int(i) for i in tiny.token_ids(CFG, 70)]
    for name in (None, "a0", "a1"):
        fresh = model.generate(prompt, adapter=name, max_tokens=1)
        again = model.generate(prompt, adapter=name, max_tokens=1)
        assert (fresh.usage.cached_tokens, again.usage.cached_tokens) == (0, 64)


def test_replacing_an_adapter_under_load_gives_no_wrong_answer(tmp_path: Path) -> None:
    model = loaded(tmp_path, "f32")
    prompt = [int(i) for i in tiny.token_ids(CFG, 9)]
    options = {"max_tokens": 4, "ignore_eos": True, "logprobs": 0}
    folders = [adapter_folder(tmp_path, number) for number in range(4)]
    expected = [model.generate(prompt, adapter=f"a{number}", **options).logprobs for number in range(4)]
    model.adapters.load("live", folders[0])
    handles = []
    for number in range(60):  # soak.py has a thousand
        model.adapters.replace("live", folders[number % 4])
        handles.append((number % 4, model.engine.submit(make_request(prompt, adapter="live", **options))))
        model.engine.step()
    for number, handle in handles:
        assert handle.result().logprobs == expected[number]
    model.adapters.unload("live")
    assert len(model.adapters) == 4 and model.engine.stats().running == 0
    with pytest.raises(NotFoundError, match="no adapter of this name is loaded: got 'live'"):
        model.generate(prompt, adapter="live")


def test_a_request_that_is_refused_holds_no_adapter(tmp_path: Path) -> None:
    model = loaded(tmp_path, "f32")
    prompt = [int(i) for i in tiny.token_ids(CFG, 9)]
    before = model.adapters.get("a0").index
    with pytest.raises(UnsupportedError, match="</think>"):
        model.engine.submit(make_request(prompt, adapter="a0", reasoning_budget=3))
    model.adapters.unload("a0")
    assert model.adapters.load("again", adapter_folder(tmp_path, 0)).index == before


def test_answers_of_a_request_whose_adapter_is_removed_meanwhile_hold_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tmp_path, "f32")
    index, hold = model.adapters.get("a0").index, Admission.hold_adapter

    def then_removed(admission: Admission, name: str | None) -> Any:
        held = hold(admission, name)
        model.adapters.unload("a0")
        return held

    monkeypatch.setattr(Admission, "hold_adapter", then_removed)
    request = make_request([int(i) for i in tiny.token_ids(CFG, 9)], adapter="a0", n=3, temperature=1.0)
    with pytest.raises(NotFoundError, match="no adapter of this name is loaded: got 'a0'"):
        model.engine.submit(request)
    assert model.adapters.load("again", adapter_folder(tmp_path, 0)).index == index and model.engine.waiting == 0
