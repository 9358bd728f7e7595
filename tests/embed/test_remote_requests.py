"""Requests to a server: connections that are kept, texts that go together, errors that name their text, proxies."""

import base64
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_endpoint import Endpoint, Reply, remote, saying
from tiny_st import TEXTS

import weft
from weft.embed import remote as remote_module
from weft.embed.index.canaries import canary_texts
from weft.errors import DownloadError, FingerprintError, InputError, NotFoundError, TooLongError


def test_connections_are_kept_from_call_to_call(endpoint: Endpoint) -> None:
    embedder, _ = remote(endpoint, concurrency=2, batch_texts=3)
    for _ in range(5):
        embedder.encode(TEXTS)
        embedder.encode_query("a cat")
    assert len(endpoint.asked) == 5 * 3 and len(endpoint.lines) <= 2
    for connection in embedder._poster._idle:  # as if the server had hung up
        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
    assert embedder.encode(TEXTS).shape == (6, 24)


def test_a_forked_child_has_its_own_connections(endpoint: Endpoint) -> None:
    embedder, _ = remote(endpoint)
    embedder.encode(TEXTS)
    poster = embedder._poster
    assert len(poster._idle) == 1
    poster._owner -= 1  # as a child sees its parent's
    embedder.encode(TEXTS)
    assert len(endpoint.lines) == 2 and len(poster._idle) == 1


def test_a_request_has_no_more_text_than_servers_take(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint) -> None:
    monkeypatch.setattr(remote_module, "BATCH_CHARACTERS", 20)
    embedder, _ = remote(endpoint, concurrency=1, batch_texts=4)
    texts = ["the cat", "the cat", "the cat", "the cat sat on the mat", "a", "a", "a", "a", "a"]
    assert embedder.encode(texts).shape == (9, 24)
    assert [body["input"] for body in endpoint.asked] == [texts[:2], texts[2:3], texts[3:4], texts[4:8], texts[8:]]


def refusing(endpoint: Endpoint, numbers: dict[str, int] | None) -> Callable[[dict[str, Any]], Reply]:
    """Replies of a server that takes everything but the text "long"; a weft server also says `numbers`."""

    def reply(body: dict[str, Any]) -> Reply:
        if "long" not in body["input"]:
            return endpoint.right(body)
        error: dict[str, Any] = {"message": "maximum is 256", "code": "context_length_exceeded"}
        if numbers is not None:
            error["details"] = {"index": body["input"].index("long"), **numbers}
        return 400, {}, json.dumps({"error": error}).encode()

    return reply


def test_a_text_that_is_too_long_for_the_server_is_named_by_its_index(endpoint: Endpoint) -> None:
    texts = ["cat"] * 7 + ["long", "cat"]
    known = {"length": 402, "limit": 256}
    for numbers, batch, what in ((known, 3, "has 402 tokens, the model takes 256"), (None, 1, "is too long")):
        endpoint.replies = [refusing(endpoint, numbers)] * 20
        with pytest.raises(TooLongError, match=f"text 7 {what}.*; shorten it") as caught:
            remote(endpoint, batch_texts=batch, cache="memory")[0].encode(texts)
        assert caught.value.index == 7 and caught.value.limit == (256 if batch == 3 else 0)
    endpoint.replies = [refusing(endpoint, None)] * 20
    with pytest.raises(InputError, match=r"maximum is 256 \(the request had texts 6 to 8\)"):
        remote(endpoint, batch_texts=3)[0].encode(texts)


def test_a_proxy_of_the_environment_is_asked(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = endpoint.url.removesuffix("/v1").replace("http://", "http://me:s%40cret@")
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert weft.RemoteEmbedder("tiny", "http://far.invalid:81/v1").encode(TEXTS).shape == (6, 24)
    secret = "Basic " + base64.b64encode(b"me:s@cret").decode()
    assert endpoint.targets[-1] == ("http://far.invalid:81/v1/embeddings", secret)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert weft.RemoteEmbedder("tiny", endpoint.url).encode(TEXTS).shape == (6, 24)
    assert endpoint.targets[-1] == ("/v1/embeddings", None)
    for wrong in ("socks5://x:1", "http://", "http://x:abc"):
        monkeypatch.setenv("http_proxy", wrong)
        with pytest.raises(InputError, match="HTTP_PROXY must be the address of a proxy"):
            weft.RemoteEmbedder("tiny", "http://far.invalid:81/v1").encode(TEXTS)


def test_canaries_are_made_anew_though_a_cache_has_them(endpoint: Endpoint, tmp_path: Path) -> None:
    cache = weft.embed.MemoryCache()
    embedder, _ = remote(endpoint, cache=cache)
    index = weft.Index.from_embedder(embedder)
    index.add_texts(["a"], ["the cat"])
    index.save(tmp_path / "a.index")
    embedder.encode_document(canary_texts(embedder))  # into the cache
    weft.Index.open(tmp_path / "a.index", embedder=remote(endpoint, cache=cache)[0])
    endpoint.right = lambda body: endpoint.giving(np.random.default_rng(1).normal(size=(len(body["input"]), 24)))  # type: ignore[method-assign]
    with pytest.raises(FingerprintError, match=r"canary text . .* changed"):
        weft.Index.open(tmp_path / "a.index", embedder=remote(endpoint, cache=cache)[0])


def test_an_address_is_told_as_it_was_given() -> None:
    with pytest.raises(InputError, match="got 'localhost:11811'"):
        weft.RemoteEmbedder("tiny", "localhost:11811")
    with pytest.raises(InputError, match="api_key must be a string, not int"):
        weft.RemoteEmbedder("tiny", "http://127.0.0.1:9/v1", 5)  # type: ignore[arg-type]


def test_who_does_not_answer_is_told_with_the_port_and_what_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    embedder = weft.RemoteEmbedder("tiny", "http://127.0.0.1:9/v1", retries=3)
    embedder._wait = lambda line, seconds: None
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9 does not answer: .*; check that it is running"):
        embedder.encode("a")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "127.0.0.1:9 does not answer" in said[0] and "retrying in" in said[0]


def test_a_server_that_is_busy_is_waited_for_aloud(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.replies = [saying(429, retry_after="30"), saying(429, retry_after="30")]
    embedder, waits = remote(endpoint)
    embedder.encode("a")
    assert waits == [30.0, 30.0] and "answered 429: no; retrying in 30 s" in caplog.text
    assert caplog.text.count("retrying") == 1  # the second was said to be waited for by then


def test_an_address_without_v1_is_told_of_it(endpoint: Endpoint) -> None:
    endpoint.replies = [saying(404), saying(404)]
    with pytest.raises(NotFoundError, match="need /v1 at the end of base_url"):
        weft.RemoteEmbedder("tiny", endpoint.url.removesuffix("/v1")).encode("a")
    with pytest.raises(NotFoundError) as caught:
        weft.RemoteEmbedder("tiny", endpoint.url).encode("a")
    assert "/v1 at the end" not in str(caught.value)
