"""Every route but /health wants a key, the page has a form for it, and whoever tries many keys waits."""

import asyncio
from pathlib import Path

import httpx
import pytest

from weft.errors import InputError, NotFoundError
from weft.serve import BackgroundServer, ModelSpec, Settings
from weft.serve.http import keys
from weft.serve.http.guard import OPEN_PATHS
from weft.serve.http.keys import Attempts, Keys, network_of
from weft.serve.settings import read_keys

KEYS = ("secret-one", "secret-two")
FORM = {"content-type": "application/x-www-form-urlencoded"}


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
        assert client.get("/docs").status_code == 200 and "tiny" not in client.get("/docs").text
        for method, path in paths_of(locked):
            files = path.startswith(("/page/", "/lab/", "/health"))
            if not files and (method, path) not in (("GET", "/"), ("GET", "/docs")):
                found = client.request(method, path.replace("{model:path}", "tiny"), json={})
                assert found.status_code == 401, (method, path)
        assert httpx.get(f"{locked.url}/", cookies={"weft_page": "x"}).status_code == 401


def test_signing_in_leads_back_to_the_page_that_was_opened_and_nowhere_else(locked):
    with httpx.Client(base_url=locked.url) as client:
        asked = client.get("/docs", headers={"accept": "text/html"})
        assert asked.status_code == 401 and 'name="page" value="/docs"' in asked.text
        again = client.post("/weft/sign-in", data={"key": "wrong", "page": "/docs"})
        assert again.status_code == 401 and 'name="page" value="/docs"' in again.text
        for page, there in (("/docs", "/docs"), ("/", "/"), ("", "/"), ("https://evil.example", "/"), ("//evil", "/")):
            found = client.post("/weft/sign-in", data={"key": KEYS[0], "page": page})
            assert found.status_code == 303 and found.headers["location"] == there


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


class Clock:
    """A clock that attempts wait by, and how long they waited."""

    def __init__(self, attempts: Attempts) -> None:
        self.now, self.waits = 0.0, []
        attempts.clock, attempts.sleep = lambda: self.now, self.sleep

    async def sleep(self, seconds: float) -> None:
        self.waits.append(round(seconds, 3))


def test_wrong_keys_are_answered_later_and_later_and_right_ones_at_once():
    attempts = Attempts(100)
    clock = Clock(attempts)

    def wait_of(address: str, number: int | None) -> float:
        clock.waits.clear()
        asyncio.run(attempts.judge((address, 1), number))
        return sum(clock.waits)

    waits = [wait_of("10.0.0.1", None) for _ in range(keys.SUSPECT)]
    assert waits[: keys.FREE + 1] == [0] * (keys.FREE + 1) and waits == sorted(waits) and waits[-1] == keys.MOST_S
    assert wait_of("10.0.0.1", 0) == 0 and wait_of("10.0.0.2", 0) == wait_of("10.0.0.2", None) == 0
    wait_of("10.0.0.1", None)
    # Too many by now: a key that was right here before is right at once, another one tells nothing by its time.
    assert wait_of("10.0.0.1", 0) == 0 and wait_of("10.0.0.1", 1) == wait_of("10.0.0.1", None) == keys.MOST_S
    assert wait_of("10.0.0.1", 1) == 0
    clock.now += keys.SUSPECT * keys.FORGET_S
    assert wait_of("10.0.0.1", None) == 0


def test_attempts_take_little_memory_whatever_is_tried(monkeypatch):
    monkeypatch.setattr(keys, "REMEMBERED", 50)
    attempts = Attempts(100)
    for number in range(300):
        asyncio.run(attempts.judge((f"10.0.{number}.1", 1), None))
        asyncio.run(attempts.judge((f"10.1.{number}.1", 1), number))
    assert len(attempts._failures) == len(attempts._right) == 50
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") and network_of("fe80::1%eth0") == "fe80::/64"


def test_answers_that_wait_are_few_and_the_rest_is_refused():
    attempts = Attempts(keys.DELAYED + 1)
    Clock(attempts)

    async def run() -> list[int]:
        for address in ("10.0.0.1", "10.0.0.2"):
            for _ in range(keys.SUSPECT + 1):
                await attempts.judge((address, 1), None)
        waiting = asyncio.Event()
        attempts.sleep = lambda seconds: waiting.wait()
        asked = [("10.0.0.1", None)] * keys.DELAYED + [("10.0.0.1", None), ("10.0.0.1", 0), ("10.0.0.2", None)]
        tasks = [asyncio.ensure_future(attempts.judge((a, 1), n)) for a, n in [*asked, ("10.0.0.2", None)]]
        await asyncio.sleep(0)
        await attempts.judge(("10.0.0.3", 1), 0)  # others go on
        waiting.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert attempts._delayed == 0
        return [getattr(one, "status", 0) for one in found]

    assert asyncio.run(run()) == [0] * keys.DELAYED + [429, 429, 0, 429]


def test_failed_sign_ins_are_slowed_down_by_header_and_by_form(specs):
    with BackgroundServer(Settings(models=specs, port=0, keys=KEYS)) as running, httpx.Client() as client:
        clock = Clock(running.app._guarded._attempts)
        for number in range(keys.FREE + 2):
            found = client.get(f"{running.url}/v1/models", headers={"x-api-key": f"guess-{number}"})
            assert found.status_code == 401 and found.json()["error"]["code"] == "invalid_api_key"
        assert len(clock.waits) == 1
        assert client.post(f"{running.url}/weft/sign-in", data={"key": "guess"}).status_code == 401
        assert len(clock.waits) == 2 and clock.waits[0] < clock.waits[1]
        for _ in range(3):
            assert client.get(f"{running.url}/v1/models", headers={"x-api-key": KEYS[0]}).status_code == 200
            assert client.post(f"{running.url}/weft/sign-in", data={"key": KEYS[1]}).status_code == 303
            assert client.get(f"{running.url}/v1/models").status_code == 401  # without a key nothing was tried
        assert len(clock.waits) == 2


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
