"""Requests beyond a model's queue get 429, places are given back whatever happens, and clients that send slowly or much
keep nobody else out."""

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import httpx
import pytest
from idleness import idle, wait_for

from weft.serve import BackgroundServer, Limits, Settings
from weft.serve.http.faults import Fault
from weft.serve.work.tracking import Arrivals, Call, Places

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


def test_places_are_counted_by_kind_of_work_and_given_back():
    places = Places({"generate": 2, "embed": 1}.__getitem__)
    with places.taken("generate"), places.taken("embed"), places.taken(""), places.taken(""):
        with places.taken("generate"), pytest.raises(Fault, match="2 requests") as caught, places.taken("generate"):
            pass
        assert caught.value.status == 429 and caught.value.retry_after_s == 1
        assert places.under_way == {"generate": 1, "embed": 1, "": 2}
        with pytest.raises(RuntimeError), places.taken("generate"):
            raise RuntimeError("of one request")
        assert places.under_way["generate"] == 1
    assert not any(places.under_way.values())


def test_a_tenant_has_a_share_of_the_places_and_leaves_room_for_the_next():
    places = Places(lambda work: 12, tenants=3)

    def take(tenant: str) -> int:
        """As many places as there are for a tenant."""
        before = places.under_way.get("generate", 0)
        with suppress(Fault):
            while True:
                taken.enter_context(places.taken("generate", tenant))
        with pytest.raises(Fault) as caught:
            places.check("generate", tenant)
        assert caught.value.status == 429 and caught.value.retry_after_s == 1
        return places.under_way["generate"] - before

    with ExitStack() as taken:
        assert [take("a"), take("b"), take("c"), take("a")] == [6, 4, 2, 0]
    assert places.under_way == {"generate": 0}
    with ExitStack() as taken:
        assert take("c") == 6
    for tenants, alone in ((1, 12), (2, 6), (1000, 6)):
        places = Places(lambda work: 12, tenants=tenants)
        with ExitStack() as taken:
            assert take("a") == alone


def test_one_key_cannot_take_the_places_of_another(serve):
    running = serve(limits={"running": 2, "waiting": 2}, keys=("one", "two"))  # 8 places, for two generators
    heads = {key: HEAD + b"Authorization: Bearer %s\r\n" % key.encode() for key in ("one", "two")}
    streams = []
    for number in range(5):
        streams.append(socket.create_connection(("127.0.0.1", running.port), timeout=10))
        streams[-1].sendall(
            request({**LONG, "max_tokens": 1000, "stream": True, "model": ("tiny", "plain")[number % 2]}, heads["one"])
        )
        assert streams[-1].recv(12) == (b"HTTP/1.1 200" if number < 4 else b"HTTP/1.1 429")
    for key, status in (("one", 429), ("two", 200)):
        found = httpx.post(
            f"{running.url}/v1/chat/completions",
            json={**LONG, "max_tokens": 2},
            headers={"authorization": f"Bearer {key}"},
            timeout=60,
        )
        assert found.status_code == status, found.text
        assert status == 200 or "this key has 4 requests" in found.json()["error"]["message"]
    for one in streams:
        one.close()


def test_one_key_cannot_fill_a_models_queue_with_one_request_of_many_answers(serve, specs):
    """Nor by asking one of several models: each has a queue of its own."""
    running = serve(limits={"running": 2, "waiting": 10}, keys=("one", "two"))

    def ask(key: str, **more: object) -> httpx.Response:
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2, **more}
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(f"{running.url}/v1/completions", json=body, headers=headers, timeout=60)

    never = ask("one", prompt=["a"] * 7)
    assert (
        never.status_code == 400 and "asks for 7 answers at once; a key may have 6" in never.json()["error"]["message"]
    )
    head = HEAD.replace(b"chat/completions", b"completions") + b"Authorization: Bearer one\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        asked = {"model": "tiny", "prompt": ["a", "b"], "n": 3, "max_tokens": 1000, "ignore_eos": True, "stream": True}
        raw.sendall(request(asked, head))
        assert raw.recv(12) == b"HTTP/1.1 200"
        assert running.app.serving.queues.under_way == {"tiny": 6}
        refused = ask("one")
        assert refused.status_code == 429 and "this key has 6 requests" in refused.json()["error"]["message"]
        assert ask("one", model="plain").status_code == 200
        assert ask("two", prompt=["a"] * 6).status_code == 200
    wait_for(lambda: idle(running))


def test_bodies_that_are_still_arriving_keep_nobody_out(narrow):
    """Two places, and a dozen clients that send a byte now and then."""
    whole = request({**LONG, "max_tokens": 2})
    slow = [socket.create_connection(("127.0.0.1", narrow.port), timeout=10) for _ in range(12)]
    for raw in slow:
        raw.sendall(whole[:-5])
    wait_for(lambda: len(narrow.app.serving.arrivals) == 12)
    assert not any(narrow.app.serving.places.under_way.values())
    for raw in slow:
        raw.sendall(whole[-5:-4])
    with httpx.Client(base_url=narrow.url, timeout=60) as client:
        assert client.post("/v1/chat/completions", json={**LONG, "max_tokens": 2}).status_code == 200
    slow[0].sendall(whole[-4:])
    assert answer(slow[0])[0].startswith(b"HTTP/1.1 200")
    for raw in slow:
        raw.close()
    wait_for(lambda: idle(narrow) and not len(narrow.app.serving.arrivals))


def test_of_too_many_bodies_the_oldest_of_the_busiest_tenant_is_given_up():
    ended: list[Call] = []

    def arrive(tenant: str, age_s: float) -> tuple[Call, Callable[[int], None]]:
        call = Call("id", "", "POST", tenant, started=time.monotonic() - age_s)
        call.end = lambda fault: ended.append(call)  # type: ignore[method-assign]
        return call, entered.enter_context(arrivals.arriving(call))

    arrivals = Arrivals(3, 100)
    with ExitStack() as entered:
        arrive("b", 9)
        first, _ = arrive("a", 5)
        arrive("a", 4)
        assert not ended
        arrive("c", 0)
        assert ended == [first] and len(arrivals) == 3
    assert not len(arrivals)
    ended.clear()
    with ExitStack() as entered:  # those that have just begun are left in peace
        for _ in range(5):
            arrive("a", 0)
        assert not ended and len(arrivals) == 5
    with ExitStack() as entered:  # and so are those that are all here, and wait for this server to read them
        calls = [arrive("a", 9)[0] for _ in range(3)]
        for call in calls:
            call.arrived = lambda: True
        for _ in range(3):
            arrive("a", 9)
        assert not ended and len(arrivals) == 6
        arrive("b", 0)
        assert len(ended) == 1 and ended[0] not in calls
    ended.clear()
    with ExitStack() as entered:  # and of too many bytes
        (large, note_large), (small, note_small) = arrive("a", 9), arrive("b", 9)
        note_large(90)
        note_small(10)
        assert not ended
        note_small(1)
        assert ended == [large] and len(arrivals) == 1
        note_large(1)  # what it had sent already
        note_small(100)
        assert ended == [large, small]


def test_a_body_that_is_given_up_gets_an_answer_and_its_bytes_are_free(serve):
    running = serve(limits={"bodies_bytes": 100_000})
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        raw.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 60_000)
        wait_for(lambda: sum(running.app.serving.arrivals._sizes.values()) == 60_000)
        with httpx.Client(base_url=running.url, timeout=60) as client:
            content = b" " * 70_000 + json.dumps({**LONG, "max_tokens": 2}).encode()
            found = client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
            assert found.status_code == 200, found.text
        head, body = answer(raw)
        assert head.startswith(b"HTTP/1.1 408") and b"connection: close" in head
        assert "too many requests whose body is still arriving" in json.loads(body)["error"]["message"]
        assert raw.recv(10) == b""


@pytest.mark.parametrize(
    "path, error",
    [("/v1/chat/completions", dict), ("/v1/messages", dict), ("/api/chat", str), ("/embed", str), ("/v1/rerank", dict)],
)
def test_a_refusal_has_the_shape_of_the_api_and_comes_after_the_key(crowded, path, error):
    assert httpx.post(f"{crowded.url}{path}", json={}).status_code == 401
    found = httpx.post(f"{crowded.url}{path}", json={}, headers={"x-api-key": "a-key"})
    assert found.status_code == 429 and found.headers["retry-after"] == "1", found.text
    assert isinstance(found.json()["error"], error)


@pytest.fixture(scope="module")
def crowded(specs):
    """A server all of whose places are taken."""
    with BackgroundServer(Settings(models=specs, port=0, keys=("a-key",))) as running:
        running.app.serving.places.under_way |= {"generate": 10_000, "embed": 10_000}
        yield running


@pytest.fixture(scope="module")
def narrow(specs):
    """A server with two places for each model."""
    with BackgroundServer(Settings(models=specs, port=0, limits=Limits(running=1, waiting=1))) as running:
        yield running


def test_a_connection_is_of_use_after_a_refusal(narrow):
    running = narrow
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


@pytest.mark.parametrize("more", [b"Origin: http://localhost\r\n", b"Connection: close\r\n", b"X-Request-Id: mine\r\n"])
def test_a_request_beyond_the_queue_is_refused_with_its_own_id(narrow, more):
    running = narrow
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
