"""A chat that leaves sampling settings unset gets those of the model's makers; a value that is given always wins."""

from pathlib import Path
from typing import Any

import pytest
from tiny_chat_folder import write_chat_folder

import weft
from weft.generate.choice.defaults import CHAT, OWN, model_defaults
from weft.weights.sources.catalog import entries, find

STATED = {"temperature": 1.5, "top_k": 3}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "generation, options",
    [
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ({"do_sample": True, "top_k": 64, "top_p": 0.95}, {"temperature": 1.0, "top_p": 0.95, "top_k": 64}),
        ({"repetition_penalty": 1.1, "min_p": 0.1}, {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1.1}),
        ({"do_sample": False, "temperature": 0.6}, CHAT),
        ({"temperature": "hot", "top_k": -1, "top_p": None, "min_p": True}, CHAT),
        ({"eos_token_id": 2}, CHAT),
    ],
)
def test_the_folder_s_settings_are_read_and_malformed_ones_left_out(
    generation: dict[str, Any], options: dict[str, Any]
) -> None:
    found = model_defaults(generation, None)
    assert found.options == options
    assert found.source == ("generation_config.json" if options is not CHAT else OWN)


def test_the_catalogue_has_the_settings_of_models_whose_files_carry_none() -> None:
    smollm2 = find("smollm2")
    assert str(model_defaults({}, smollm2)) == "temperature 0.2, top_p 0.9 (the catalogue)"
    assert model_defaults({"temperature": 0.6}, smollm2).options == {"temperature": 0.6}
    for entry in entries():
        if entry.kind == "generate" and not any(file.name == "generation_config.json" for file in entry.files):
            assert entry.sampling["temperature"] > 0, entry.name
        weft.Sampling(**entry.sampling)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> weft.Model:
    return weft.load(str(write_chat_folder(tmp_path_factory.mktemp("stated") / "model", STATED)), threads=1)


def test_chat_uses_them_and_generate_does_not(model: weft.Model) -> None:
    assert model.info["sampling"] == STATED and model.info["sampling_source"] == "generation_config.json"
    ids, same = model.chat_ids(MESSAGES), {"max_tokens": 12, "seed": 5, "ignore_eos": True}
    sampled, greedy = model.generate(ids, **STATED, **same).tokens, model.generate(ids, **same).tokens
    assert sampled != greedy == model.generate(ids, temperature=0, **same).tokens
    assert model.chat(MESSAGES, **same).tokens == sampled
    assert [t for piece in model.chat_stream(MESSAGES, **same) for t in piece.tokens] == list(sampled)
    assert model.session().generate(ids, **same).tokens == greedy


def test_what_is_given_wins(model: weft.Model) -> None:
    ids, same = model.chat_ids(MESSAGES), {"max_tokens": 12, "seed": 5, "ignore_eos": True}
    assert model.chat(MESSAGES, temperature=0, **same).tokens == model.generate(ids, **same).tokens
    wider = {"temperature": 1.5, "top_k": 0}
    assert model.chat(MESSAGES, top_k=0, **same).tokens == model.generate(ids, **wider, **same).tokens


def test_a_model_that_states_nothing_is_sampled_with_weft_s_own_settings(tmp_path: Path) -> None:
    silent = weft.load(str(write_chat_folder(tmp_path / "silent", {})), threads=1)
    ids, same = silent.chat_ids(MESSAGES), {"max_tokens": 12, "seed": 5, "ignore_eos": True}
    assert silent.info["sampling"] == {"temperature": 0.7, "top_p": 0.9} == CHAT
    assert str(silent.defaults) == "temperature 0.7, top_p 0.9 (weft's own: the model states none)"
    sampled = silent.generate(ids, temperature=0.7, top_p=0.9, **same).tokens
    assert silent.chat(MESSAGES, **same).tokens == sampled != silent.generate(ids, **same).tokens
