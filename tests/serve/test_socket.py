"""A server on a Unix socket: its owner alone reaches it, `weft ps` and `weft stop` know it, nothing is left of it."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from weft.errors import InputError
from weft.serve import ModelSpec, Settings
from weft.serve.http.server import listen

ROOT = Path(__file__).resolve().parent.parent.parent


def at(path: Path) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://weft", timeout=60)


def test_requests_are_answered_and_streamed_whatever_the_host_is_called(serve, tmp_path):
    path = tmp_path / "s"
    running = serve(socket=path)
    assert running.port == 0 and stat.S_IMODE(path.stat().st_mode) == 0o600
    with at(path) as client:
        assert client.get("/v1/models").status_code == 200
        body = {"model": "tiny", "prompt": "a", "max_tokens": 3, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
        assert client.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403
    running.__exit__()
    assert not path.exists()


def test_a_socket_without_a_key_may_be_listened_on_and_one_in_use_may_not(tmp_path):
    path = tmp_path / "s"
    wanted = Settings(models=(ModelSpec("m", "m"),), socket=path, host="0.0.0.0").checked()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with listen(wanted) as bound:  # what was left behind is no hindrance
        bound.listen()
        with pytest.raises(InputError, match="cannot listen on"):
            listen(wanted)
    other = tmp_path / "file"
    other.write_text("mine")
    with pytest.raises(InputError, match="cannot listen on"):
        listen(Settings(models=wanted.models, socket=other))
    assert other.read_text() == "mine"
    with pytest.raises(InputError, match="cannot listen on"):
        listen(Settings(models=wanted.models, socket=tmp_path / ("x" * 200)))


def test_the_command_says_how_to_reach_it_and_ps_and_stop_find_it(model_files, tmp_path):
    path = tmp_path / "a socket"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEFT_CACHE": str(tmp_path / "cache"), "WEFT_OFFLINE": "1"}

    def weft(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "weft", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    command = [sys.executable, "-m", "weft", "serve", f"tiny={model_files['tiny']}", "--socket", str(path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        said = ""
        while "\ncurl" not in said:
            line = process.stdout.readline()
            assert line, f"the server ended: {said}"
            said += line
        assert f"curl --unix-socket '{path}' http://localhost/v1/chat/completions" in said
        (found,) = json.loads(weft("ps", "--json").stdout)
        assert found["url"] == f"unix:{path}" and found["models"][0]["name"] == "tiny"
        assert str(path) in weft("ps").stdout.replace("\n", "")
        assert weft("stop", "9").returncode != 0
        assert weft("stop", str(path)).returncode == 0
        assert process.wait(30) == 0 and not path.exists()
    finally:
        process.kill()
        process.communicate()
