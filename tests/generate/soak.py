"""The long forms of this folder's tests: python tests/generate/soak.py [--only WORD] [--scale 1.0] [--model PATH]

Each prints one line with what was run. They take minutes; `make test` runs short forms of the same.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(HERE), str(TESTS), str(TESTS / "models"), str(TESTS / "runtime"), str(TESTS.parent)]

import numpy as np  # noqa: E402
import random_model  # noqa: E402
import test_engine_adapters  # noqa: E402
import test_prefix  # noqa: E402
import test_recurrent  # noqa: E402
import test_schedule  # noqa: E402
import test_schema_answers  # noqa: E402
import tiny  # noqa: E402
from fake_decoder import FakeDecoder  # noqa: E402

import weft  # noqa: E402
from weft.generate import Engine, Request, Sampling, make_request  # noqa: E402
from weft.runtime import Decoder, open_checkpoint  # noqa: E402

BASE = tiny.CONFIGS["llama-full-tied"]


def traces(count: int) -> str:
    """Random traces of the schedule."""
    found = [test_schedule.run_trace(seed) for seed in range(count)]
    return f"{count} traces, {sum(t.preemptions for t in found)} preemptions, {sum(t.shares for t in found)} shares"


def pages(count: int) -> str:
    """Operations on pages, forks, preemptions and evictions."""
    models = [test_prefix.Model(seed, pages=24, bits=3 if seed % 2 else 128) for seed in range(20)]
    for model in models:
        for number in range(count // len(models)):
            model.operate()
            if number % 1000 == 0:
                model.check()
        for held, _ in model.texts:
            model.pool.release(held)
        assert model.pool.free_count == model.pool.count
    return f"{count} operations, {sum(m.hits for m in models)} hits, {sum(m.takes for m in models)} pages taken"


def collisions(count: int) -> str:
    """Requests over hashes of 8 bits."""
    rng, done, collided = np.random.default_rng(0), 0, 0
    while done < count:
        engine = Engine(FakeDecoder(pages=int(rng.integers(20, 120))), max_running=8, max_waiting=1_000, hash_bits=8)
        test_prefix.run_all(engine, [test_prefix.some_request(rng, done + i) for i in range(500)], rng)
        done, collided = done + 500, collided + engine._sharing.prefixes.collisions
    return f"{done} requests right, {collided} collisions"


def kills(count: int) -> str:
    """Processes that write pages to disk, killed."""
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for _ in range(count):
            test_prefix.kill_trial(Path(folder), float(rng.uniform(0, 0.3)))
        return f"{count} kills, {len(test_prefix.pages_in(Path(folder)))} pages left, none wrong"


def adapters(count: int) -> str:
    """Adapters replaced while requests run."""
    with tempfile.TemporaryDirectory() as folder:
        model = test_engine_adapters.loaded(Path(folder), "q4_0")
        prompt = [int(i) for i in tiny.token_ids(test_engine_adapters.CFG, 9)]
        options = {"max_tokens": 4, "ignore_eos": True, "logprobs": 0}
        folders = [Path(folder) / f"a{number}" for number in range(4)]
        expected = [model.generate(prompt, adapter=f"a{number}", **options).logprobs for number in range(4)]
        model.adapters.load("live", folders[0])
        handles, swaps = [], []
        for number in range(count):
            before = time.perf_counter()
            model.adapters.replace("live", folders[number % 4])
            swaps.append(time.perf_counter() - before)
            handles.append((number % 4, model.engine.submit(make_request(prompt, adapter="live", **options))))
            model.engine.step()
        assert all(handle.result().logprobs == expected[number] for number, handle in handles)
        live = len(model.adapters._live)
        assert live == 5, f"{live} versions are alive, 5 have names"
        return f"{count} replacements, all answers right, {live} versions left; {np.median(swaps) * 1e3:.1f} ms each"


def states(count: int) -> str:
    """Mixtures of requests to a decoder with recurrent state."""
    found = [test_recurrent.run_mixture(seed, drafts=bool(seed % 2)) for seed in range(count)]
    counts = f"{sum(s.preemptions for s in found)} preemptions, {sum(s.cached_tokens for s in found)} tokens cached"
    return f"{count} mixtures of 20 requests with recurrent state, all right; {counts}"


def answers(count: int) -> str:
    """Answers of random weights at temperature 1.5 under schemas, each checked by jsonschema."""
    shared = Path(os.environ.get("WEFT_SHARED", HERE.parents[2] / "shared"))
    path = shared / "data" / "vocabs" / "ggml-vocab-gpt-2.gguf"
    keys = random_model.vocabulary_keys(path) if path.is_file() else random_model.byte_keys()
    with tempfile.TemporaryDirectory() as folder:
        model = weft.load(str(random_model.write_random_model(Path(folder) / "m.gguf", keys)))
        tokens = test_schema_answers.valid_answers(model, count)
        vocabulary = f"a vocabulary of {model.info['vocab_size']}"
    return f"{count} answers under {len(test_schema_answers.SCHEMAS)} schemas valid, {tokens} tokens of {vocabulary}"


class Mixture(NamedTuple):
    """A model, and what requests for it are made of."""

    path: Path
    starts: list[list[int]]  # prompts begin as one of these does
    tail: int  # prompts end in less than so many tokens of few kinds, so that they repeat themselves
    longest: int  # answers have less than so many tokens
    context: int  # a multiple of 64

    def request(self, rng: np.random.Generator, seed: int) -> Request:
        start = self.starts[int(rng.integers(len(self.starts)))]
        prompt = start[: rng.integers(1, len(start))] + rng.integers(0, 9, rng.integers(0, self.tail)).tolist()
        sampling = Sampling(float(rng.choice([0.0, 0.0, 0.9])), seed=seed)
        most = int(rng.integers(1, self.longest))
        return Request(tuple(prompt), sampling, max_tokens=most, logprobs=1, ignore_eos=True)

    def few_pages(self, rng: np.random.Generator) -> Decoder:
        """A decoder of one to three contexts, so that requests are preempted."""
        tokens, threads = int(rng.integers(self.context, 3 * self.context)), int(rng.choice([1, 2, 4]))
        return Decoder(open_checkpoint(self.path), context=self.context, kv_tokens=tokens, threads=threads)


def tiny_mixture(folder: Path) -> Mixture:
    starts = [np.random.default_rng(i).integers(0, BASE["vocab_size"], 120).tolist() for i in range(5)]
    return Mixture(tiny.write_folder(folder / "m", BASE), starts, tail=30, longest=60, context=256)


def real_mixture(path: Path) -> Mixture:
    """Shorter texts, since a real model takes its time: the beginnings are English and full of names that come back."""
    text = (HERE.parents[1] / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    ids = weft.load(str(path), threads=1, context=64).tokenizer.encode(text, add_special=False)
    return Mixture(path, [ids[100 * i : 100 * i + 80] for i in range(5)], tail=16, longest=32, context=128)


def mixtures(count: int, path: Path | None = None) -> str:
    """Requests with random arrivals, chunks, batches, hits, preemptions, threads and drafts, each also alone."""
    rng, preempted, cached, accepted, tokens = np.random.default_rng(1), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        mixture = real_mixture(path) if path else tiny_mixture(Path(folder))
        alone = weft.load(str(mixture.path), threads=1, context=mixture.context)
        for batch in range(0, count, 50):
            engine = Engine(
                mixture.few_pages(rng),
                step_tokens=int(rng.choice([5, 33, 64, 512])),
                max_running=int(rng.integers(2, 17)),
                speculate=bool(rng.random() < 0.5),
            )
            requests = [mixture.request(rng, batch + i) for i in range(min(50, count - batch))]
            results = run_randomly(engine, requests, rng)
            reference = Engine(alone, prefix_cache=False, speculate=False)
            for request, result in zip(requests, results):
                single = reference.submit(request).result()
                assert (single.tokens, single.logprobs) == (result.tokens, result.logprobs), request
            stats = engine.stats()
            preempted, cached = preempted + stats.preemptions, cached + stats.cached_tokens
            accepted, tokens = accepted + stats.accepted_tokens, tokens + stats.generated_tokens
    counts = f"{tokens} tokens, {preempted} preemptions, {cached} tokens cached, {accepted} drafts right"
    return f"{count} requests equal to themselves alone; {counts}"


def run_randomly(engine: Engine, requests: list[Request], rng: np.random.Generator) -> list:
    handles = []
    while len(handles) < len(requests) or not all(h.finished for h in handles):
        if len(handles) < len(requests) and rng.random() < 0.4:
            handles.append(engine.submit(requests[len(handles)]))
        engine.step()
    return [handle.result() for handle in handles]


RUNS: dict[Callable[..., str], int] = {
    traces: 10_000,
    pages: 1_000_000,
    collisions: 10_000,
    states: 200,
    kills: 200,
    adapters: 1_000,
    answers: 500,
    mixtures: 1_000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="run those whose name has this in it")
    parser.add_argument("--scale", type=float, default=1.0, help="run this share of each")
    parser.add_argument(
        "--model", type=Path, help="the mixtures of this model, a folder or a file, and not of a tiny one"
    )
    given = parser.parse_args()
    for run, count in RUNS.items():
        if given.only in run.__name__:
            before = time.perf_counter()
            more = {"path": given.model} if run is mixtures else {}
            said = run(max(1, int(count * given.scale)), **more)
            print(f"{run.__name__:11} {said} ({time.perf_counter() - before:.0f} s)")


if __name__ == "__main__":
    main()
