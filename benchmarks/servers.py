"""Servers that answer llama-server's /completion, in turns: prompts, tokens after prompts, and several at once.

    weft serve model.gguf --port 8001 --threads 2 &
    llama-server -m model.gguf --port 8002 -t 2 -np 8 -c 32768 &
    python benchmarks/servers.py weft=http://127.0.0.1:8001 llama.cpp=http://127.0.0.1:8002

Rates of prompts and of tokens are those that the servers report (`timings`); several at once are timed here. A prompt
to be read is new in every round; one that tokens follow is the same, so that a server may have kept it. Bound: prompts
by arithmetic, tokens by memory.
"""

import argparse
import json
import random
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def complete(url: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    """The server's answer to a prompt of ids."""
    asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0.0, "ignore_eos": True, "cache_prompt": True}
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)


def prefill(url: str, rng: random.Random, length: int, options: argparse.Namespace) -> float:
    prompt = [rng.randrange(300, options.vocab) for _ in range(length)]
    return float(complete(url, prompt, 1)["timings"]["prompt_per_second"])


def decode(url: str, rng: random.Random, length: int, options: argparse.Namespace) -> float:
    kept = random.Random(length)
    prompt = [kept.randrange(300, options.vocab) for _ in range(length)]
    return float(complete(url, prompt, options.tokens)["timings"]["predicted_per_second"])


def parallel(url: str, rng: random.Random, count: int, options: argparse.Namespace) -> float:
    prompts = [[rng.randrange(300, options.vocab) for _ in range(16)] for _ in range(count)]
    with ThreadPoolExecutor(count) as callers:
        began = time.perf_counter()
        list(callers.map(lambda prompt: complete(url, prompt, options.tokens), prompts))
        return count * options.tokens / (time.perf_counter() - began)


CASES = {"prefill": prefill, "decode": decode, "parallel": parallel}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL", help="the first is compared with the others")
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048], metavar="TOKENS")
    parser.add_argument("--decode", type=int, nargs="*", default=[64, 1024, 4096], metavar="TOKENS")
    parser.add_argument("--parallel", type=int, nargs="*", default=[8], metavar="REQUESTS")
    parser.add_argument("--tokens", type=int, default=32, help="to generate")
    parser.add_argument("--vocab", type=int, default=30_000, help="prompts have ids from 300 to this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each case")
    options = parser.parse_args()
    servers = dict(server.split("=", 1) for server in options.servers)
    for url in servers.values():
        complete(url, [300, 301, 302], 1)  # loads the model
    for name, measure in CASES.items():
        for size in getattr(options, name):
            rng, rates = random.Random(size), {server: [] for server in servers}
            if name == "decode":
                for url in servers.values():
                    measure(url, rng, size, options)  # reads the prompt
            for _ in range(options.rounds):
                for server, url in servers.items():
                    rates[server].append(measure(url, rng, size, options))
            medians = {server: statistics.median(found) for server, found in rates.items()}
            first, *others = medians.values()
            ratio = first / max(others) if others else 1.0
            if options.json:
                rounded = {server: round(median, 2) for server, median in medians.items()}
                print(json.dumps({"case": name, "size": size, **rounded, "ratio": round(ratio, 2)}), flush=True)
            else:
                shown = "  ".join(f"{server} {median:.1f}" for server, median in medians.items())
                print(f"{name} {size}: {shown} tokens/s, {ratio:.2f} times the best other", flush=True)


if __name__ == "__main__":
    main()
