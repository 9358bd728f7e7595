"""An embedder elsewhere has the local one's interface, asks again where that may help, and checks what it is given."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from remote_endpoint import Endpoint, Reply, remote, saying
from tiny_st import PROMPTS, TEXTS

import weft
from weft.embed import MemoryCache
from weft.embed import remote as remote_module
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


def test_it_has_the_interface_of_a_local_one(endpoint: Endpoint, tiny_embedder: weft.Embedder) -> None:
    embedder, _ = remote(endpoint, prompts=PROMPTS, batch_texts=2, concurrency=3)
    assert embedder.dimension == 24 and np.array_equal(embedder.encode(TEXTS), tiny_embedder.encode(TEXTS))
    assert np.array_equal(embedder.encode_query("a cat"), tiny_embedder.encode_query("a cat"))
    assert np.array_equal(embedder.encode_document(TEXTS), tiny_embedder.encode_document(TEXTS))
    assert embedder.rank("a cat", TEXTS) == tiny_embedder.rank("a cat", TEXTS)
    assert embedder.encode(TEXTS, output_dtype="binary").shape == (6, 3)
    assert all(body["encoding_format"] == "base64" and len(body["input"]) <= 2 for body in endpoint.asked)
    assert set(endpoint.keys) == {"Bearer secret"} and embedder.encode([]).shape == (0, 24)
    assert weft.RemoteEmbedder("tiny", endpoint.url).encode([]).shape == (0, 24)  # which it has to ask for


def test_a_cache_saves_requests(endpoint: Endpoint) -> None:
    embedder, _ = remote(endpoint, cache="memory", dimensions=24)
    first = embedder.encode(TEXTS)
    assert np.array_equal(embedder.encode(TEXTS), first)
    assert [len(body["input"]) for body in endpoint.asked] == [1, 6]  # the first only meets the server
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
    dead._wait = lambda line, seconds: waits.append(seconds)
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
        {"data": [{"index": 0, "embedding": 1.0}, {"index": 1, "embedding": 2.0}]},
        {"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": ""}]},
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
    with pytest.raises(BackendError, match=r"has changed since.*weft1:one, now 24 numbers, fingerprint weft1:two"):
        embedder.encode("a")
    endpoint.headers = {}
    with pytest.raises(BackendError, match="has changed since the first answer"):
        embedder.encode("a")


@pytest.mark.parametrize("before, after", [("weft1:one", "weft1:two"), (None, "weft1:one"), ("weft1:one", None)])
def test_a_cache_never_mixes_two_models_of_a_server(endpoint: Endpoint, before: str | None, after: str | None) -> None:
    cache = MemoryCache()
    found = []
    for told, sign in ((before, 1), (after, -1)):
        endpoint.headers = {"weft-fingerprint": told} if told else {}
        endpoint.right = lambda body, sign=sign: endpoint.giving(  # type: ignore[method-assign, misc]
            sign * endpoint.embedder.encode(body["input"])
        )
        embedder, _ = remote(endpoint, cache=cache)
        made = embedder.embed(TEXTS[: 2 + len(found)])
        found.append(made)
        assert made.cached == 0 and made.fingerprint == embedder.fingerprint
    assert np.array_equal(found[1].vectors[:2], -found[0].vectors) and found[0].fingerprint != found[1].fingerprint


def test_vectors_have_the_length_that_was_asked_for_and_keep_it(endpoint: Endpoint) -> None:
    with pytest.raises(BackendError, match="ignores dimensions=8 for 'tiny': its vectors have 24 numbers"):
        remote(endpoint, dimensions=8)[0].encode("a")
    for options in ({}, {"cache": "memory"}):
        embedder, _ = remote(endpoint, **options)
        embedder.encode("a")
        endpoint.replies = [lambda body: endpoint.giving(np.ones((len(body["input"]), 9), np.float32))]
        with pytest.raises(BackendError, match=r"has changed since.*24 numbers.*9 numbers"):
            embedder.encode(["a", "b"])
        assert embedder.dimension == 24


def test_at_another_length_it_is_another_embedder_of_the_same_server(endpoint: Endpoint) -> None:
    endpoint.right = (
        lambda body: endpoint.giving(  # type: ignore[method-assign]
            endpoint.embedder.encode(body["input"])[:, : body.get("dimensions", 24)]
        )
    )
    embedder, _ = remote(endpoint, cache="memory")
    whole, short = embedder.embed(TEXTS), embedder.at(8).embed(TEXTS)
    assert np.array_equal(short.vectors, whole.vectors[:, :8]) and short.cached == 0
    assert short.fingerprint != whole.fingerprint and embedder.at(8).at(None).embed(TEXTS).cached == 6
    assert (embedder.dimension, embedder.at(8).dimension) == (24, 8)


def by_text(endpoint: Endpoint, **replies: Callable[[dict[str, Any]], Reply]) -> None:
    """Lets the endpoint answer a request by the last word of its first text, rightly where that is not named."""
    right = endpoint.right
    endpoint.right = lambda body: replies.get(body["input"][0].split()[-1], right)(body)  # type: ignore[method-assign]


def test_what_was_answered_before_an_error_is_kept(endpoint: Endpoint, tiny_embedder: weft.Embedder) -> None:
    by_text(endpoint, bad=saying(400))
    texts = ["a", "b", "c", "bad", "d"]
    embedder, _ = remote(endpoint, batch_texts=1, concurrency=1)
    with pytest.raises(InputError, match="400") as caught:
        embedder.encode(texts)
    assert np.array_equal(caught.value.done.vectors, tiny_embedder.encode(texts[:3]))  # type: ignore[attr-defined]
    embedder, _ = remote(endpoint, batch_texts=1, concurrency=1, cache="memory")
    for prompt in ("", "query: "):
        with pytest.raises(InputError, match="400"):
            embedder.encode(texts, prompt=prompt)
        endpoint.asked.clear()
        assert embedder.embed(["a", "b", "c", "d"], prompt=prompt).cached == 3
        assert [body["input"] for body in endpoint.asked] == [[f"{prompt}d"]]


def test_what_was_answered_out_of_turn_is_kept_too(endpoint: Endpoint) -> None:
    ready = threading.Event()

    def late(body: dict[str, Any]) -> Reply:
        ready.wait(60)
        return saying(400)(body)

    def last(body: dict[str, Any]) -> Reply:
        ready.set()
        return saying(400)(body)

    by_text(endpoint, late=late, last=last)
    embedder, _ = remote(endpoint, batch_texts=1, concurrency=2, cache="memory")
    with pytest.raises(InputError):
        embedder.encode(["late", "a", "b", "last"])
    assert embedder.embed(["a", "b"]).cached == 2


def hanging(endpoint: Endpoint, then: Callable[[], object] = lambda: None) -> Callable[[dict[str, Any]], Reply]:
    """An answer that never comes while the test runs; `then` is called when it is asked for."""

    def reply(body: dict[str, Any]) -> Reply:
        then()
        endpoint.closing.wait(60)
        return saying(503)(body)

    return reply


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.parametrize("cache", [None, "memory"])
def test_ctrl_c_keeps_what_is_done_and_waits_for_nobody(endpoint: Endpoint, cache: str | None) -> None:
    by_text(endpoint, slow=hanging(endpoint, interrupt))
    embedder = weft.RemoteEmbedder("tiny", endpoint.url, batch_texts=1, concurrency=1, timeout_s=2, cache=cache)
    with pytest.raises(weft.EmbedInterrupted) as caught:
        embedder.encode(["a", "b", "slow", "c"])
    assert len(caught.value.vectors) == 2
    assert [body["input"] for body in endpoint.asked[-3:]] == [["a"], ["b"], ["slow"]]  # and never again


def test_ctrl_c_ends_a_wait_between_two_attempts(endpoint: Endpoint) -> None:
    embedder = weft.RemoteEmbedder("tiny", endpoint.url)
    wait = embedder._wait

    def waiting(line: Any, seconds: float) -> None:
        interrupt()
        wait(line, 50)

    embedder._wait = waiting
    endpoint.replies = [saying(503)]
    with pytest.raises(weft.EmbedInterrupted):
        embedder.encode("a")
    assert len(endpoint.asked) == 1


def test_a_part_that_fails_ends_the_others(endpoint: Endpoint) -> None:
    slow = threading.Event()

    def bad(body: dict[str, Any]) -> Reply:
        slow.wait(60)
        return saying(400)(body)

    by_text(endpoint, slow=hanging(endpoint, slow.set), bad=bad)
    embedder = weft.RemoteEmbedder("tiny", endpoint.url, batch_texts=1, concurrency=2, timeout_s=2)
    with pytest.raises(InputError, match="400"):
        embedder.encode(["slow", "bad"])
    assert sorted(body["input"][0] for body in endpoint.asked) == ["bad", "slow"]


def test_a_call_that_is_cancelled_asks_no_more(endpoint: Endpoint) -> None:
    embedder = weft.RemoteEmbedder("tiny", endpoint.url, timeout_s=2)

    async def main() -> None:
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        endpoint.replies = [hanging(endpoint, lambda: loop.call_soon_threadsafe(asked.set))]
        task = asyncio.create_task(embedder.aencode("a"))
        await asked.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(endpoint.asked) == 1


def test_a_bar_is_drawn_where_one_is_wanted(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[list[tuple[int, int]], bool | None]] = []
    monkeypatch.setattr(
        remote_module, "shown", lambda ranges, total, progress: drawn.append((ranges, progress)) or ranges
    )
    remote(endpoint, batch_texts=4)[0].encode(TEXTS, progress=True)
    assert drawn == [([(0, 4), (4, 6)], True)]


def test_requests_keep_their_distance(endpoint: Endpoint) -> None:
    embedder, waits = remote(endpoint, requests_per_minute=60, batch_texts=1, concurrency=1)
    embedder.encode(["a", "b", "c"])
    assert len(waits) == 2 and 0.5 < waits[0] <= 1 and 1.5 < waits[1] <= 2


def test_fingerprints_tell_servers_models_and_prompts_apart(endpoint: Endpoint) -> None:
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("m", endpoint.url, {}),
        ("n", endpoint.url, {}),
        ("m", f"{endpoint.url}/other", {}),
        ("m", endpoint.url, {"dimensions": 24}),
        ("m", endpoint.url, {"prompts": {"query": "q"}}),
    ]
    assert len({weft.RemoteEmbedder(model, url, **more).fingerprint for model, url, more in ways}) == len(ways)


def test_what_it_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (
        "",
        "ftp://a",
        "http://",
        "file:///etc/passwd",
        "http://user:word@host/v1",
        "http://a:99999",
        "http://[a",
    ):
        with pytest.raises(InputError, match="base_url"):
            weft.RemoteEmbedder("m", url)
    with pytest.raises(InputError, match="api_key"):
        weft.RemoteEmbedder("m", "http://a", "key\r\nx: y")
    for mode in ("chunk", "head", "tail"):
        with pytest.raises(UnsupportedError, match=f"'{mode}'"):
            weft.RemoteEmbedder("m", "http://a").encode("a", truncate=mode)
    monkeypatch.setenv("WEFT_OFFLINE", "1")
    with pytest.raises(OfflineError, match="WEFT_OFFLINE"):
        weft.RemoteEmbedder("m", "http://a")


@pytest.mark.parametrize(
    "name, values",
    {
        "model": ("", None, 5),
        "base_url": (5, b"http://a"),
        "api_key": (5,),
        "dimensions": (0, -3, "x", 2.5, True),
        "prompts": ("query: ", {"query": None}, {1: "q"}, ["query"]),
        "similarity": ("bogus", None, ["cosine"]),
        "batch_texts": (0, "a", None),
        "concurrency": (0, 1.5),
        "requests_per_minute": (0, -1, "x", float("nan")),
        "retries": (-1, None),
        "timeout_s": (0, -1, "x", float("inf")),
        "limits": (5,),
    }.items(),
)
def test_arguments_are_checked_where_they_are_given(name: str, values: tuple[object, ...]) -> None:
    for value in values:
        with pytest.raises(InputError, match=rf"\[remote\] {name}"):
            weft.RemoteEmbedder(**{"model": "m", "base_url": "http://a", name: value})  # type: ignore[arg-type]
    if name == "dimensions":
        with pytest.raises(InputError, match=rf"\[remote\] {name}"):
            weft.RemoteEmbedder("m", "http://a").at(0)


def test_server_and_key_are_the_environments_where_they_are_not_given(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        weft.RemoteEmbedder("text-embedding-3-small")
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    assert weft.RemoteEmbedder("text-embedding-3-small").base_url == "https://api.openai.com/v1"
    weft.RemoteEmbedder("m", endpoint.url).encode("a")  # another server than the key's
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url + "/")
    for given in ((), (endpoint.url,), (None, "mine"), (endpoint.url, "mine")):
        weft.RemoteEmbedder("m", *given).encode("a")
    assert endpoint.keys == [None, "Bearer theirs", "Bearer theirs", "Bearer mine", "Bearer mine"]


@pytest.mark.parametrize("name", ["text-embedding-3-small", "text-embedding-3-large", "text-embedding-ada-002"])
def test_the_name_of_a_services_model_leads_here(name: str) -> None:
    with pytest.raises(NotFoundError, match=rf"weft\.RemoteEmbedder\('{name}'"):
        weft.Embedder(name)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert [retry_after_s(text, 0.0) for text in (None, "", "3", "-1", "soon")] == [0, 0, 3, 0, 0]
    assert retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", 20.0) == 40
