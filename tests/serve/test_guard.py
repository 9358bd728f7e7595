"""No request gets past the guard that should not: Host, Origin, media types, sizes, lengths."""

import asyncio
import select
import socket
from contextlib import suppress
from types import SimpleNamespace

import httpx
import pytest

from weft.serve import BackgroundServer, Limits, Settings
from weft.serve.http import bodies
from weft.serve.http import server as http_server
from weft.serve.http.faults import Fault
from weft.serve.http.guard import host_of
from weft.serve.settings import is_loopback

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.mark.parametrize(
    "host",
    ["evil.com", "localhost.evil.com", "127.0.0.1.evil.com", "evil.com:80", "10.0.0.1", "", "localhost evil", "[::2]"],
)
def test_a_name_made_to_point_here_is_refused(client, host):
    found = client.get("/v1/models", headers={"host": host})
    assert found.status_code in (400, 403), found.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "127.9.9.9", "[::1]:8000", "localhost."])
def test_names_of_this_machine_are_served(client, host):
    assert client.get("/v1/models", headers={"host": host}).status_code == 200


def test_a_further_name_may_be_allowed(serve):
    running = serve(allowed_hosts=("weft.example",))
    assert httpx.get(f"{running.url}/health", headers={"host": "weft.example:80"}).status_code == 200
    assert httpx.get(f"{running.url}/health", headers={"host": "x.weft.example"}).status_code == 403


@pytest.fixture(scope="module")
def exposed(specs):
    """A server that believes that other machines reach it, without a key; it listens on this machine only."""

    def listen(settings: Settings) -> socket.socket:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        return bound

    given = Settings(models=specs, port=0, host="0.0.0.0", allow_unauthenticated=True, allowed_hosts=("weft.example",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_server, "listen", listen)
        with BackgroundServer(given) as running:
            yield running


@pytest.mark.parametrize("host", ["evil.com", "evil.com:80", "127.0.0.1.evil.com", "10.0.0.1.nip.io", "mybox", "[::1"])
def test_a_server_without_a_key_answers_to_no_foreign_name_wherever_it_listens(exposed, host):
    """Else a page at evil.com could have its name point here, and its script would be of the same origin."""
    url = f"http://127.0.0.1:{exposed.port}/v1/models"
    for found in (
        httpx.get(url, headers={"host": host}),
        httpx.get(url, headers={"host": host, "origin": f"http://{host}"}),
        httpx.options(url, headers={"host": host, "access-control-request-method": "POST"}),
    ):
        assert found.status_code == 403 and found.json()["error"]["code"] == "host_not_allowed", found.text
        name = host.partition(":")[0]
        assert host == "[::1" or f"--allowed-host {name}" in found.json()["error"]["message"]


@pytest.mark.parametrize("host", ["10.0.0.1", "192.168.1.5:8000", "[fe80::1]:80", "localhost", "weft.example:80"])
def test_addresses_and_allowed_names_are_answered_where_others_can_connect(exposed, host):
    url = f"http://127.0.0.1:{exposed.port}/v1/models"
    assert httpx.get(url, headers={"host": host}).status_code == 200
    assert httpx.get(url, headers={"host": host, "origin": f"http://{host}"}).status_code == 200
    refused = httpx.get(url, headers={"host": host, "origin": "http://evil.com"})
    assert refused.status_code == 403 and "--allow-origin" in refused.json()["error"]["message"]


def test_what_a_browser_fetches_for_another_page_is_refused_also_without_an_origin(client):
    def status(site: str, mode: str) -> int:
        return client.get("/v1/models", headers={"sec-fetch-site": site, "sec-fetch-mode": mode}).status_code

    assert status("cross-site", "no-cors") == status("same-site", "no-cors") == 403
    assert status("cross-site", "navigate") == status("same-origin", "cors") == status("none", "navigate") == 200


@pytest.mark.parametrize("origin", ["http://evil.com", "null", "https://localhost.evil.com", "file://", "http://"])
def test_pages_of_other_origins_are_refused_and_told_nothing(client, origin):
    for found in (
        client.get("/v1/models", headers={"origin": origin}),
        client.post("/v1/chat/completions", headers={"origin": origin}, json=CHAT),
        client.options("/v1/models", headers={"origin": origin, "access-control-request-method": "POST"}),
    ):
        assert found.status_code == 403
        assert not [name for name in found.headers if name.startswith("access-control")]


def test_the_own_page_is_no_other_origin(client, server):
    assert client.get("/v1/models", headers={"origin": server.url}).status_code == 200


def test_an_origin_that_was_allowed_gets_cors_headers_and_nobody_else(serve):
    running = serve(allowed_origins=("https://app.example",))
    origin = {"origin": "https://app.example"}
    found = httpx.get(f"{running.url}/v1/models", headers=origin)
    assert found.status_code == 200
    assert found.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-credentials" not in found.headers
    asked = httpx.options(f"{running.url}/v1/models", headers={**origin, "access-control-request-method": "POST"})
    assert asked.status_code == 204 and {"POST", "DELETE"} <= {
        *asked.headers["access-control-allow-methods"].split(", ")
    }
    assert httpx.get(f"{running.url}/v1/models", headers={"origin": "https://b.example"}).status_code == 403


# What the client libraries for JavaScript ask for in a browser, with dangerouslyAllowBrowser.
OPENAI_JS = (
    "authorization,content-type,openai-organization,openai-project,x-stainless-arch,x-stainless-lang,x-stainless-os,"
    "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,"
    "x-stainless-timeout,x-stainless-helper-method,openai-beta"
)
ANTHROPIC_JS = (
    "anthropic-beta,anthropic-dangerous-direct-browser-access,anthropic-version,content-type,x-api-key,"
    "x-stainless-arch,x-stainless-helper-method,x-stainless-lang,x-stainless-retry-count,x-stainless-timeout"
)


@pytest.fixture(scope="module")
def with_origin(specs):
    with BackgroundServer(Settings(models=specs, port=0, allowed_origins=("https://app.example",))) as running:
        yield running


@pytest.mark.parametrize("wanted", [OPENAI_JS, ANTHROPIC_JS, "x-requested-with, traceparent"])
def test_the_headers_of_client_libraries_pass_the_preflight_of_an_allowed_origin(with_origin, wanted):
    asked = {"access-control-request-method": "POST", "access-control-request-headers": wanted}
    url = f"{with_origin.url}/v1/chat/completions"
    found = httpx.options(url, headers={**asked, "origin": "https://app.example"})
    assert found.status_code == 204 and "access-control-allow-private-network" not in found.headers
    allowed = {name.strip().lower() for name in found.headers["access-control-allow-headers"].split(",")}
    assert {name.strip() for name in wanted.split(",")} <= allowed
    private = {"access-control-request-private-network": "true", "origin": "https://app.example"}
    assert httpx.options(url, headers={**asked, **private}).headers["access-control-allow-private-network"] == "true"
    refused = httpx.options(url, headers={**asked, "origin": "https://evil.example"})
    assert refused.status_code == 403 and not [n for n in refused.headers if n.startswith("access-control")]
    answered = httpx.post(
        url, json=CHAT, headers={"origin": "https://app.example", "x-stainless-lang": "js"}, timeout=60
    )
    assert answered.status_code == 200 and "x-request-id" in answered.headers["access-control-expose-headers"]


def test_a_preflight_echoes_nothing_that_is_no_list_of_names(with_origin):
    for wanted in ("a b", "x;y", "<script>", "", "a,,b"):
        headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
        headers["access-control-request-headers"] = wanted
        found = httpx.options(f"{with_origin.url}/v1/models", headers=headers)
        assert found.status_code == 204 and "access-control-allow-headers" not in found.headers


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/json; charset=latin-1"],
)
def test_what_is_not_sent_as_json_is_refused(client, kind):
    found = client.post("/v1/chat/completions", content=b'{"model":"tiny"}', headers={"content-type": kind})
    assert found.status_code == 415
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    assert client.post("/v1/chat/completions", content=b"x", headers=packed).status_code == 415


def test_bodies_headers_and_addresses_have_their_limits(serve):
    running = serve(limits={"generate_bytes": 2000, "embed_bytes": 4000})
    json_type = {"content-type": "application/json"}
    url = f"{running.url}/v1/chat/completions"

    def sized(count: int) -> bytes:
        return b'{"model":"' + b"x" * (count - 12) + b'"}'

    assert httpx.post(url, content=sized(2000), headers=json_type).status_code == 400
    assert httpx.post(url, content=sized(2001), headers=json_type).status_code == 413
    assert httpx.post(url, content=iter([sized(2001)]), headers=json_type).status_code == 413
    assert httpx.post(f"{running.url}/v1/embeddings", content=sized(3999), headers=json_type).status_code == 400
    many = {f"x-{number}": "1" for number in range(101)}
    assert httpx.get(f"{running.url}/v1/models", headers=many).status_code == 431
    assert httpx.get(f"{running.url}/v1/models?{'q' * 8200}").status_code == 414


def test_a_body_far_over_the_limit_is_not_read(serve):
    running = serve(limits={"generate_bytes": 1000})
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{running.port}\r\n"
        raw.sendall((head + "Content-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n").encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 413")
        assert raw.recv(4096) == b"" or raw.recv(4096) == b""


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\n\r\n",  # no Host
        "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        "POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        "POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n"[:0] + "nonsense\r\n\r\n",
    ],
)
def test_ambiguous_requests_are_refused(server, head):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(head.encode())
        status = raw.recv(4096).split(b" ")[1:2]
    assert status in ([b"400"], [b"403"], [b"405"]), status


CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"
NEXT = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def read_rest(raw: socket.socket) -> bytes:
    """What comes until the connection is closed."""
    received = b""
    with suppress(ConnectionResetError):
        while part := raw.recv(4096):
            received += part
    return received


@pytest.mark.parametrize(
    "lengths, body",
    [
        (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", CHUNKED),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", CHUNKED),
        (b"transfer-encoding:chunked\r\nCONTENT-LENGTH:%d\r\n" % len(CHUNKED), CHUNKED),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", CHUNKED),
        (b"Transfer-Encoding: gzip, chunked\r\n", CHUNKED),
        (b"Content-Length: 2\r\nContent-Length: 2\r\n", b"{}"),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{}"),
        (b"Content-Length: 2, 3\r\n", b"{}"),
        (b"Content-Length: +2\r\n", b"{}"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_request_whose_end_can_be_read_in_two_ways_closes_the_connection(server, lengths, body, at_once):
    """Else what a proxy takes for a body could be a request here, with the rights of the next client."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        for part in [head + lengths + b"\r\n" + body + NEXT] if at_once else [head, lengths + b"\r\n", body + NEXT]:
            with suppress(ConnectionError):  # it may be closed by then
                raw.sendall(part)
        received = read_rest(raw)
    assert received.split(b" ")[1] in (b"400", b"501") and received.count(b"HTTP/1.1") == 1, received
    assert b"connection: close" in received.lower() and b'"error"' in received


@pytest.mark.parametrize("at_once", [True, False])
def test_headers_have_a_limit_however_they_arrive(serve, at_once):
    running = serve(limits={"header_bytes": 2000})
    for padding, status in (
        (b"X: " + b"x" * 1800, b"200"),
        (b"X: " + b"x" * 2000, b"431"),
        (b"X:" + b" " * 2000, b"431"),
    ):
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + padding + b"\r\n\r\n"
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
            parts = [whole] if at_once else [whole[:1000], whole[1000:2010], whole[2010:]]
            for part in parts:
                with suppress(ConnectionError):
                    raw.sendall(part)
                if select.select([raw], [], [], 0.05)[0]:  # answered before the rest: what is sent now would reset it
                    break
            answer = raw.recv(4096)
            assert answer.split(b" ")[1] == status, answer
            if status == b"431":
                answer += read_rest(raw)
                assert b"connection: close" in answer and b"the headers exceed the limit of 2000 bytes" in answer


def test_slow_headers_are_given_up_also_after_an_answer(serve):
    running = serve(limits={"header_s": 0.2})
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for before in (b"", whole):
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
            raw.sendall(before)
            received = b""
            while before and not received.endswith(b"}"):
                received += raw.recv(4096)
            raw.sendall(b"GET /health HTT")
            with suppress(ConnectionResetError):
                assert raw.recv(100) == b""


def test_one_connection_too_many_is_told_so_and_closed(serve):
    running = serve(limits={"connections": 2})
    held = [socket.create_connection(("127.0.0.1", running.port), timeout=10) for _ in range(2)]
    for raw in held:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 200")
    with httpx.Client(base_url=running.url) as client:
        found = client.get("/health")
    assert found.status_code == 429 and found.headers["retry-after"] == "1"
    assert found.json()["error"]["code"] == "queue_full"
    for raw in held:
        raw.close()


def test_slow_bodies_are_given_up(serve):
    running = serve(limits={"body_s": 0.2})
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        raw.sendall((head + "Content-Length: 100\r\n\r\n{").encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "parts, pause_s, arrives",
    [
        ([1000] * 30, 1.0, False),  # a kilobyte a second
        ([10_000] * 30, 1.0, True),
        ([1_000_000, 1], 16.0, False),  # what came quickly does not pay for a pause
        ([1, 1], 7.0, True),
    ],
)
def test_a_body_must_keep_a_rate_after_a_time_of_grace(monkeypatch, parts, pause_s, arrives):
    now, parts = 100.0, list(parts)

    async def wait_for(message, seconds):
        nonlocal now
        now += min(seconds, pause_s)
        message.close()
        if seconds < pause_s:
            raise asyncio.TimeoutError
        return {"type": "http.request", "body": b"x" * parts.pop(0), "more_body": bool(parts)}

    async def receive():
        raise AssertionError

    monkeypatch.setattr(bodies, "asyncio", SimpleNamespace(wait_for=wait_for, TimeoutError=asyncio.TimeoutError))
    monkeypatch.setattr(bodies, "time", SimpleNamespace(monotonic=lambda: now))
    noted: list[int] = []
    size = sum(parts)
    reading = bodies.read_body(receive, {}, 8 << 20, Limits(), noted.append)
    if arrives:
        assert len(asyncio.run(reading)) == sum(noted) == size
    else:
        with pytest.raises(Fault, match="8192 bytes a second") as caught:
            asyncio.run(reading)
        assert caught.value.status == 408 and caught.value.closes


def test_hosts_are_read_as_hosts():
    assert [host_of(text) for text in ("a:1", "[::1]:2", "A.b.", "a:b", "a b", "")] == [
        "a",
        "::1",
        "a.b",
        None,
        None,
        None,
    ]
    assert is_loopback("127.3.2.1") and is_loopback("::1") and not is_loopback("127.evil") and not is_loopback("")


def test_every_answer_has_an_id_and_says_what_it_is(client):
    found = client.get("/v1/models", headers={"x-request-id": "mine-1"})
    assert found.headers["x-request-id"] == "mine-1"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert client.get("/v1/models", headers={"x-request-id": "bad id!"}).headers["x-request-id"].startswith("req_")
    assert "server" not in found.headers
