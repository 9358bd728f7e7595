"""Speed of a model on a GPU: tokens/s of one sequence and of many, of prompts, or texts/s of an embedder.

    python benchmarks/gpu.py model.gguf --device cuda --context 512 --sequences 1,32 --prompts 512,2048
    python benchmarks/gpu.py embedder-folder --device cuda --texts 1000 --compute bf16
    python benchmarks/gpu.py model.gguf --device cuda --kernels      where the time of a step is (CUDA only)
    python benchmarks/gpu.py model.gguf --device cuda --rules        requests with rules of sampling, through the engine

Prints one JSON line for each figure. A decoder generates greedily: what comes back of a step are its largest logits.
`--rules` has each set of rules twice: with the logits that decide, and with whole rows.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from weft import Engine
from weft.backends import open_backend
from weft.generate import Request, Sampling
from weft.runtime import Decoder, open_checkpoint
from weft.runtime.steps import build_step

ROUNDS = 5
RULES = {
    "greedy": {},
    "top_k": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "seed": 1},
    "temperature": {"temperature": 1.0, "top_p": 0.95, "seed": 1},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "top_k and penalties": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05, "seed": 1},
}
MEASURED = 28  # launches at least, of a kind of kernel


def said(what, value, **more):
    print(json.dumps({"what": what, "value": round(value, 3), **more}), flush=True)


def many(decoder, sequences, context, steps):
    """Tokens/s of so many sequences of `context` tokens, each round `steps` steps."""
    rng = np.random.default_rng(1)
    holdings = [decoder.holding() for _ in range(sequences)]
    for holding in holdings:
        assert holding.grow(context + steps * ROUNDS + 1)
        ids = rng.integers(0, decoder.vocab_size, context).astype(np.int32)
        decoder.run_top(build_step([ids], asked=[1], pages=[holding.row]), 1)
    at, last, found = context, [1] * sequences, []
    pages = [holding.row for holding in holdings]
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(steps):
            step = build_step([[id] for id in last], starts=[at] * sequences, asked=[1] * sequences, pages=pages)
            last = decoder.run_top(step, 1).ids[:, 0].tolist()
            at += 1
        found.append(sequences * steps / (time.perf_counter() - began))
    for holding in holdings:
        holding.release()
    return found


def prompts(decoder, tokens):
    rng, found = np.random.default_rng(2), []
    for _ in range(ROUNDS):
        holding = decoder.holding()
        assert holding.grow(tokens)
        ids = rng.integers(0, decoder.vocab_size, tokens).astype(np.int32)
        step = build_step([ids], asked=[1], pages=[holding.row])
        began = time.perf_counter()
        decoder.run_top(step, 1)
        found.append(tokens / (time.perf_counter() - began))
        holding.release()
    return found


def ruled(decoder, sequences, context, steps):
    """Tokens/s of so many requests at once with each set of rules, once their prompts are computed."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, decoder.vocab_size, context).tolist() for _ in range(sequences)]
    found = {(name, whole): [] for name in RULES for whole in (False, True)}
    for _ in range(ROUNDS):
        for name, whole in found:
            together = sequences * context  # all prompts in one step, so that no request ends before another begins
            engine = Engine(decoder, step_tokens=together, prefix_cache=False, speculate=False)
            if whole:
                engine._top = 0
            sampling = Sampling(**RULES[name])
            wanted = [Request(one, max_tokens=steps + 1, ignore_eos=True, sampling=sampling) for one in prompts]
            handles = [engine.submit(one) for one in wanted]
            while not all(handle._sequences[0].generated for handle in handles):
                engine.step()
            began = time.perf_counter()
            many = sum(steps + 1 - handle._sequences[0].generated for handle in handles)
            for handle in handles:
                handle.result()
            found[name, whole].append(many / (time.perf_counter() - began))
    for (name, whole), rates in found.items():
        said("tokens/s", statistics.median(rates), rules=name, rows="whole" if whole else "what decides", n=sequences)


def kernels(decoder, sequences, tokens, context, times=20):
    """Microseconds of a step and of each of its kernels, over `times` repetitions."""
    device = decoder.backend.device
    holdings = [decoder.holding() for _ in range(sequences)]
    for holding in holdings:
        assert holding.grow(context + tokens)
    rng = np.random.default_rng(3)
    ids = [rng.integers(0, decoder.vocab_size, tokens).astype(np.int32) for _ in holdings]
    pages = [holding.row for holding in holdings]
    step = build_step(ids, starts=[context] * sequences, asked=[1] * sequences, pages=pages)
    launched(device, *submitted(device, lambda: decoder.run_top(step, 1)), times)
    for holding in holdings:
        holding.release()


def submitted(device, work):
    """The commands that `work` starts."""
    kept = []
    submit = device.submit
    device.submit = lambda commands: (kept.append(commands), submit(commands))[1]
    work()
    device.submit = submit
    return kept


def launched(device, commands, times):
    """Says how long a step takes as a graph, and each kind of kernel in a graph of those of its kind alone: one call
    from Python takes longer than most of them. Their layers' weights are read in turn, so not from a cache."""
    named = {id(made.function): shader.name for shader, made in device._compiled.values()}
    alike = {}
    for one in commands._launches:
        function, grid, threads, _ = one
        alike.setdefault(f"{named[id(function)]} {grid[0] * grid[1]}x{threads}", []).append(one)
    said("graph us", seconds(device, commands._ask, times) * 1e6, launches=len(commands._launches))
    found = {}
    for key, launches in alike.items():
        again = launches * -(-MEASURED // len(launches))

        def ask(stream, again=again):
            for function, grid, threads, (pointers, _) in again:
                device.driver.launch(function, grid, threads, pointers, stream)

        found[key] = seconds(device, ask, times) / len(again) * 1e6, len(launches)
    for key, (each, count) in sorted(found.items(), key=lambda one: -one[1][0] * one[1][1]):
        said("kernel", each, name=key, count=count, total_us=round(each * count, 1))


def seconds(device, ask, times):
    """Of what is asked for, as a graph."""
    graph = device.driver.recorded(ask)
    for _ in range(2):
        device.driver.wait()
        began = time.perf_counter()
        for _ in range(times):
            device.driver.start(graph)
        device.driver.wait()
    found = (time.perf_counter() - began) / times
    device.driver.drop(graph)
    return found


def embedding(path, device, texts, compute, shares):
    import weft

    words = "the of search model vector page token cache river green market open quiet stone garden"
    choices = words.split()
    rng = np.random.default_rng(4)
    backend = open_backend(device)
    embedder = weft.Embedder(path, backend=backend, compute=compute)
    for name, longest in (("short", 12), ("mixed", 64)):
        given = [" ".join(rng.choice(choices, rng.integers(4, longest + 1))) for _ in range(texts)]
        embedder.encode(given)
        found = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            embedder.encode(given)
            found.append(texts / (time.perf_counter() - began))
        least, most = round(min(found), 1), round(max(found), 1)
        said(f"texts/s {name}", statistics.median(found), compute=compute, least=least, most=most)
        if shares:
            few = given[: max(1, 8192 // (longest + 2))]  # one step, whose inputs stay where they are
            launched(backend.device, submitted(backend.device, lambda few=few: embedder.encode(few))[-1], 5)


def numbers(text):
    return [int(one) for one in text.split(",") if one]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--sequences", type=numbers, default=[1])
    parser.add_argument("--prompts", type=numbers, default=[])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--texts", type=int, default=0)
    parser.add_argument("--kv", default=None)
    parser.add_argument("--compute", default="f32")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--rules", action="store_true")
    given = parser.parse_args()
    if given.texts:
        return embedding(given.model, given.device, given.texts, given.compute, given.kernels)
    began = time.perf_counter()
    path = Path(given.model)
    room = max([given.context + given.steps * ROUNDS + 64, *given.prompts])
    tokens = room * max([2, *given.sequences])
    decoder = Decoder(open_checkpoint(path), context=room, kv_tokens=tokens, kv_dtype=given.kv, backend=given.device)
    said("load s", time.perf_counter() - began, device=decoder.backend.info.get("device"), kv=decoder.kv_dtype)
    for count in given.sequences:
        found = many(decoder, count, given.context, given.steps)
        said("tokens/s", statistics.median(found), sequences=count, context=given.context, most=round(max(found), 1))
    for tokens in given.prompts:
        found = prompts(decoder, tokens)
        said("prompt tokens/s", statistics.median(found), tokens=tokens, most=round(max(found), 1))
    if given.rules:
        for count in given.sequences:
            ruled(decoder, count, given.context, given.steps)
    if given.kernels:
        for count in given.sequences:
            said("step", count)
            kernels(decoder, count, 1, given.context)
        for tokens in given.prompts:
            said("prompt", tokens)
            kernels(decoder, 1, tokens, 0, times=3)


if __name__ == "__main__":
    main()
