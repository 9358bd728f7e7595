"""No request gets past the guard that should not: keys, Host, Origin, media types, sizes, addresses."""

import socket
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from weft.errors import InputError, NotFoundError
from weft.serve import BackgroundServer, ModelSpec, Settings
from weft.serve.http.guard import OPEN_PATHS, host_of
from weft.serve.http.keys import Keys
from weft.serve.settings import is_loopback, read_keys

KEYS = ("secret-one", "secret-two")
FORM = {"content-type": "application/x-www-form-urlencoded"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def locked(specs):
    with BackgroundServer(Settings(models=specs, port=0, keys=KEYS)) as running:
        yield running


def paths_of(server: BackgroundServer) -> list[tuple[str, str]]:
    return [(route.method, route.path) for route in server.app.routes]


def test_every_route_but_health_wants_the_key(locked):
    """A new route cannot forget it: which routes are open is written down here."""
    routes = paths_of(locked)
    assert len(routes) > 10
    open_routes = {("GET", "/health")}
    assert {(route.method, route.path) for route in locked.app.routes if route.open} == open_routes
    assert OPEN_PATHS == ("/health",)
    with httpx.Client(base_url=locked.url) as client:
        for method, path in [*routes, ("POST", "/weft/sign-in"), ("GET", "/nowhere")]:
            filled = path.replace("{model:path}", "tiny").replace("{name:path}", "index.html")
            for accept in ("*/*", "text/html"):
                found = client.request(
                    method, filled, json={} if method == "POST" else None, headers={"accept": accept}
                )
                assert (found.status_code == 401) == ((method, path) not in open_routes), (method, path, found.text)
                assert "secret" not in found.text and "set-cookie" not in found.headers


def test_signing_in_opens_the_page_and_nothing_else(locked):
    html, form = {"accept": "text/html,*/*"}, "/weft/sign-in"
    with httpx.Client(base_url=locked.url) as client:
        asked = client.get("/", headers=html)
        assert asked.status_code == 401 and "<form" in asked.text and asked.headers["www-authenticate"] == "Bearer"
        policy = asked.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and policy.count("'sha256-") == 2
        assert client.get("/").json()["error"]["code"] == "no_key"  # a program gets what programs get
        for wrong in ("", "secret-thre", "Secret-One"):
            refused = client.post(form, data={"key": wrong})
            assert refused.status_code == 401 and "not valid for this server" in refused.text and not client.cookies
        other = {"origin": "https://evil.example"}
        assert client.post(form, data={"key": KEYS[0]}, headers=other).status_code == 403
        assert client.post(form, content=b"key=" + b"x" * 99_999, headers=FORM).status_code == 413
        taken = client.post(form, data={"key": f" {KEYS[1]} "})
        assert taken.status_code == 303 and taken.headers["location"] == "/"
        cookie = taken.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and not any(key in cookie for key in KEYS)
        assert client.get("/").status_code == 200 and client.get("/page/app.js").status_code == 200
        for method, path in paths_of(locked):
            if not path.startswith(("/page/", "/health")) and (method, path) != ("GET", "/"):
                found = client.request(method, path.replace("{model:path}", "tiny"), json={})
                assert found.status_code == 401, (method, path)
        assert httpx.get(f"{locked.url}/", cookies={"weft_page": "x"}).status_code == 401


def test_without_keys_there_is_nothing_to_sign_in_to(client):
    assert client.get("/", headers={"accept": "text/html"}).status_code == 200
    assert client.post("/weft/sign-in", data={"key": "x"}).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer secret-on"},
        {"authorization": "Bearer secret-one "[:-2]},
        {"authorization": "Basic secret-one"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer secret-one,secret-two"},
        {"x-api-key": "SECRET-ONE"},
        {"x-api-key": ""},
    ],
)
def test_a_wrong_key_is_refused_in_the_shape_of_the_api(locked, headers):
    found = httpx.get(f"{locked.url}/v1/models", headers=headers)
    assert found.status_code == 401
    assert found.json()["error"]["type"] == "authentication_error"
    assert found.headers["www-authenticate"] == "Bearer"
    assert httpx.post(f"{locked.url}/v1/messages", headers=headers).json()["type"] == "error"
    assert isinstance(httpx.get(f"{locked.url}/api/tags", headers=headers).json()["error"], str)


@pytest.mark.parametrize("headers", [{"authorization": f"Bearer {KEYS[1]}"}, {"x-api-key": KEYS[0]}])
def test_any_of_the_keys_opens(locked, headers):
    assert httpx.get(f"{locked.url}/v1/models", headers=headers).status_code == 200


def test_keys_are_compared_as_digests_all_of_them():
    keys = Keys(["a", "b", "c"])
    assert [keys.find(key) for key in (b"a", b"b", b"c", b"d", b"")] == [0, 1, 2, None, None]
    assert not Keys([]) and keys


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
    assert asked.status_code == 204 and "POST" in asked.headers["access-control-allow-methods"]
    assert httpx.get(f"{running.url}/v1/models", headers={"origin": "https://b.example"}).status_code == 403


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
    "host, keys, override, starts",
    [
        ("127.0.0.1", (), False, True),
        ("localhost", (), False, True),
        ("::1", (), False, True),
        ("127.8.8.8", (), False, True),
        ("0.0.0.0", (), False, False),
        ("::", (), False, False),
        ("192.168.1.5", (), False, False),
        ("weft.example", (), False, False),
        ("0.0.0.0", ("k",), False, True),
        ("::", ("k",), False, True),
        ("192.168.1.5", ("k",), False, True),
        ("0.0.0.0", (), True, True),
    ],
)
def test_other_machines_need_a_key_or_the_operators_word(host, keys, override, starts):
    made = Settings(models=(ModelSpec("m", "m"),), host=host, keys=keys, allow_unauthenticated=override)
    if starts:
        assert made.checked() is made
    else:
        with pytest.raises(InputError, match="no API key is set"):
            made.checked()


def test_keys_come_from_a_file_and_are_never_shown(tmp_path: Path):
    path = tmp_path / "keys"
    path.write_text("# for the team\nabc\n\n  def  \n")
    assert read_keys(path) == ("abc", "def")
    assert "abc" not in repr(Settings(keys=("abc",)))
    with pytest.raises(NotFoundError):
        read_keys(tmp_path / "missing")


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


def test_keys_share_no_pages_and_one_key_shares_its_own(locked):
    """Whether a prompt was computed before must not show to another key: its time would tell."""
    body = {"model": "tiny", "prompt": "a prompt of more than one page of tokens, " * 4, "max_tokens": 1}

    def cached(key: str, **more: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        found = httpx.post(f"{locked.url}/v1/completions", json={**body, **more}, headers=headers, timeout=30).json()
        return found["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(KEYS[0]) == 0 and cached(KEYS[0]) > 0
    assert cached(KEYS[1]) == 0 and cached(KEYS[1]) > 0
    assert cached(KEYS[0], cache_salt="x") == 0 and cached(KEYS[0], cache_salt="x") > 0
