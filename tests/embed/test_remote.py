"""An embedder elsewhere has the local one's interface, asks again where that may help, and checks what it is given."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from tiny_st import PROMPTS, TEXTS

import weft
from weft.embed.posting import retry_after_s
from weft.errors import (
    BackendError,
    BusyError,
    DownloadError,
    InputError,
    NotFoundError,
    OfflineError,
    UnsupportedError,
)

Reply = tuple[int, dict[str, str], bytes]


class Endpoint:
    """A server on this machine whose answers a test writes; `asked` are the bodies it got."""

    def __init__(self, embedder: weft.Embedder) -> None:
        self.embedder = embedder
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.replies: list[Callable[[dict[str, Any]], Reply]] = []  # before the right ones
        self.headers: dict[str, str] = {}
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with endpoint._lock:
                    endpoint.asked.append(body)
                    endpoint.keys.append(self.headers["authorization"])
                    reply = endpoint.replies.pop(0) if endpoint.replies else endpoint.right
                status, headers, data = reply(body)
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def right(self, body: dict[str, Any]) -> Reply:
        vectors = self.embedder.encode(body["input"])
        data = [{"index": i, "embedding": coded(v)} for i, v in enumerate(vectors)]
        return 200, self.headers, json.dumps({"data": data[::-1]}).encode()  # in any order


def coded(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def saying(status: int, body: object = None, **headers: str) -> Callable[[dict[str, Any]], Reply]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: (status, names, json.dumps(body or {"error": {"message": "no"}}).encode())


@pytest.fixture
def endpoint(tiny_embedder: weft.Embedder) -> Iterator[Endpoint]:
    made = Endpoint(tiny_embedder)
    yield made
    made.server.shutdown()
    made.server.server_close()


def remote(endpoint: Endpoint, **options: Any) -> tuple[weft.RemoteEmbedder, list[float]]:
    """An embedder of the endpoint, and the waits that it did not make."""
    embedder = weft.RemoteEmbedder("tiny", endpoint.url, "secret", **options)
    waits: list[float] = []
    embedder._sleep = waits.append  # type: ignore[assignment]
    return embedder, waits


def test_it_has_the_interface_of_a_local_one(endpoint: Endpoint, tiny_embedder: weft.Embedder) -> None:
    embedder, _ = remote(endpoint, prompts=PROMPTS, batch_texts=2, concurrency=3)
    assert embedder.dimension == 24 and np.array_equal(embedder.encode(TEXTS), tiny_embedder.encode(TEXTS))
    assert np.array_equal(embedder.encode_query("a cat"), tiny_embedder.encode_query("a cat"))
    assert np.array_equal(embedder.encode_document(TEXTS), tiny_embedder.encode_document(TEXTS))
    assert embedder.rank("a cat", TEXTS) == tiny_embedder.rank("a cat", TEXTS)
    assert embedder.encode(TEXTS, output_dtype="binary").shape == (6, 3)
    assert all(body["encoding_format"] == "base64" and len(body["input"]) <= 2 for body in endpoint.asked)
    assert set(endpoint.keys) == {"Bearer secret"} and embedder.encode([]).shape[0] == 0


def test_a_cache_saves_requests(endpoint: Endpoint) -> None:
    embedder, _ = remote(endpoint, cache="memory", dimensions=24)
    first = embedder.encode(TEXTS)
    assert np.array_equal(embedder.encode(TEXTS), first) and len(endpoint.asked) == 1
    assert endpoint.asked[0]["dimensions"] == 24


def test_what_may_pass_is_asked_again_after_growing_waits(endpoint: Endpoint, tiny_embedder: weft.Embedder) -> None:
    endpoint.replies = [saying(429), saying(503), saying(500), saying(429, retry_after="7")]
    embedder, waits = remote(endpoint)
    assert np.array_equal(embedder.encode(TEXTS), tiny_embedder.encode(TEXTS)) and len(endpoint.asked) == 5
    assert all(0.25 * 2**n <= wait <= 0.5 * 2**n for n, wait in enumerate(waits[:3])) and waits[3] >= 7


@pytest.mark.parametrize(
    "status, error",
    [(400, InputError), (404, NotFoundError), (401, BackendError), (422, InputError), (501, BackendError)],
)
def test_what_will_not_pass_is_told_at_once(endpoint: Endpoint, status: int, error: type[Exception]) -> None:
    endpoint.replies = [saying(status, {"error": {"message": "because\nof you"}})]
    embedder, waits = remote(endpoint)
    with pytest.raises(error, match=f"{status}: because of you"):
        embedder.encode("a")
    assert not waits and "secret" not in repr(embedder.__dict__.get("model"))


def test_retries_end(endpoint: Endpoint) -> None:
    endpoint.replies = [saying(429)] * 3 + [saying(429, retry_after="3600")]
    embedder, waits = remote(endpoint, retries=2)
    with pytest.raises(BusyError, match="429"):
        embedder.encode("a")
    assert len(waits) == 2 and len(endpoint.asked) == 3
    with pytest.raises(BusyError, match="429"):  # an hour is not waited for
        embedder.encode("a")
    assert len(waits) == 2


def test_a_server_that_is_not_there_is_told(endpoint: Endpoint) -> None:
    embedder, waits = remote(endpoint, retries=1)
    embedder.encode("a")
    endpoint.server.shutdown()
    endpoint.server.server_close()
    dead = weft.RemoteEmbedder("tiny", "http://127.0.0.1:9/v1", retries=1)
    dead._sleep = waits.append  # type: ignore[assignment]
    with pytest.raises(DownloadError, match="does not answer"):
        dead.encode("a")
    assert len(waits) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": []},
        {"data": [{"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": "###"}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [float("nan")]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": None}]},
    ],
)
def test_a_wrong_answer_is_never_taken(endpoint: Endpoint, body: dict[str, Any]) -> None:
    endpoint.replies = [saying(200, body)]
    with pytest.raises(BackendError):
        remote(endpoint)[0].encode(["a", "b"])


def test_another_model_behind_the_same_name_is_noticed(endpoint: Endpoint) -> None:
    endpoint.headers = {"weft-fingerprint": "weft1:one"}
    embedder, _ = remote(endpoint)
    embedder.encode("a")
    assert embedder.server_fingerprint == "weft1:one"
    endpoint.headers = {"weft-fingerprint": "weft1:two"}
    with pytest.raises(BackendError, match="another model"):
        embedder.encode("a")


def test_requests_keep_their_distance(endpoint: Endpoint) -> None:
    embedder, waits = remote(endpoint, requests_per_minute=60, batch_texts=1, concurrency=1)
    embedder.encode(["a", "b", "c"])
    assert len(waits) == 2 and 0.5 < waits[0] <= 1 and 1.5 < waits[1] <= 2


def test_fingerprints_tell_servers_models_and_prompts_apart(endpoint: Endpoint) -> None:
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("m", "http://a/v1", {}),
        ("n", "http://a/v1", {}),
        ("m", "http://b/v1", {}),
        ("m", "http://a/v1", {"dimensions": 5}),
        ("m", "http://a/v1", {"prompts": {"query": "q"}}),
    ]
    assert len({weft.RemoteEmbedder(model, url, **more).fingerprint for model, url, more in ways}) == len(ways)


def test_what_it_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("ftp://a", "http://", "file:///etc/passwd", "http://user:word@host/v1"):
        with pytest.raises(InputError, match="base_url"):
            weft.RemoteEmbedder("m", url)
    with pytest.raises(InputError, match="api_key"):
        weft.RemoteEmbedder("m", "http://a", "key\r\nx: y")
    with pytest.raises(UnsupportedError, match="windows"):
        weft.RemoteEmbedder("m", "http://a").encode("a", truncate="chunk")
    monkeypatch.setenv("WEFT_OFFLINE", "1")
    with pytest.raises(OfflineError, match="WEFT_OFFLINE"):
        weft.RemoteEmbedder("m", "http://a")


def test_retry_after_is_seconds_or_a_date() -> None:
    assert [retry_after_s(text, 0.0) for text in (None, "", "3", "-1", "soon")] == [0, 0, 3, 0, 0]
    assert retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", 20.0) == 40
