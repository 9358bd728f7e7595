"""`weft serve` as a process: what it says, how it ends, and that `weft ps` and `weft stop` find it."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tiny_rerank import write_cross

ROOT = Path(__file__).resolve().parent.parent.parent
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True}


class Process:
    """A running `weft serve`; `port` is the one it took."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "WEFT_CACHE": str(folder / "cache"),
            "WEFT_OFFLINE": "1",
            "NO_COLOR": "1",
            **environment,
        }
        command = [sys.executable, "-m", "weft", "serve", *arguments, "--port", "0", "--threads", "1"]
        self.child = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.summary = ""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.summary += line
            if line.startswith("curl"):
                break
        found = re.search(r"https?://[^/]*:(\d+)/", self.summary)
        assert found, self.summary + (self.child.stderr.read() if self.child.stderr else "")
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def weft(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "weft", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)

    def end(self) -> tuple[int, str]:
        """Its exit code and what it logged, once it has ended."""
        _, logged = self.child.communicate(timeout=60)
        return self.child.returncode, logged


@pytest.fixture
def start(tmp_path: Path, model_files: dict[str, Path]) -> Iterator[object]:
    started: list[Process] = []

    def run(*arguments: str, **environment: str) -> Process:
        given = arguments or (f"tiny={model_files['tiny']}", f"bert={model_files['bert']}")
        started.append(Process(tmp_path, *given, **environment))
        return started[-1]

    yield run
    for process in started:
        if process.child.poll() is None:
            process.child.kill()
        process.child.communicate()


class Reader(threading.Thread):
    """A client that reads a stream to its end."""

    def __init__(self, url: str, **body: object) -> None:
        super().__init__(daemon=True)
        self.url, self.body = url, {**BODY, **body}
        self.lines: list[str] = []
        self.status = 0
        self.error: Exception | None = None
        self.first = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=self.body, timeout=60) as answer:
                self.status = answer.status_code
                for line in answer.iter_lines():
                    if line:
                        self.lines.append(line)
                        self.first.set()
        except httpx.HTTPError as error:
            self.error = error
        self.first.set()


def test_the_summary_says_what_people_want_to_know(start):
    process = start()
    for wanted in (
        "page",
        "/v1",
        "threads",
        "memory",
        "tiny",
        "bert",
        "generates",
        "embeds",
        "when first used",
        "curl",
    ):
        assert wanted in process.summary, wanted
    assert httpx.get(f"{process.url}/health").json() == {"status": "ok"}
    shown = process.weft("ps", "--json")
    (server,) = json.loads(shown.stdout)
    assert server["pid"] == process.child.pid and [m["name"] for m in server["models"]] == ["tiny", "bert"]
    line = next(line for line in process.weft("ps").stdout.splitlines() if line.startswith("tiny"))
    assert "generate, unloaded" in line and "parameters, F32, 4096 tokens, licence unknown" in line
    stopped = process.weft("stop", str(process.port))
    assert stopped.returncode == 0, stopped.stderr
    assert process.end()[0] == 0
    assert "no server is running" in process.weft("ps").stderr
    assert process.weft("stop").returncode == 2


def test_a_restarted_server_finds_the_prompts_of_the_last_one_on_disk(start, model_files, tmp_path):
    folder = tmp_path / "prefixes"
    keys = tmp_path / "keys"
    body = {"model": "tiny", "prompt": "x y z " * 40, "max_tokens": 20, "temperature": 0, "logprobs": 3, "echo": False}

    def answer(process: Process, key: str) -> tuple[int, object]:
        headers = {"Authorization": f"Bearer {key}"}
        found = httpx.post(f"{process.url}/v1/completions", json=body, headers=headers, timeout=60).json()
        return found["usage"]["prompt_tokens_details"]["cached_tokens"], found["choices"]

    def run(order: str, *asking: str) -> list[tuple[int, object]]:
        keys.write_text(order)
        process = start(f"tiny={model_files['tiny']}", "--prefix-dir", str(folder), "--api-key-file", str(keys))
        found = [answer(process, key) for key in asking]
        process.child.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0
        return found

    ((cold, made),) = run("one\ntwo\n", "one")
    assert cold == 0 and folder.stat().st_mode & 0o777 == 0o700
    (warm, same), (other, _) = run("two\none\n", "one", "two")  # a key stays the same in another line
    assert warm == 224 and same == made  # of 240 tokens, all whole pages
    assert other == 0


@pytest.mark.parametrize("first", ["tiny", "bert", "cross"])
def test_a_server_of_every_kind_starts_and_shows_a_request_that_its_first_model_answers(
    start, model_files, tmp_path, first
):
    files = {**model_files, "cross": write_cross(tmp_path / "cross", "bert")}
    names = sorted(("tiny", "bert", "cross"), key=lambda name: name != first)
    process = start(*(f"{name}={files[name]}" for name in names), "--context", "512")
    for does in ("generates", "embeds", "reranks"):
        assert does in process.summary
    shown = next(line for line in process.summary.splitlines() if line.startswith("curl"))
    _, url, *_, body = shlex.split(shown)
    answer = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=60)
    assert answer.status_code == 200 and answer.json()["model"] == first


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_streams_finish_and_frees_the_port(start, number):
    process = start()
    readers = [Reader(process.url, max_tokens=300, seed=seed) for seed in range(8)]
    for reader in readers:
        assert reader.first.wait(30)
    process.child.send_signal(number)
    for reader in readers:
        reader.join(60)
        assert reader.error is None and reader.status == 200 and reader.lines[-1] == "data: [DONE]"
        assert json.loads(reader.lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert process.end()[0] == 0
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", process.port))


def test_a_second_signal_ends_at_once_with_an_error_in_every_stream(start):
    process = start()
    readers = [Reader(process.url, max_tokens=3900, n=2, seed=seed) for seed in range(6)]
    for reader in readers:
        assert reader.first.wait(30)
    process.child.send_signal(signal.SIGTERM)
    with httpx.Client(base_url=process.url) as client:
        for _ in range(200):  # until the first signal has arrived
            answer = client.get("/v1/models")
            if answer.status_code == 503:
                break
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "shutting_down"
    process.child.send_signal(signal.SIGTERM)
    code, _ = process.end()
    assert code == 0
    for reader in readers:
        reader.join(10)
        assert reader.error is None and reader.lines[-1] == "data: [DONE]"
        last = json.loads(reader.lines[-2].removeprefix("data: "))
        assert "error" in last or last["choices"][0]["finish_reason"]
    assert any("error" in json.loads(reader.lines[-2].removeprefix("data: ")) for reader in readers)


def test_logs_are_json_lines_without_what_was_said(start, model_files):
    process = start(f"tiny={model_files['tiny']}", "--log", "json", WEFT_API_KEY="the-key")
    headers = {"authorization": "Bearer the-key"}
    secret = {"model": "tiny", "messages": [{"role": "user", "content": "my secret"}], "max_tokens": 2}
    assert httpx.post(f"{process.url}/v1/chat/completions", json=secret, timeout=30).status_code == 401
    assert httpx.post(f"{process.url}/v1/chat/completions", json=secret, headers=headers, timeout=30).status_code == 200
    process.child.send_signal(signal.SIGTERM)
    code, logged = process.end()
    lines = [json.loads(line) for line in logged.splitlines() if line.startswith("{")]
    assert code == 0 and [line["status"] for line in lines if line["event"] == "request"] == [401, 200]
    assert "my secret" not in logged and "the-key" not in logged
    assert {line["event"] for line in lines} >= {"model loaded", "request", "model unloaded"}


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["--host", "0.0.0.0"], 2, "no API key is set"),
        (["--budget", "much"], 2, "not a size"),
        (["--keep-alive", "long"], 2, "not a time"),
        (["--api-key-file", "absent"], 2, "keys"),
        (["--prefix-dir", "/dev/null/x"], 2, "prefix_dir"),
        (["a=b", "a=c"], 2, "two models"),
    ],
)
def test_settings_that_cannot_be_are_one_line(tmp_path, model_files, arguments, code, said):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEFT_CACHE": str(tmp_path), "WEFT_OFFLINE": "1"}
    command = [sys.executable, "-m", "weft", "serve", f"tiny={model_files['tiny']}", *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert found.returncode == code and said in found.stderr and found.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line(start, model_files, tmp_path):
    process = start()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEFT_CACHE": str(tmp_path / "b"), "WEFT_OFFLINE": "1"}
    command = [sys.executable, "-m", "weft", "serve", f"tiny={model_files['tiny']}", "--port", str(process.port)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2 and "cannot listen on" in found.stderr
