"""A stream that was asked to be kept goes on after its client is gone and is rejoined by number; no other stream is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from weft.serve import BackgroundServer
from weft.serve.work.kept import Kept, Shelf

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True, "seed": 1}
CHAT = "/v1/chat/completions"
KEEP = {"x-weft-rejoin": "60"}


def until(met: Callable[[], Any]) -> None:
    """Wait until the server has got so far."""
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline, "the server did not get so far"
        time.sleep(0.005)


def events(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """The number and the data of each event."""
    number = -1
    for line in lines:
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            yield number, line[6:]


def text_of(found: list[tuple[int, str]]) -> str:
    chunks = [json.loads(data) for _, data in found if data != "[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def first_events(client: httpx.Client, count: int, path: str = CHAT, **body: Any) -> tuple[str, list[tuple[int, str]]]:
    """Begin a kept stream, read so many events, and drop the connection."""
    with client.stream("POST", path, json={**BODY, **body}, headers=KEEP) as answer:
        assert answer.status_code == 200, answer.read()
        lines = events(answer.iter_lines())
        return answer.headers["x-weft-stream"], [next(lines) for _ in range(count)]


@pytest.fixture
def kept(server: BackgroundServer) -> Any:
    return server.app.serving.kept


def test_a_stream_that_broke_off_is_rejoined_where_it_broke_off(client, server, kept):
    with client.stream("POST", CHAT, json={**BODY, "max_tokens": 600}) as answer:
        assert "x-weft-stream" not in answer.headers
        whole = list(events(answer.iter_lines()))
    assert all(number == -1 for number, _ in whole)  # no ids where nothing can be rejoined
    id, before = first_events(client, 5, max_tokens=600)
    last = before[-1][0]
    assert [number for number, _ in before] == list(range(5))
    with client.stream("GET", f"/weft/streams/{id}", headers={"Last-Event-ID": str(last)}) as answer:
        after = list(events(answer.iter_lines()))
    assert [number for number, _ in after] == list(range(last + 1, last + 1 + len(after)))
    assert text_of(before + after) == text_of(whole) and after[-1][1] == "[DONE]"
    again = client.get(f"/weft/streams/{id}", params={"starting_after": last}).text
    assert list(events(iter(again.splitlines()))) == after  # the end is kept too, for a while
    assert list(events(iter(client.get(f"/weft/streams/{id}").text.splitlines()))) == before + after
    until(lambda: not server.app.serving.tracking.working())  # a call ends a moment after its last byte


def test_a_generation_goes_on_only_for_a_client_that_asked(client, server, kept):
    engine = server.app.serving.models.entries["tiny"].runner.engine.engine
    generated = engine.stats().generated_tokens
    id, _ = first_events(client, 2, max_tokens=500)
    until(lambda: kept.find(id, "").done)
    assert engine.stats().generated_tokens == generated + 500
    generated = engine.stats().generated_tokens
    with client.stream("POST", CHAT, json={**BODY, "max_tokens": 3000}) as answer:
        next(answer.iter_lines())
    until(lambda: not server.app.serving.tracking.working() and not engine.running)
    assert engine.stats().generated_tokens < generated + 3000


def test_nobody_comes_back_and_the_stream_ends(client, server, kept):
    id, _ = first_events(client, 2, max_tokens=3500)
    stream = kept.find(id, "")
    until(lambda: stream.idle_since is not None)
    stream.idle_since -= 61
    until(lambda: stream.done)  # the server looks twice a second
    assert "no client rejoined the stream within 60 s" in client.get(f"/weft/streams/{id}").text
    until(lambda: stream.idle_since is not None)
    stream.idle_since -= 61

    async def sweep() -> None:
        kept.sweep()

    server.call(sweep)
    assert client.get(f"/weft/streams/{id}").status_code == 404


def test_a_stream_is_stopped_by_name(client, kept):
    id, _ = first_events(client, 2, max_tokens=3500)
    assert client.delete(f"/weft/streams/{id}").json() == {"id": id, "stopped": True}
    rest = list(events(iter(client.get(f"/weft/streams/{id}", params={"starting_after": 1}).text.splitlines())))
    assert json.loads(rest[-2][1])["error"]["code"] == "cancelled" and rest[-1][1] == "[DONE]"


def test_lines_of_json_are_counted(client):
    body = {"model": "tiny", "prompt": "abc", "raw": True, "options": {"num_predict": 40, "temperature": 0}}
    whole = client.post("/api/generate", json=body).text.splitlines()
    with client.stream("POST", "/api/generate", json=body, headers=KEEP) as answer:
        id, lines = answer.headers["x-weft-stream"], answer.iter_lines()
        first = [next(lines) for _ in range(3)]
    rest = client.get(f"/weft/streams/{id}", params={"starting_after": 2}).text.splitlines()
    said = [[json.loads(line)["response"] for line in lines] for lines in (whole, first + rest)]
    assert "".join(said[0]) == "".join(said[1])


@pytest.mark.parametrize(
    "headers, params, status",
    [
        ({"x-weft-rejoin": "0"}, {}, 400),
        ({"x-weft-rejoin": "soon"}, {}, 400),
        ({"x-weft-rejoin": "100000"}, {}, 400),
        (None, {"starting_after": "x"}, 400),
        (None, {"starting_after": "999999"}, 400),
        (None, {"starting_after": "-1"}, 400),
    ],
)
def test_numbers_that_mean_nothing_are_refused(client, headers, params, status):
    if headers is not None:
        found = client.post(CHAT, json={**BODY, "max_tokens": 2}, headers=headers)
        assert found.status_code == status and "x-weft-rejoin must be 1 to 120 seconds" in found.text
        return
    id, _ = first_events(client, 2, max_tokens=4)
    assert client.get(f"/weft/streams/{id}", params=params).status_code == status


def test_old_events_are_dropped_and_the_client_is_told(serve):
    running = serve(limits={"kept_bytes": 8000})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        id, _ = first_events(client, 1, max_tokens=100)
        until(lambda: running.app.serving.kept.find(id, "").done)
        found = client.get(f"/weft/streams/{id}")
        assert found.status_code == 410 and found.json()["error"]["code"] == "events_dropped"
        kept = running.app.serving.kept
        assert 0 < kept.find(id, "").bytes <= 2000  # a quarter of all
        first_events(client, 1, max_tokens=1000)
        until(lambda: not running.app.serving.tracking.working())
        assert kept._shelf.bytes == sum(stream.bytes for stream in kept._streams.values()) <= 4000


def test_many_events_at_once_keep_to_the_share():
    shelf = Shelf(8000)
    kept = Kept("one", SimpleNamespace(media_type="text/event-stream"), SimpleNamespace(), None, shelf)
    for count in (1, 30, 200):
        kept._add(b"".join(b"data: %0100d\n\n" % i for i in range(count)))
        assert 0 < kept.bytes == shelf.bytes <= shelf.share


def test_a_key_rejoins_only_its_own_streams_and_has_so_many(serve):
    running = serve(keys=("one", "two"), limits={"kept_streams": 1})
    one, two = (
        httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
        for key in ("one", "two")
    )
    with one, two:
        id, _ = first_events(one, 1, max_tokens=3500)
        assert two.get(f"/weft/streams/{id}").status_code == 404
        assert two.delete(f"/weft/streams/{id}").status_code == 404
        assert one.post(CHAT, json={**BODY, "max_tokens": 2}, headers=KEEP).status_code == 429
        first_events(two, 1, max_tokens=2)
        assert one.delete(f"/weft/streams/{id}").status_code == 200


def test_a_server_that_ends_tells_the_readers_of_kept_streams(serve):
    running = serve()
    with httpx.Client(base_url=running.url, timeout=60) as client:
        id, _ = first_events(client, 1, max_tokens=3500)
        stream = running.app.serving.kept.find(id, "")
        with client.stream("GET", f"/weft/streams/{id}") as answer:
            lines = events(answer.iter_lines())
            next(lines)
            running.call(running.app.serving.abort)
            rest = [data for _, data in lines]
        assert "shutting down" in rest[-2] and stream.done and not running.app.serving.tracking.calls
