"""Load on a server: requests arrive at random times, whether or not earlier ones have been answered.

Any server with OpenAI's API can be measured. Arrivals are a seeded Poisson process, so two servers get the same
requests at the same times. Long prompts may come between them, one every few seconds: what is measured is how the
others fare.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from weft.errors import BackendError, InputError
from weft.frozen import frozen

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "hand")
LINE_LIMIT = 1 << 20
NAME = "measured"


@frozen
class Plan:
    """`requests` prompts of `prompt` words with answers of `tokens` tokens; `rate` requests arrive per second.

    With `long`, a prompt of that many words comes every `every_s` seconds from the start on, until the last of these.
    """

    rate: float
    requests: int = 32
    prompt: int = 64
    tokens: int = 64
    long: int = 0
    every_s: float = 10.0
    seed: int = 1


@dataclass
class Seen:
    """The outcome of one request; times in seconds since it was due."""

    status: int = 0
    first_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    tokens: int = 0
    end_s: float = 0.0  # since the run began


@frozen
class Result:
    """A run: tokens per second overall, and percentiles of the time to the first token and between tokens.

    The percentiles are of the short prompts; `long_first_s` are the times to the first token of the long ones.
    """

    rate: float
    answered: int
    refused: int
    tokens_per_second: float
    first_s: dict[int, float]
    gap_s: dict[int, float]
    long_first_s: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "answered": self.answered,
            "refused": self.refused,
            "tokens_per_second": round(self.tokens_per_second, 2),
            **{f"first_token_p{p}_ms": round(1000 * value, 1) for p, value in self.first_s.items()},
            **{f"inter_token_p{p}_ms": round(1000 * value, 1) for p, value in self.gap_s.items()},
            **({"long": len(self.long_first_s), "long_first_token_p50_ms": self._long_ms} if self.long_first_s else {}),
        }

    @property
    def _long_ms(self) -> float:
        return round(1000 * percentiles(self.long_first_s)[50], 1)


def run(url: str, model: str, plan: Plan, key: str | None = None) -> Result:
    """Put the load on the server at `url` (without /v1) and wait for the last answer."""
    target = urlsplit(url)
    if target.scheme != "http" or not target.hostname:
        raise InputError("bench", "must be an address that starts with http://", given=url, field="--url")
    return asyncio.run(_run(target.hostname, target.port or 80, model, plan, key))


async def _run(host: str, port: int, model: str, plan: Plan, key: str | None) -> Result:
    rng, rng_long = random.Random(plan.seed), random.Random(-plan.seed)
    began = time.monotonic()

    def send(name: str, rng: random.Random, words: int, due: float) -> asyncio.Future[Seen]:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": f"{name} {' '.join(rng.choice(WORDS) for _ in range(words))}"}],
            "max_tokens": plan.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return asyncio.ensure_future(_one(host, port, body, key, began, due))

    due, tasks = 0.0, []
    long: list[asyncio.Future[Seen]] = []
    for number in range(plan.requests):
        tasks.append(send(str(number), rng, plan.prompt, due))
        while plan.long and len(long) * plan.every_s <= due:
            long.append(send(f"long {len(long)}", rng_long, plan.long, len(long) * plan.every_s))
        due += rng.expovariate(plan.rate)
    seen, seen_long = await asyncio.gather(*tasks), await asyncio.gather(*long)
    answered = [one for one in seen if one.status == 200]
    if not answered:
        raise BackendError("bench", f"no request was answered: the first got HTTP status {seen[0].status}")
    if refused := [one.status for one in seen_long if one.status != 200]:
        raise BackendError("bench", f"a long prompt was not answered: it got HTTP status {refused[0]}")
    took = max(one.end_s for one in [*answered, *seen_long])
    return Result(
        rate=plan.rate,
        answered=len(answered),
        refused=len(seen) - len(answered),
        tokens_per_second=sum(one.tokens for one in [*answered, *seen_long]) / took,
        first_s=percentiles([one.first_s for one in answered]),
        gap_s=percentiles([gap for one in answered for gap in one.gaps_s]),
        long_first_s=tuple(one.first_s for one in seen_long),
    )


def percentiles(values: Sequence[float], wanted: Sequence[int] = (50, 99)) -> dict[int, float]:
    """The value of each percentile in `wanted`."""
    ordered = sorted(values)
    return {p: ordered[min(len(ordered) - 1, len(ordered) * p // 100)] if ordered else 0.0 for p in wanted}


async def _one(host: str, port: int, body: dict[str, Any], key: str | None, began: float, due: float) -> Seen:
    await asyncio.sleep(max(0.0, began + due - time.monotonic()))
    seen, last = Seen(), began + due
    reader, writer = await asyncio.open_connection(host, port, limit=LINE_LIMIT)
    try:
        text = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {key}\r\n" if key else ""
        writer.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
        answer = await reader.readuntil(b"\r\n\r\n")
        seen.status = int(answer.split(b" ", 2)[1])
        if seen.status != 200:
            return seen
        async for event in _events(reader, b"chunked" in answer.lower()):
            usage = event.get("usage")
            seen.tokens = usage["completion_tokens"] if usage else seen.tokens
            if not any(choice.get("delta", {}).get("content") for choice in event.get("choices", ())):
                continue
            now = time.monotonic()
            if seen.first_s:
                seen.gaps_s.append(now - last)
            else:
                seen.first_s = now - last
            last = now
        seen.end_s = time.monotonic() - began
        return seen
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events."""
    held = b""
    async for data in _chunks(reader) if chunked else _rest(reader):
        *whole, held = (held + data).split(b"\n\n")
        for event in whole:
            line = event.strip().removeprefix(b"data:").strip()
            if line.startswith(b"{"):
                yield json.loads(line)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(65536):
        yield data


@contextmanager
def servers(urls: Sequence[str], model: str, threads: int | None) -> Iterator[list[tuple[str, str]]]:
    """Addresses, each with the name of the model to request: `model` if the server has it, else its first one."""
    if urls:
        yield [(url.rstrip("/").removesuffix("/v1"), _name_at(url, model)) for url in urls]
        return
    command = [sys.executable, "-m", "weft", "serve", f"{NAME}={model}", "--port", "0", "--log", "off"]
    command += ["--threads", str(threads)] if threads else []
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stderr is not None
    try:
        said = ""
        for line in child.stdout:
            said += line
            if line.startswith("curl "):
                break
        else:
            raise BackendError("bench", f"the server did not start: {child.stderr.read().strip()[-300:]}")
        yield [(said.split("curl ")[1].split("/v1/")[0], NAME)]
    finally:
        child.terminate()
        child.communicate()


def _name_at(url: str, model: str) -> str:
    with urlopen(f"{url.rstrip('/').removesuffix('/v1')}/v1/models", timeout=10) as answer:
        names = [entry["id"] for entry in json.load(answer)["data"]]
    return model if model in names else names[0]
