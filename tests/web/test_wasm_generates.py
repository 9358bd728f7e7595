"""Text from weft.wasm is that of Python at the scalar level: greedy, drawn with a seed, and in conversations."""

from pathlib import Path

import pytest
from tiny_chat import write_chat_model

import weft
from weft.backends.cpu import levels_present
from weft.export import export

PROMPTS = ["Once", "Once upon a time", "Once upon a", "x" * 300, "日本語 and <|im_end|> inside"]
MESSAGES = [{"role": "user", "content": "Hello, who are you?"}]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "tiny.gguf")


@pytest.fixture(scope="module", params=["f32", "int8"])
def compute(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def chat_bundle(chat_model: Path, compute: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(str(chat_model), tmp_path_factory.mktemp("bundle") / "chat.weft", compute=compute).path


@pytest.fixture
def model(chat_model: Path, compute: str, monkeypatch: pytest.MonkeyPatch) -> weft.Model:
    need_scalar(monkeypatch)
    return weft.load(str(chat_model), compute=compute, threads=1, draft="none")


def need_scalar(monkeypatch: pytest.MonkeyPatch) -> None:
    if "scalar" not in levels_present():
        pytest.skip("the scalar level was not built: `make test` builds it")
    monkeypatch.setenv("WEFT_ISA", "scalar")


def test_tokens_are_those_of_python(in_node, chat_bundle: Path, model: weft.Model) -> None:
    for options, named in (
        ({"maxTokens": 24}, {"max_tokens": 24}),
        (
            {"maxTokens": 40, "temperature": 1.2, "topK": 5, "repetitionPenalty": 1.3, "seed": 12345678901},
            {"max_tokens": 40, "temperature": 1.2, "top_k": 5, "repetition_penalty": 1.3, "seed": 12345678901},
        ),
    ):
        for prompt, said in zip(
            PROMPTS, in_node(chat_bundle, prompts=PROMPTS, options=options)["written"], strict=True
        ):
            wanted = model.generate(prompt, **named)
            assert said["ids"] == list(wanted.tokens)
            assert (said["text"], said["finish"]) == (wanted.text, wanted.finish_reason)
            assert said["promptTokens"] == wanted.usage.prompt_tokens


def test_a_conversation_and_a_text_that_is_ended(in_node, chat_bundle: Path, model: weft.Model) -> None:
    wanted = list(model.generate(model.chat_ids(MESSAGES), max_tokens=12).tokens)
    said = in_node(chat_bundle, messages=MESSAGES, options={"maxTokens": 12})["chat"]
    assert said["ids"] == wanted
    ended = in_node(chat_bundle, prompts=["Once"], options={"maxTokens": 100}, until=3)["written"][0]
    assert (len(ended["ids"]), ended["finish"]) == (3, "cancelled")
