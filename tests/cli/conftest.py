"""A runner for the weft command inside this process, and two tiny models it can be run on."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from running import Run
from tiny_chat import write_chat_model
from tiny_st import write_st_folder

from weft import flags


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """No variable of the caller's, and empty caches; tests of real models keep theirs."""
    if request.node.get_closest_marker("weights"):
        return
    for flag in flags.all_flags():
        if flag.name != "WEFT_ISA":  # the level under test stays
            monkeypatch.delenv(flag.name, raising=False)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "weft-cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("WEFT_OFFLINE", "1")


@pytest.fixture
def run() -> Run:
    """`run("embed", "text", input=…)`: a Result with exit_code, stdout and stderr."""
    from weft.cli.app import app

    def call(*arguments: str, input: str | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=input, prog_name="weft")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return call


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with a chat template."""
    return write_chat_model(tmp_path_factory.mktemp("generator") / "tiny.gguf")


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder."""
    return write_st_folder(tmp_path_factory.mktemp("embedder") / "model")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What speaks OpenAI's API and wants a key: a text's vector is its length and 1."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            known = self.headers["authorization"] == "Bearer sesame" and body["model"] == "lengths"
            refused = any("refuse me" in text for text in body["input"])
            data = [{"index": i, "embedding": [len(text), 1.0]} for i, text in enumerate(body["input"])]
            wrong = "too long" if known else "who are you?"
            answer = json.dumps({"data": data} if known and not refused else {"error": {"message": wrong}}).encode()
            self.send_response(401 if not known else 400 if refused else 200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: Any) -> None: ...

    monkeypatch.delenv("WEFT_OFFLINE")
    monkeypatch.setenv("MY_KEY", "sesame")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_address[1]}/v1"
        listening.shutdown()
