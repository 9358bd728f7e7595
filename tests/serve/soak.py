"""Long runs against a live server: many streams, clients that go, a crowd, slow senders, memory over time, signals.

    python tests/serve/soak.py streams --count 512 --seconds 120
    python tests/serve/soak.py disconnects --count 5000
    python tests/serve/soak.py crowd --count 2000
    python tests/serve/soak.py slow --count 320 --seconds 30
    python tests/serve/soak.py memory --seconds 600
    python tests/serve/soak.py signals --count 200

Each prints what it saw as one JSON line, and fails where a promise was broken. test_soak.py runs small ones.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
for folder in ("tests/cli", "tests/models", "tests/serve", ""):
    sys.path.insert(0, str(ROOT / folder))

import httpx  # noqa: E402
from rush import rush  # noqa: E402

from weft.serve import BackgroundServer, Limits, ModelSpec, Settings  # noqa: E402

HOST = "Host: localhost\r\nContent-Type: application/json\r\n"


def settings(files: dict[str, Path], **limits: Any) -> Settings:
    specs = tuple(ModelSpec(name, str(files[name]), {"threads": 1}) for name in ("tiny", "bert"))
    return Settings(models=specs, port=0, limits=Limits(**limits))


def facts(server: BackgroundServer) -> dict[str, int]:
    """What must come back to where it was: pages, threads, descriptors, calls."""
    runner = server.app.serving.models.entries["tiny"].runner
    stats = runner.stats if runner is not None else None
    return {
        "pages": stats.pages - stats.free_pages if stats else 0,
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "calls": len(server.app.serving.tracking.calls),
        "places": sum(server.app.serving.places.under_way.values()),
    }


def settled(server: BackgroundServer, before: dict[str, int], seconds: float = 20.0) -> dict[str, int]:
    """The facts once none is above what it was, or as they stand after a while."""
    deadline = time.monotonic() + seconds
    while not within(now := facts(server), before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


def within(now: dict[str, int], before: dict[str, int]) -> bool:
    return bool(before) and all(now[name] <= count for name, count in before.items())


def body(seed: int, tokens: int, stream: bool = True) -> dict[str, Any]:
    text = "Tell me about " + "abcdefghij"[seed % 10] * (seed % 37 + 1)
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "seed": seed,
        "stream": stream,
    }


async def read_stream(client: httpx.AsyncClient, asked: dict[str, Any]) -> tuple[int, str, bool]:
    """Status, text, and whether the stream ended as streams should."""
    parts: list[str] = []
    done = False
    async with client.stream("POST", "/v1/chat/completions", json=asked) as answer:
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                parts += [choice["delta"].get("content", "") for choice in json.loads(line[6:])["choices"]]
    return answer.status_code, "".join(parts), done


async def warm(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await asyncio.gather(*(read_stream(client, body(seed, 2)) for seed in range(16)))  # all threads of the pools
        await client.post("/v1/embeddings", json={"model": "bert", "input": "a"})


def streams(files: dict[str, Path], count: int = 512, seconds: float = 120, tokens: int = 24) -> dict[str, Any]:
    """`count` streams at once, again and again; every text is the one that a serial run gives."""
    kinds = 16

    async def run(url: str) -> tuple[int, dict[int, int], int]:
        limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
        async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
            alone = {seed: (await read_stream(client, body(seed, tokens)))[1] for seed in range(kinds)}
            statuses: dict[int, int] = {}
            wrong, made, end = 0, 0, time.monotonic() + seconds

            async def one(number: int) -> None:
                nonlocal wrong, made
                rng = random.Random(number)
                while time.monotonic() < end:
                    seed = rng.randrange(kinds)
                    status, text, done = await read_stream(client, body(seed, tokens))
                    statuses[status] = statuses.get(status, 0) + 1
                    wrong += not done or text != alone[seed]
                    made += 1

            await asyncio.gather(*(one(number) for number in range(count)))
            return made, statuses, wrong

    with BackgroundServer(settings(files, waiting=2 * count, connections=2 * count)) as server:
        asyncio.run(warm(server.url))
        before = settled(server, {}, 0.5)
        made, statuses, wrong = asyncio.run(run(server.url))
        after = settled(server, before)
        stats = server.app.serving.models.entries["tiny"].runner.stats  # type: ignore[union-attr]
    assert statuses.keys() == {200} and not wrong, (statuses, wrong)
    assert within(after, before), (before, after)
    return {"streams": made, "at_once": count, "wrong": wrong, "preemptions": stats.preemptions, **after}


def disconnects(files: dict[str, Path], count: int = 5000, seed: int = 1) -> dict[str, Any]:
    """Clients that go at a random moment: in the head, in the body, before or after a token; by close or reset."""
    rng = random.Random(seed)

    async def one(port: int, number: int) -> None:
        text = json.dumps(body(number, 400, stream=rng.random() < 0.5)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\n{HOST}Content-Length: {len(text)}\r\n\r\n".encode()
        whole = head + text
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        cut = rng.choice([rng.randrange(1, len(head)), rng.randrange(len(head), len(whole)), *[len(whole)] * 4])
        writer.write(whole[:cut])
        await writer.drain()
        if cut == len(whole) and rng.random() < 0.7:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(reader.read(rng.choice([1, 200, 2000])), rng.random() * 0.2)
        raw: socket.socket = writer.get_extra_info("socket")
        kind = rng.randrange(3)
        if kind == 0:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if kind == 1 and writer.can_write_eof():
            writer.write_eof()
        writer.close()

    async def run(port: int) -> None:
        gate = asyncio.Semaphore(64)

        async def limited(number: int) -> None:
            async with gate:
                await one(port, number)

        await asyncio.gather(*(limited(number) for number in range(count)))

    with BackgroundServer(settings(files, waiting=1000)) as server:
        asyncio.run(warm(server.url))
        before = settled(server, {}, 0.5)
        asyncio.run(run(server.port))
        last = time.monotonic()
        after = settled(server, before)
        settling = time.monotonic() - last
        asyncio.run(warm(server.url))
        counted = server.app.serving.metrics._counters["http_requests_total"]
        failures = sum(n for given, n in counted.items() if dict(given)["status"] >= "500")
    assert within(after, before), (before, after)
    assert not failures
    return {"disconnects": count, "settled_s": round(settling, 3), "failures": failures, **after}


def crowd(
    files: dict[str, Path],
    count: int = 2000,
    tokens: int = 40,
    options: Sequence[str] = (),
    connected: bool = False,
) -> dict[str, Any]:
    """More requests at once than the server takes: the excess is told so at once, the others are served. `options` are
    the server's; with `connected` all connections are open before the first request."""
    text = json.dumps({**body(3, tokens), "ignore_eos": True}).encode()
    request = f"POST /v1/chat/completions HTTP/1.1\r\n{HOST}Content-Length: {len(text)}\r\n\r\n".encode() + text
    with tempfile.TemporaryDirectory() as folder:
        child, port = _started(files, Path(folder), options)
        try:
            asyncio.run(warm(f"http://127.0.0.1:{port}"))
            found = rush(port, request, count, connected=connected)
            live = httpx.get(f"http://127.0.0.1:{port}/weft/live").json()
        finally:
            child.terminate()
            child.communicate(timeout=60)
    statuses = {one.status: sum(other.status == one.status for other in found) for one in found}
    refused = sorted(one.took for one in found if one.status == 429)
    assert statuses.keys() <= {200, 429} and not live["requests"] and not live["cache"]["used"], (statuses, live)
    assert all(b"\r\nretry-after: 1\r\n" in one.head for one in found if one.status == 429)
    shares = {f"refused_p{p}_s": round(refused[p * (len(refused) - 1) // 100], 3) for p in (50, 99)} if refused else {}
    return {"connections": count, "statuses": statuses, **shares}


def slow(files: dict[str, Path], count: int = 320, seconds: float = 30) -> dict[str, Any]:
    """`count` clients that send a kilobyte of body a second, beside one that asks for short chats: it is always served,
    and they are given up."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{HOST}Content-Length: 1000000\r\n\r\n".encode()
    took: dict[str, list[float]] = {"alone": [], "beside": []}
    ended: dict[int, int] = {}

    async def trickle(port: int, end: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = asyncio.ensure_future(reader.read(4096))
        while time.monotonic() < end and not answer.done():
            writer.write(b" " * 1024)
            await asyncio.wait({answer}, timeout=1)
        status = 0
        with suppress(ConnectionError):
            status = int(answer.result().split(b" ")[1]) if answer.done() and answer.result() else 0
        ended[status] = ended.get(status, 0) + 1
        answer.cancel()
        writer.close()

    async def ask(client: httpx.AsyncClient, kind: str, end: float) -> None:
        while time.monotonic() < end:
            started = time.monotonic()
            answer = await client.post("/v1/chat/completions", json=body(1, 4, False))
            assert answer.status_code == 200, answer.text
            took[kind].append(time.monotonic() - started)

    async def run(port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            await ask(client, "alone", time.monotonic() + seconds / 4)
            end = time.monotonic() + seconds
            await asyncio.gather(*(trickle(port, end) for _ in range(count)), ask(client, "beside", end))

    with tempfile.TemporaryDirectory() as folder:
        child, port = _started(files, Path(folder))
        try:
            asyncio.run(warm(f"http://127.0.0.1:{port}"))
            asyncio.run(run(port))
        finally:
            child.terminate()
            child.communicate(timeout=60)
    assert ended.keys() <= {0, 408}, ended
    shares = {
        f"{kind}_p{p}_s": round(sorted(found)[p * (len(found) - 1) // 100], 3)
        for kind, found in took.items()
        for p in (50, 99)
    }
    return {"slow": count, "statuses": ended, "served": len(took["beside"]), **shares}


def memory(files: dict[str, Path], seconds: float = 600, clients: int = 16) -> dict[str, Any]:
    """Mixed load; the server's memory is looked at every second, and its slope is that of the second half."""
    seen: list[tuple[float, int]] = []

    async def run(url: str) -> int:
        end, made = time.monotonic() + seconds, 0
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:

            async def one(number: int) -> None:
                nonlocal made
                rng = random.Random(number)
                while time.monotonic() < end:
                    made += 1
                    await _any_request(client, rng, made)

            async def watch() -> None:
                while time.monotonic() < end:
                    seen.append((time.monotonic(), (await client.get("/weft/live")).json()["rss"]))
                    await asyncio.sleep(1)

            await asyncio.gather(watch(), *(one(number) for number in range(clients)))
        return made

    with tempfile.TemporaryDirectory() as folder:
        child, port = _started(files, Path(folder))
        try:
            url = f"http://127.0.0.1:{port}"
            asyncio.run(warm(url))
            made = asyncio.run(run(url))
        finally:
            child.terminate()
            child.communicate(timeout=60)
    half = seen[len(seen) // 2 :]
    pairs = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(half) for b in half[i + 1 :]]
    slope = sorted(pairs)[len(pairs) // 2] if pairs else 0.0  # the median of all slopes: Theil and Sen
    return {
        "requests": made,
        "rss_first_mb": round(seen[0][1] / 1e6, 1),
        "rss_half_mb": round(half[0][1] / 1e6, 1),
        "rss_last_mb": round(seen[-1][1] / 1e6, 1),
        "slope_mb_per_hour": round(slope * 3600 / 1e6, 2),
    }


async def _any_request(client: httpx.AsyncClient, rng: random.Random, number: int) -> None:
    """Vectors, a mistake, a grammar, or a stream."""
    kind = rng.randrange(5)
    if kind == 0:
        texts = ["the cat " * rng.randint(1, 12)] * rng.randint(1, 8)
        await client.post("/v1/embeddings", json={"model": "bert", "input": texts})
    elif kind == 1:
        await client.post("/v1/chat/completions", json={**body(number, 8), "temperature": -1})
    elif kind == 2:
        choice = {"structured_outputs": {"choice": [f"a{number % 50}", "b"]}}
        await client.post("/v1/chat/completions", json={**body(number, 8, False), **choice})
    else:
        await read_stream(client, body(rng.randrange(100), 30))


def signals(files: dict[str, Path], count: int = 200, streams: int = 8) -> dict[str, Any]:
    """A signal at a random moment: every stream ends with data or an error, the exit code is 0, the port free."""
    rng = random.Random(7)
    ends: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for trial in range(count):
            for kind in _signal_trial(files, Path(folder), rng, streams, trial):
                ends[kind] = ends.get(kind, 0) + 1
    assert ends.keys() <= {"finished", "error event", "refused"}, ends
    return {"trials": count, "ends": ends}


def _started(files: dict[str, Path], folder: Path, more: Sequence[str] = ()) -> tuple[subprocess.Popen[str], int]:
    """A server in a process of its own, and its port."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEFT_CACHE": str(folder), "WEFT_OFFLINE": "1"}
    options = ["--port", "0", "--threads", "1", "--log", "off", *more]
    models = [f"{name}={files[name]}" for name in ("tiny", "bert")]
    command = [sys.executable, "-m", "weft", "serve", *models, *options]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    said = ""
    while "\ncurl" not in said:
        line = child.stdout.readline()
        assert line, f"the server ended with code {child.wait()} before it served"
        said += line
    return child, int(said.split("http://")[1].split("/")[0].rsplit(":", 1)[1])


def _signal_trial(files: dict[str, Path], folder: Path, rng: random.Random, streams: int, trial: int) -> list[str]:
    child, port = _started(files, folder)

    async def run() -> list[str]:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

            async def one(number: int) -> str:
                lines: list[str] = []
                try:
                    asked = {**body(number, rng.choice([50, 500, 3500])), "ignore_eos": True}
                    async with client.stream("POST", "/v1/chat/completions", json=asked) as answer:
                        async for line in answer.aiter_lines():
                            lines += [line] if line else []
                except httpx.ConnectError:
                    return "refused"
                except httpx.HTTPError as error:  # one that was never accepted is reset when the server stops listening
                    return f"broken: {type(error).__name__}" if lines else "refused"
                if answer.status_code == 503:
                    return "refused"
                if lines[-1] != "data: [DONE]":
                    return "no end"
                return "error event" if "error" in json.loads(lines[-2][6:]) else "finished"

            async def strike() -> None:
                await asyncio.sleep(rng.random() * 0.4)
                child.send_signal(signal.SIGTERM)
                if trial % 2:
                    await asyncio.sleep(rng.random() * 0.2)
                    if child.poll() is None:
                        child.send_signal(signal.SIGTERM)

            return (await asyncio.gather(*(one(number) for number in range(streams)), strike()))[:-1]  # type: ignore[return-value]

    found = asyncio.run(run())
    child.communicate(timeout=60)
    assert child.returncode == 0, child.returncode
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
    return found


RUNS: dict[str, Callable[..., dict[str, Any]]] = {
    "streams": streams,
    "disconnects": disconnects,
    "crowd": crowd,
    "slow": slow,
    "memory": memory,
    "signals": signals,
}


def main() -> None:
    from tiny_models import write_models

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--connected", action="store_true", default=None, help="of a crowd: connected beforehand")
    given = vars(parser.parse_args())
    run = RUNS[given.pop("run")]
    with tempfile.TemporaryDirectory() as folder:
        files = write_models(Path(folder))
        print(json.dumps(run(files, **{name: value for name, value in given.items() if value is not None})))


if __name__ == "__main__":
    main()
