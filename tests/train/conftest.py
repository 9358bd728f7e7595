"""A tiny chat model, and rows to train it on."""

import json
from pathlib import Path

import pytest
from tiny_chat import write_chat_model


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with a token per byte and a chat template."""
    return write_chat_model(tmp_path_factory.mktemp("chatty") / "tiny.gguf")


@pytest.fixture(scope="session")
def chats() -> list[dict]:
    return [
        {"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"it is {i}{i}"}]}
        for i in range(24)
    ]


@pytest.fixture(scope="session")
def chat_file(tmp_path_factory: pytest.TempPathFactory, chats: list[dict]) -> Path:
    path = tmp_path_factory.mktemp("rows") / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in chats))
    return path
