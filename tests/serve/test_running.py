"""Requests under way: clients that go are noticed, queues have an end, lost engines are replaced, logs keep quiet."""

import asyncio
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
from idleness import idle, wait_for

from weft.errors import InputError
from weft.serve.http.endpoint import Endpoint
from weft.serve.http.faults import Fault
from weft.serve.http.logs import JsonLines, Lines
from weft.serve.http.routes import Json, Route
from weft.serve.settings import Limits
from weft.serve.work.tracking import Arrivals, Call, Places

LONG = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3500, "ignore_eos": True}


def post_raw(server, body: dict, path: str = "/v1/chat/completions") -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    raw.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    return raw


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_goes_frees_its_pages_within_a_quarter_second(server, stream, reset):
    wait_for(lambda: idle(server))
    raw = post_raw(server, {**LONG, "stream": stream, "n": 2})
    runner = server.app.serving.models.entries["tiny"]
    wait_for(lambda: runner.runner is not None and runner.runner.stats.running == 2)
    if reset:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    raw.close()
    assert wait_for(lambda: idle(server)) < 0.25


def test_a_client_that_goes_while_it_waits_leaves_the_queue(serve):
    running = serve(limits={"running": 1, "waiting": 4})
    first = post_raw(running, LONG)
    entry = running.app.serving.models.entries["tiny"]
    wait_for(lambda: entry.runner is not None and entry.runner.stats.running == 1)
    others = [post_raw(running, LONG) for _ in range(3)]
    wait_for(lambda: entry.runner.stats.waiting == 3)
    for raw in others:
        raw.close()
    wait_for(lambda: entry.runner.stats.waiting == 0, 1)
    assert entry.runner.stats.running == 1
    first.close()
    wait_for(lambda: idle(running))


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"prompt": ["a"] * 64, "n": 8, "max_tokens": 1}, ("512 answers", "320 places")),
        ({"prompt": "a", "max_tokens": 90_000, "min_tokens": 80_000}, ("min_tokens is 80000", "leaves room for")),
        ({"prompt": "a " * 90_000}, ("the context leaves room for",)),
    ],
)
def test_a_request_that_can_never_fit_is_told_so_and_not_to_come_again(client, asked, words):
    found = client.post("/v1/completions", json={"model": "tiny", **asked})
    assert found.status_code == 400 and "retry-after" not in found.headers, found.text
    assert all(word in found.json()["error"]["message"] for word in words), found.text


def test_requests_without_a_grammar_do_not_wait_for_those_whose_grammars_take_long(server, client, monkeypatch):
    from weft.generate import Grammar

    go_on, began = threading.Event(), threading.Event()

    def slow(pattern):
        began.set()
        assert go_on.wait(60), "the chat waits for the grammars"
        raise InputError("regex", "is too slow")

    monkeypatch.setattr(Grammar, "regex", slow)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with ThreadPoolExecutor(8) as callers:
        url = f"{server.url}/v1/chat/completions"
        asked = {**body, "structured_outputs": {"regex": "(.*a.*b.*c){900}"}}
        hostile = [callers.submit(httpx.post, url, json=asked, timeout=90) for _ in range(8)]
        assert began.wait(60)
        try:
            assert client.post("/v1/chat/completions", json=body).status_code == 200
        finally:
            go_on.set()
        assert {one.result().status_code for one in hostile} == {400}


def test_a_full_queue_answers_at_once(serve):
    running = serve(limits={"running": 1, "waiting": 1})
    entry = running.app.serving.models.entries["tiny"]
    held = [post_raw(running, LONG)]
    wait_for(lambda: entry.runner is not None and entry.runner.stats.running == 1)
    held.append(post_raw(running, LONG))
    wait_for(lambda: entry.runner.stats.waiting == 1)
    took = []
    with httpx.Client(base_url=running.url) as client:
        for _ in range(20):
            found = client.post("/v1/chat/completions", json={**LONG, "max_tokens": 1})
            assert found.status_code == 429 and found.headers["retry-after"] == "1"
            assert found.json()["error"]["code"] == "queue_full"
            took.append(found.elapsed.total_seconds())
    assert sorted(took)[10] < 0.05
    for raw in held:
        raw.close()


def test_more_requests_than_allowed_get_429_and_the_others_go_on(serve):
    running = serve(limits={"connections": 4})
    held = [post_raw(running, {**LONG, "stream": True}) for _ in range(4)]
    wait_for(lambda: len(running.app.serving.tracking.calls) == 4)
    found = httpx.get(f"{running.url}/v1/models")
    assert found.status_code == 429 and "retry-after" in found.headers
    for raw in held:
        assert raw.recv(12) == b"HTTP/1.1 200"
        raw.close()
    wait_for(lambda: idle(running))


def test_a_request_that_takes_too_long_ends_with_an_error(serve):
    running = serve(limits={"request_s": 0.3})
    found = httpx.post(f"{running.url}/v1/chat/completions", json={**LONG, "n": 8}, timeout=30)
    assert found.status_code == 504 and found.json()["error"]["code"] == "timeout"
    with httpx.stream("POST", f"{running.url}/v1/chat/completions", json={**LONG, "n": 8, "stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.status_code == 200
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout" and lines[-1] == "data: [DONE]"
    wait_for(lambda: idle(running))


def slow_reader(server) -> socket.socket:
    """A client whose stream has filled every buffer on its way."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(20)
    raw.connect(("127.0.0.1", server.port))
    text = json.dumps({**LONG, "stream": True, "n": 8, "logprobs": True, "top_logprobs": 20}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    raw.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    calls = server.app.serving.tracking.calls
    wait_for(
        lambda: any(call.sending_since and time.monotonic() - call.sending_since > 0.1 for call in list(calls)), 20
    )
    return raw


def test_a_reader_that_does_not_read_is_given_up(serve):
    running = serve(limits={"stall_s": 0.3})
    raw = slow_reader(running)
    wait_for(lambda: idle(running), 20)
    raw.close()


def test_a_slow_reader_is_told_when_the_server_ends(serve):
    running = serve(limits={"drain_s": 0.1})
    raw = slow_reader(running)
    running._loop.call_soon_threadsafe(running._server.end)
    wait_for(lambda: running.app.serving.tracking.draining)
    received = b""
    while part := raw.recv(65536):
        received += part
    assert b"shutting_down" in received[-2000:] and received.endswith(b"0\r\n\r\n")
    raw.close()


def test_an_engine_that_is_lost_fails_its_requests_and_is_replaced(serve):
    running = serve()
    url = f"{running.url}/v1/chat/completions"
    short = {**LONG, "max_tokens": 2}
    assert httpx.post(url, json=short).status_code == 200
    entry = running.app.serving.models.entries["tiny"]

    engine = entry.runner.engine.engine
    whole = engine.step

    def broken() -> bool:
        if engine.waiting:  # not the last step of the request before
            raise RuntimeError("a fault of /home/me/file and 0x7f00")
        return whole()

    engine.step = broken
    found = httpx.post(url, json=short)
    assert found.status_code == 500 and "home" not in found.text and "0x7f" not in found.text
    wait_for(lambda: entry.runner is None or entry.runner.failure is not None)
    assert httpx.get(f"{running.url}/ready").status_code == 503
    assert httpx.post(url, json=short).status_code == 200
    assert httpx.get(f"{running.url}/ready").status_code == 200


def test_an_error_in_one_request_leaves_the_others_alone(server, client):
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 30, "seed": 4}
    alone = client.post("/v1/completions", json=body).json()["choices"][0]["text"]

    async def run() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as many:
            bad = {**body, "structured_outputs": {"regex": "(?=x)"}}
            return await asyncio.gather(*(many.post("/v1/completions", json=body if i % 2 else bad) for i in range(30)))

    found = asyncio.run(run())
    assert {answer.status_code for answer in found[::2]} == {400}
    assert {answer.json()["choices"][0]["text"] for answer in found[1::2]} == {alone}


def test_logs_tell_counts_and_never_what_was_said(client, server):
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("weft.serve")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        secret = "a-secret-thing"
        client.post(
            "/v1/chat/completions", json={**LONG, "max_tokens": 3, "messages": [{"role": "user", "content": secret}]}
        )
        client.post(f"/v1/{secret}", json={"x": secret})
        wait_for(lambda: len(records) >= 2)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    lines = [JsonLines().format(record) for record in records] + [Lines().format(record) for record in records]
    assert not [line for line in lines if secret in line]
    said = json.loads(lines[0])
    assert said["event"] == "request" and said["status"] == 200 and said["output_tokens"] == 3
    assert said["route"] == "/v1/chat/completions" and said["model"] == "tiny" and said["request_id"]


def test_live_shows_what_is_under_way(server, client):
    wait_for(lambda: idle(server))
    raw = post_raw(server, {**LONG, "stream": True})
    entry = server.app.serving.models.entries["tiny"]
    wait_for(lambda: entry.runner is not None and entry.runner.stats.running == 1)
    wait_for(lambda: client.get("/weft/live").json()["requests"][0]["output_tokens"] > 3)
    found = client.get("/weft/live").json()
    (request,) = found["requests"]
    assert request["state"] == "running" and request["model"] == "tiny" and request["prompt_tokens"] > 5
    assert found["cache"]["used"] > 0 and found["rss"] > 10_000_000
    assert {model["name"]: model["kind"] for model in found["models"]}["bert"] == "embed"
    raw.close()
    wait_for(lambda: idle(server))


def test_metrics_have_the_names_that_dashboards_know(client):
    client.post("/v1/chat/completions", json={**LONG, "max_tokens": 3})
    client.post("/v1/embeddings", json={"model": "bert", "input": "a"})
    text = client.get("/metrics").text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    wanted = [
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries"),
        *("prefix_cache_hits", "num_preemptions", "prompt_tokens_total", "generation_tokens_total"),
        *("request_success_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_sum"),
        *(
            "e2e_request_latency_seconds_count",
            "request_queue_time_seconds_count",
            "request_prefill_time_seconds_count",
        ),
        *("request_decode_time_seconds_count", "request_prompt_tokens_count", "request_generation_tokens_count"),
        *("te_request_count", "te_request_success", "te_queue_size", "te_request_duration_count"),
        *("te_request_inference_duration_count", "te_request_input_length_count"),
    ]
    assert not {f"weft:{name}" for name in wanted} - names
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= 0
    series = 'weft:time_to_first_token_seconds_bucket{model="tiny"'
    bucket = [line for line in text.splitlines() if line.startswith(series)]
    counts = [int(line.rsplit(" ", 1)[1]) for line in bucket]
    assert counts == sorted(counts) and 'le="+Inf"' in bucket[-1]


def test_a_client_chooses_no_label_and_no_log_text(client):
    """Metrics would grow with every new word otherwise."""
    for method in ("BREW", "X" * 100):
        assert client.request(method, "/v1/models").status_code == 405
    assert client.get("/no/such/path").status_code == 404
    text = client.get("/metrics").text
    assert "BREW" not in text and "XXX" not in text and "no/such" not in text and 'method="(other)"' in text


@pytest.mark.parametrize("body", [True, False])
def test_a_request_that_is_ended_at_any_moment_gets_one_whole_answer(body):
    """Also in the turn between its work being made and its first step, where nothing of it has run yet."""

    async def handler(context: object, given: object) -> Json:
        for _ in range(3):
            await asyncio.sleep(0)
        return Json({"done": True})

    route = Route("POST", "/x", handler, "", body=dict if body else None)
    settings = SimpleNamespace(strict=False, limits=Limits())
    serving = SimpleNamespace(settings=settings, places=Places(lambda work: 1), arrivals=Arrivals(9, 9))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]

    async def run(turns: int) -> list[dict]:
        sent: list[dict] = []
        call = Call("id", "", "POST")
        messages = iter([{"type": "http.request", "body": b"{}"}])

        async def receive() -> dict:
            await asyncio.sleep(0)
            return next(messages, None) or await asyncio.Event().wait()

        async def send(message: dict) -> None:
            sent.append(message)

        scope = {"weft.call": call, "headers": headers}
        task = asyncio.ensure_future(Endpoint(route, serving)(scope, receive, send))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.end(Fault(503, "the server is shutting down"))
        await asyncio.wait_for(task, 5)
        return sent

    statuses = []
    for turns in range(1, 20):
        start, end = asyncio.run(run(turns))
        assert (start["type"], end["type"]) == ("http.response.start", "http.response.body"), turns
        statuses.append(start["status"])
    assert statuses == sorted(statuses, reverse=True) and set(statuses) == {503, 200}, statuses
