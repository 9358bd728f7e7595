"""Every API fills the sampling fields that a request leaves unset with the settings of the model's makers, else with
weft's own: one place decides for all of them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tiny_chat_folder import write_chat_folder

import weft
from weft.generate.choice.defaults import CHAT
from weft.serve import BackgroundServer, ModelSpec, Settings
from weft.serve.models.generator import GenerateRunner

STATED = {"temperature": 1.5, "top_k": 3}
MESSAGES = [{"role": "user", "content": "hi"}]
PROMPT = "user: hi\nassistant: "
SAME: dict[str, Any] = {"seed": 5, "max_tokens": 12}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder, stated = tmp_path_factory.mktemp("unset"), {"stated": STATED, "silent": {}}
    paths = {name: str(write_chat_folder(folder / name, settings)) for name, settings in stated.items()}
    specs = tuple(ModelSpec(name, path, {"threads": 1}) for name, path in paths.items())
    with BackgroundServer(Settings(models=specs, port=0)) as running, httpx.Client(base_url=running.url) as client:
        yield client


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[weft.Request]:
    """The requests that reach the engine."""
    found: list[weft.Request] = []
    submit = GenerateRunner.submit

    async def noted(self: GenerateRunner, request: weft.Request) -> Any:
        found.append(request)
        return await submit(self, request)

    monkeypatch.setattr(GenerateRunner, "submit", noted)
    return found


def asked(client: httpx.Client, path: str, **body: Any) -> Any:
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    return found.json()


def openai_chat(client: httpx.Client, model: str, **given: Any) -> str:
    made = asked(client, "/v1/chat/completions", **{"model": model, "messages": MESSAGES, **SAME, **given})
    return str(made["choices"][0]["message"]["content"])


def openai_completion(client: httpx.Client, model: str, **given: Any) -> str:
    return str(asked(client, "/v1/completions", model=model, prompt=PROMPT, **SAME, **given)["choices"][0]["text"])


def openai_response(client: httpx.Client, model: str, **given: Any) -> str:
    made = asked(client, "/v1/responses", model=model, input="hi", seed=5, max_output_tokens=12, **given)
    return str(made["output"][0]["content"][0]["text"])


def anthropic_message(client: httpx.Client, model: str, **given: Any) -> str:
    made = asked(client, "/v1/messages", model=model, messages=MESSAGES, max_tokens=12, **given)
    return str(made["content"][0]["text"])


def ollama_chat(client: httpx.Client, model: str, **given: Any) -> str:
    options = {"seed": 5, "num_predict": 12, **given}
    made = asked(client, "/api/chat", model=model, messages=MESSAGES, options=options, stream=False)
    return str(made["message"]["content"])


def ollama_generate(client: httpx.Client, model: str, **given: Any) -> str:
    options = {"seed": 5, "num_predict": 12, **given}
    return str(asked(client, "/api/generate", model=model, prompt="hi", options=options, stream=False)["response"])


def ollama_raw(client: httpx.Client, model: str, **given: Any) -> str:
    options = {"seed": 5, "num_predict": 12, **given}
    body = {"model": model, "prompt": PROMPT, "raw": True, "options": options, "stream": False}
    return str(asked(client, "/api/generate", **body)["response"])


def llama_completion(client: httpx.Client, model: str, **given: Any) -> str:
    return str(asked(client, "/completion", model=model, prompt=PROMPT, seed=5, n_predict=12, **given)["content"])


APIS = [
    openai_chat,
    openai_completion,
    openai_response,
    anthropic_message,
    ollama_chat,
    ollama_generate,
    ollama_raw,
    llama_completion,
]


@pytest.mark.parametrize("ask", APIS)
@pytest.mark.parametrize("model, defaults", [("stated", STATED), ("silent", CHAT)])
def test_unset_fields_are_the_model_s_or_weft_s_own_and_given_ones_win(
    client: httpx.Client, submitted: list[weft.Request], ask: Any, model: str, defaults: dict[str, Any]
) -> None:
    ask(client, model)
    ask(client, model, temperature=0)
    ask(client, model, top_k=9, top_p=0.5)
    used = [replace(request.sampling, seed=None) for request in submitted]
    wanted = [{**defaults, **given} for given in ({}, {"temperature": 0}, {"top_k": 9, "top_p": 0.5})]
    assert used == [weft.Sampling(**settings) for settings in wanted]


@pytest.mark.parametrize("ask", [ask for ask in APIS if ask is not anthropic_message])  # which has no seed
def test_the_same_settings_given_and_unset_give_the_same_text(client: httpx.Client, ask: Any) -> None:
    unset = ask(client, "stated")
    assert unset == ask(client, "stated", **STATED)
    assert ask(client, "stated", temperature=0) == ask(client, "silent", temperature=0) != unset
    assert ask(client, "silent") == ask(client, "silent", **CHAT) != ask(client, "silent", temperature=0)


def test_the_defaults_are_shown(client: httpx.Client) -> None:
    for model, settings in (("stated", STATED), ("silent", CHAT)):
        shown = client.get("/props", params={"model": model}).json()
        assert shown["default_generation_settings"]["params"] == settings
