"""Every API fills the sampling fields that a request leaves unset with the settings of the model's makers."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tiny_chat_folder import write_chat_folder

from weft.serve import BackgroundServer, ModelSpec, Settings

STATED = {"temperature": 1.5, "top_k": 3}
MESSAGES = [{"role": "user", "content": "hi"}]
SAME: dict[str, Any] = {"seed": 5, "max_tokens": 12}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder, stated = tmp_path_factory.mktemp("unset"), {"stated": STATED, "silent": {}}
    paths = {name: str(write_chat_folder(folder / name, settings)) for name, settings in stated.items()}
    specs = tuple(ModelSpec(name, path, {"threads": 1}) for name, path in paths.items())
    with BackgroundServer(Settings(models=specs, port=0)) as running, httpx.Client(base_url=running.url) as client:
        yield client


def openai_chat(client: httpx.Client, model: str, **given: Any) -> str:
    body = {"model": model, "messages": MESSAGES, **SAME, **given}
    return str(client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])


def openai_completion(client: httpx.Client, model: str, **given: Any) -> str:
    body = {"model": model, "prompt": "user: hi\nassistant: ", **SAME, **given}
    return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])


def ollama_chat(client: httpx.Client, model: str, **given: Any) -> str:
    options = {"seed": 5, "num_predict": 12, **given}
    body = {"model": model, "messages": MESSAGES, "options": options, "stream": False}
    return str(client.post("/api/chat", json=body).json()["message"]["content"])


def ollama_raw(client: httpx.Client, model: str, **given: Any) -> str:
    options = {"seed": 5, "num_predict": 12, **given}
    body = {"model": model, "prompt": "user: hi\nassistant: ", "raw": True, "options": options, "stream": False}
    return str(client.post("/api/generate", json=body).json()["response"])


@pytest.mark.parametrize("ask", [openai_chat, openai_completion, ollama_chat, ollama_raw])
def test_unset_fields_are_the_model_s_and_given_ones_win(client: httpx.Client, ask: Any) -> None:
    unset = ask(client, "stated")
    assert unset == ask(client, "stated", **STATED)
    assert ask(client, "stated", temperature=0) == ask(client, "silent", temperature=0) != unset
    assert ask(client, "stated", top_k=9) == ask(client, "silent", temperature=1.5, top_k=9) != unset


@pytest.mark.parametrize("ask", [openai_chat, openai_completion, ollama_chat, ollama_raw])
def test_a_model_that_states_nothing_is_sampled_at_one(client: httpx.Client, ask: Any) -> None:
    assert ask(client, "silent") == ask(client, "silent", temperature=1.0) != ask(client, "silent", temperature=0)


def test_the_defaults_are_shown(client: httpx.Client) -> None:
    shown = client.get("/props", params={"model": "stated"}).json()
    assert shown["default_generation_settings"]["params"] == STATED
