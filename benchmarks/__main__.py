"""Benchmarks by name: `python -m benchmarks [CASE…]`, or `make bench CASE=decode_1`. Without a name: all of them.

    kernels          every op of the catalogue on its largest sample (memory- or compute-bound: see the op's cost)
    decode_1         SmolLM2 Q4_1, one sequence, tokens per second by slope (memory-bound)
    prefill_512      SmolLM2 Q4_1, 512 prompt tokens in one step (compute-bound)
    embed_1          MiniLM, one short text, milliseconds (latency)
    embed_256x128    MiniLM, 256 texts of 128 tokens, tokens per second (compute-bound)

Each prints a table for people and one JSON line for machines, which `--save` appends to benchmarks/results/.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


def measure(run: Callable[[], Any], *, at_least: int = 20, seconds: float = 2.0) -> dict[str, float]:
    """Seconds of one call: median and spread of at least `at_least` runs, after a warm-up."""
    run()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < at_least or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    ordered = sorted(times)
    return {
        "median": statistics.median(ordered),
        "p05": ordered[len(ordered) // 20],
        "p95": ordered[-1 - len(ordered) // 20],
    }


def kernels() -> list[dict[str, Any]]:
    from weft.backends.cpu import CpuBackend
    from weft.graph.single import single, size_bytes
    from weft.ops import catalogue
    from weft.runtime import plan_threads

    backend = CpuBackend(threads=plan_threads().count)
    rows = []
    for name, op in catalogue().items():
        if name == "reshape":
            continue
        samples = [single(op, *sample) for sample in op.samples_from(np.random.default_rng(0))]
        largest = max(range(len(samples)), key=lambda i: size_bytes(samples[i]))
        operands, attrs = list(op.samples_from(np.random.default_rng(0)))[largest]
        bound = samples[largest]
        states = {key: backend.state_from(value) for key, value in bound.states.items()}
        executable = backend.compile(bound.program, bound.weights, states)
        found = measure(lambda executable=executable, bound=bound: executable.run(bound.inputs), seconds=0.2)
        cost = op.cost_of(*operands, **attrs)
        gflops, gbytes = cost.flops / found["median"] / 1e9, cost.bytes / found["median"] / 1e9
        rows.append({"name": name, "us": found["median"] * 1e6, "gflop_s": gflops, "gbyte_s": gbytes})
    return rows


def decode_1() -> list[dict[str, Any]]:
    """(N2 - N1) / (T(N2) - T(N1)): the slope leaves out prompt and set-up."""
    import weft

    model = weft.load("smollm2-135m-instruct")
    prompt = [1000 + i * 7919 % 20000 for i in range(16)]

    def seconds(count: int) -> float:
        before = time.perf_counter()
        model.generate(prompt, max_tokens=count, ignore_eos=True)
        return time.perf_counter() - before

    seconds(32)
    rates = [(256 - 32) / (seconds(256) - seconds(32)) for _ in range(5)]
    return [{"name": "decode_1", "tokens_s": statistics.median(rates), "low": min(rates), "high": max(rates)}]


def prefill_512() -> list[dict[str, Any]]:
    import weft

    model = weft.load("smollm2-135m-instruct")
    prompt = [1000 + i * 7919 % 20000 for i in range(512)]
    found = measure(lambda: model.generate(prompt, max_tokens=1, ignore_eos=True), at_least=10)
    return [
        {
            "name": "prefill_512",
            "tokens_s": 512 / found["median"],
            "low": 512 / found["p95"],
            "high": 512 / found["p05"],
        }
    ]


def embed_1() -> list[dict[str, Any]]:
    import weft

    embedder = weft.Embedder("all-MiniLM-L6-v2")
    found = measure(lambda: embedder.encode("A short sentence about the sea."))
    return [{"name": "embed_1", **{key: value * 1e3 for key, value in found.items()}, "unit": "ms"}]


def embed_256x128() -> list[dict[str, Any]]:
    import weft

    embedder = weft.Embedder("all-MiniLM-L6-v2")
    texts = [" ".join(["word"] * 126)] * 256
    found = measure(lambda: embedder.encode(texts), at_least=5)
    tokens = 256 * 128
    return [
        {
            "name": "embed_256x128",
            "tokens_s": tokens / found["median"],
            "low": tokens / found["p95"],
            "high": tokens / found["p05"],
        }
    ]


CASES = {f.__name__: f for f in (kernels, decode_1, prefill_512, embed_1, embed_256x128)}


def machine() -> dict[str, Any]:
    from weft.backends.cpu import levels_present
    from weft.runtime import plan_threads

    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS)
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    return {
        "commit": git.stdout.strip(),
        "cpu": cpu or platform.processor(),
        "level": levels_present()[-1],
        "threads": plan_threads().count,
        "date": time.strftime("%Y-%m-%d"),
    }


def report(case: str, rows: list[dict[str, Any]], save: bool) -> None:
    columns = list(rows[0])
    table = [columns] + [
        [f"{row[c]:.4g}" if isinstance(row[c], float) else str(row[c]) for c in columns] for row in rows
    ]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)))
    record = json.dumps({"case": case, **machine(), "rows": rows})
    print(record, flush=True)
    if save:
        RESULTS.mkdir(exist_ok=True)
        with open(RESULTS / "local.jsonl", "a") as file:
            file.write(record + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", choices=[*CASES, []], help="which ones; all by default")
    parser.add_argument("--save", action="store_true", help="append to benchmarks/results/local.jsonl")
    args = parser.parse_args()
    for case in args.case or CASES:
        report(case, CASES[case](), args.save)


main()
