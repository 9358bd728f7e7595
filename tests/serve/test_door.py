"""A request that finds no place is refused as its bytes come; places are given back whatever becomes of a request."""

import asyncio
import itertools
import json
import socket
import time

import httpx
import pytest
from idleness import idle, wait_for

from weft.serve.http.door import A_TURN, Door, Turns, is_whole
from weft.serve.http.routes import Route
from weft.serve.work.metrics import Metrics

LONG = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3500, "ignore_eos": True}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def request(body: dict, head: bytes = HEAD) -> bytes:
    text = json.dumps(body).encode()
    return head + b"Content-Length: %d\r\n\r\n" % len(text) + text


def held(running, count: int) -> list[socket.socket]:
    """Requests that take all places."""
    made = [socket.create_connection(("127.0.0.1", running.port), timeout=10) for _ in range(count)]
    for raw in made:
        raw.sendall(request({**LONG, "stream": True}))
        assert raw.recv(12) == b"HTTP/1.1 200"
    return made


def answer(raw: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of an answer that has a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = raw.recv(4096)
        assert part, data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += raw.recv(4096)
    return head, body


async def nothing(context, body):
    raise AssertionError


@pytest.mark.parametrize(
    "data, whole",
    [
        (HEAD + b"Content-Length: 2\r\n\r\n{}", True),
        (HEAD + b"content-length:2 \r\nConnection: Keep-Alive\r\n\r\n{}", True),
        (HEAD + b"Content-Length: 2\r\n\r\n{", False),
        (HEAD + b"Content-Length: 2\r\n\r\n{}x", False),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", False),
        (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", False),
        (HEAD + b"Content-Length : 2\r\n\r\n{}", False),
        (HEAD + b"X: a\r\n Content-Length: 2\r\n\r\n{}", False),
        (HEAD + b"Content-Length: +2\r\n\r\n{}", False),
        (HEAD + b"Content-Length: 2\r\nX: a\r\n\tb\r\n\r\n{}", False),
        (HEAD + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{}", False),
        (HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}", False),
        (HEAD + b"Content-Length: 2\r\nOrigin: http://localhost\r\n\r\n{}", False),
        (HEAD.replace(b"1.1", b"1.0") + b"Content-Length: 2\r\n\r\n{}", False),
        (HEAD + b"X: " + b"a" * 9000 + b"\r\nContent-Length: 2\r\n\r\n{}", False),
        (b"", False),
    ],
)
def test_only_a_request_without_doubts_is_answered_unparsed(data, whole):
    assert is_whole(data) is whole


def test_a_door_counts_by_kind_of_work_and_refuses_in_the_shape_of_the_api():
    routes = [
        Route("POST", "/a", nothing, "", work="generate"),
        Route("POST", "/b", nothing, "", work="embed", shape="ollama"),
        Route("POST", "/c", nothing, ""),
    ]
    metrics = Metrics()
    door = Door(routes, {"generate": 2, "embed": 1}.__getitem__, metrics)

    def asked(path: str) -> bytes:
        return request({}, f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode())

    assert [door.enter(asked(path)) for path in ("/a", "/a", "/a", "/b", "/b", "/c", "/d")] == [
        *("generate", "generate", "", "embed", "", "", "")
    ]
    for path, shape in (("/a", dict), ("/b", str)):
        head, body = door.refusal(asked(path), [(b"date", b"now")]).split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ") and b"\r\ndate: now" in head and b"\r\nretry-after: 1\r\n" in head
        assert isinstance(json.loads(body)["error"], shape)
    assert door.refusal(asked("/c"), []) is None and door.refusal(asked("/a")[:-1], []) is None
    door.leave("generate")
    assert door.refusal(asked("/a"), []) is None and door.under_way == {"generate": 1, "embed": 1}
    assert 'http_requests_total{method="POST",route="/a",status="429"} 1' in metrics.text({}, {})


def test_what_was_let_in_is_worked_on_in_order_a_little_at_a_time():
    done: list[int] = []
    turns = Turns()

    def work(number: int) -> None:
        done.append(number)
        if number == 2:
            turns.add(lambda: work(100))
        if number == 5:
            raise RuntimeError("of one request")

    async def run() -> list[int]:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        counts = []
        for number in range(10):
            turns.add(lambda number=number: work(number))
        while len(done) < 11:
            counts.append(len(done))
            await asyncio.sleep(0)
        return counts

    counts = asyncio.run(run())
    assert done == [*range(10), 100]
    assert max(after - before for before, after in itertools.pairwise(counts)) <= A_TURN


def test_a_connection_is_of_use_after_a_refusal(serve):
    running = serve(limits={"running": 1, "waiting": 1})
    streams = held(running, 2)
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # so that the connection is there
        assert answer(raw)[0].startswith(b"HTTP/1.1 200")
        for _ in range(3):
            raw.sendall(request(LONG))
            head, body = answer(raw)
            assert head.startswith(b"HTTP/1.1 429") and b"connection: close" not in head
            assert json.loads(body)["error"]["code"] == "queue_full" and b"\r\nx-request-id: req_" in head
        for one in streams:
            one.close()
        wait_for(lambda: idle(running))
        raw.sendall(request({**LONG, "max_tokens": 2}))
        assert answer(raw)[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("used", [False, True])
def test_a_request_that_waits_for_its_turn_is_not_taken_for_silence(serve, monkeypatch, used):
    """Neither the wait for a first request nor that for the next one ends while bytes of a request lie there."""
    running = serve(limits={"keep_alive_s": 1, "header_s": 1.0})
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        if used:
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer(raw)[0].startswith(b"HTTP/1.1 200")
        wait_for(lambda: running._server.server_state.connections)
        put_off: list = []
        monkeypatch.setattr(running.app.serving.door.turns, "add", put_off.append)
        raw.sendall(request({**LONG, "max_tokens": 2}))
        wait_for(lambda: put_off)
        time.sleep(1.5)  # longer than either
        running._loop.call_soon_threadsafe(put_off[0])
        assert answer(raw)[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("more", [b"Origin: http://localhost\r\n", b"Connection: close\r\n", b"X-Request-Id: mine\r\n"])
def test_what_the_parser_is_needed_for_is_refused_all_the_same(serve, more):
    running = serve(limits={"running": 1, "waiting": 1})
    streams = held(running, 2)
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        raw.sendall(request(LONG, HEAD + more))
        head, body = answer(raw)
        assert head.startswith(b"HTTP/1.1 429") and b"\r\nretry-after: 1" in head
        assert json.loads(body)["error"]["code"] == "queue_full"
        assert (b"x-request-id: mine" in head) == (more.startswith(b"X"))
    for one in streams:
        one.close()
    wait_for(lambda: idle(running))


@pytest.mark.parametrize(
    "data",
    [
        request({**LONG, "model": "absent"}),
        request({**LONG, "temperature": -1}),
        HEAD + b"Content-Length: 5\r\n\r\n{",
        HEAD + b"Content-Le",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/9\r\n\r\n",
        b"POST /v1/chat/completions ",
        request(LONG) + request(LONG),
        request({**LONG, "max_tokens": 1}) * 3,
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_places_come_back_from_requests_that_fail_break_off_or_follow_each_other(server, data, late):
    """`late`: the connection is there before its first byte."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        if late:
            wait_for(lambda: server._server.server_state.connections)
        raw.sendall(data[:20])
        raw.sendall(data[20:])
        time.sleep(0.02)
    wait_for(lambda: idle(server))


def test_other_work_goes_on_when_one_kind_has_no_place(serve):
    running = serve(limits={"running": 1, "waiting": 1})
    streams = held(running, 2)
    with httpx.Client(base_url=running.url) as client:
        assert client.post("/v1/chat/completions", json=LONG).status_code == 429
        assert client.post("/v1/embeddings", json={"model": "bert", "input": "a"}).status_code == 200
        assert client.get("/v1/models").status_code == 200
        counted = client.post("/v1/messages/count_tokens", json={"model": "tiny", "messages": LONG["messages"]})
        assert counted.status_code == 200
        text = client.get("/metrics").text
    assert 'weft:http_requests_total{method="POST",route="/v1/chat/completions",status="429"} 1' in text
    for one in streams:
        one.close()


def test_a_client_that_is_still_sending_can_read_that_it_is_one_too_many(serve):
    running = serve(limits={"connections": 1})
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as first:
        first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(first)[0].startswith(b"HTTP/1.1 200")
        for data in (HEAD + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1000, request(LONG)):
            with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
                raw.sendall(data)
                head, body = answer(raw)
                assert head.startswith(b"HTTP/1.1 429") and b"\r\nretry-after: 1\r\n" in head
                assert b"connection: close" in head and json.loads(body)["error"]["code"] == "queue_full"
                assert raw.recv(100) == b""
