"""Distances and scans of weft.vectors beside numpy, simsimd, numkong, usearch and faiss, whichever are installed.

    python benchmarks/vectors.py                                 all workloads, both as many threads as weft uses
    python benchmarks/vectors.py --only pair --dims 384          some of them
    python benchmarks/vectors.py --rounds 40 --save FILE.jsonl
    OPENBLAS_NUM_THREADS=1 python benchmarks/vectors.py --cpu    on a machine that others use


A pair is bound by the call: million pairs a second. One query against 100,000 rows is bound by memory, or by the cache
where codes are small: GB/s, and the share of what the machine was measured to read of as many bytes in the same run.
Everybody has a turn in every round; medians with their range. --cpu counts the processor time of one thread in place of
the clock's: what others take of the processor is left out, what they take of memory is not.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from weft import vectors
from weft.bench import measure, report
from weft.bench.roofs import Roofs
from weft.cli import screen
from weft.vectors.arrays import team

DIMS = (384, 768, 1024)
ROWS, BEST, CALLS = 100_000, 10, 2000
PEERS = ("simsimd", "numkong", "faiss", "usearch.index")

Call = Callable[[], Any]


@dataclass(frozen=True)
class Workload:
    """Ways to compute one thing, by who does it."""

    name: str
    calls: dict[str, Call]
    bytes: int = 0  # read by one call; 0 for pairs, which are counted

    def turn(self, who: str, clock: Callable[[], float]) -> float:
        """Bytes a second, or pairs."""
        repeats = 1 if self.bytes else CALLS
        call = self.calls[who]
        start = clock()
        for _ in range(repeats):
            call()
        return (self.bytes or 1) * repeats / (clock() - start)


def peers() -> dict[str, Any]:
    found = {}
    for name in PEERS:
        try:
            found[name.split(".")[0]] = import_module(name)
        except ImportError:
            screen.note(f"not there: {name}")
    return found


def present(calls: dict[str, Call | None]) -> dict[str, Call]:
    return {name: call for name, call in calls.items() if call is not None}


def pairs(dim: int, of: dict[str, Any]) -> Iterator[Workload]:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, dim), np.float32)
    sim, kong = of.get("simsimd"), of.get("numkong")
    for kind, x, y in (("f32", a, b), ("f16", a.astype("f2"), b.astype("f2")), ("int8", codes(a), codes(b))):
        yield Workload(f"pair {dim} {kind} cosine", present({
            "weft": lambda f=vectors.cosine, x=x, y=y: f(x, y),
            "simsimd": sim and (lambda f=sim.cosine, x=x, y=y: f(x, y)),
            "numkong": kong and (lambda f=kong.angular, x=x, y=y: f(x, y)),
        }))  # fmt: skip
    yield Workload(f"pair {dim} f32 dot", present({
        "weft": lambda f=vectors.dot: f(a, b),
        "numpy": lambda f=np.dot: f(a, b),
        "simsimd": sim and (lambda f=sim.dot: f(a, b)),
        "numkong": kong and (lambda f=kong.dot: f(a, b)),
    }))  # fmt: skip


def codes(x: np.ndarray) -> np.ndarray:
    return vectors.quantise(x, "int8").data[0]


def scans(dim: int, of: dict[str, Any], threads: int) -> Iterator[Workload]:
    rng = np.random.default_rng(2)
    rows, query = rng.standard_normal((ROWS, dim), np.float32), rng.standard_normal(dim, np.float32)
    sim, faiss, use = of.get("simsimd"), of.get("faiss"), of.get("usearch")
    one = query[None]
    if faiss:
        faiss.omp_set_num_threads(threads)
        flat = faiss.IndexFlatIP(dim)
        flat.add(rows)
    yield Workload(f"scan {dim} f32 dot, all scores", present({
        "weft": lambda: vectors.dot(query, rows, threads=threads),
        "numpy": lambda: rows @ query,
        "simsimd": sim and (lambda: sim.cdist(one, rows, "dot", threads=threads)),
    }), rows.nbytes)  # fmt: skip
    yield Workload(f"scan {dim} f32 cosine, all scores", present({
        "weft": lambda: vectors.cosine(query, rows, threads=threads),
        "simsimd": sim and (lambda: sim.cdist(one, rows, "cosine", threads=threads)),
    }), rows.nbytes)  # fmt: skip
    yield Workload(f"scan {dim} f32 dot, best {BEST}", present({
        "weft": lambda: vectors.top_k(query, rows, BEST, metric="dot", threads=threads),
        "faiss": faiss and (lambda: flat.search(one, BEST)),
        "usearch": use and (lambda: use.search(rows, query, BEST, use.MetricKind.IP, exact=True, threads=threads)),
    }), rows.nbytes)  # fmt: skip
    yield from halves(dim, rows, query, sim, threads)
    yield from coded(dim, rows, query, of, threads)


def halves(dim: int, rows: np.ndarray, query: np.ndarray, sim: Any, threads: int) -> Iterator[Workload]:
    half, one = rows.astype(np.float16), query.astype(np.float16)[None]
    yield Workload(f"scan {dim} f16 cosine, all scores", present({
        "weft": lambda: vectors.cosine(one[0], half, threads=threads),
        "simsimd": sim and (lambda: sim.cdist(one, half, "cosine", threads=threads)),
    }), half.nbytes)  # fmt: skip


def coded(dim: int, rows: np.ndarray, query: np.ndarray, of: dict[str, Any], threads: int) -> Iterator[Workload]:
    sim, faiss = of.get("simsimd"), of.get("faiss")
    eighth, own = vectors.quantise(rows, "int8"), vectors.PreparedQuery(query, "int8")
    plain = own.codes.data
    yield Workload(f"scan {dim} int8 cosine, all scores", present({
        "weft": lambda: own.scores(eighth, threads=threads),
        "weft plain int8": lambda: vectors.cosine(plain[0], eighth.data, threads=threads),
        "simsimd": sim and (lambda: sim.cdist(plain, eighth.data, "cosine", threads=threads)),
    }), eighth.data.nbytes)  # fmt: skip
    bits, asked = vectors.quantise(rows, "binary"), vectors.PreparedQuery(query, "binary", metric="hamming")
    if faiss:
        binary = faiss.IndexBinaryFlat(bits.data.shape[1] * 8)
        binary.add(bits.data)
    yield Workload(f"scan {dim} bits hamming, best {BEST}", present({
        "weft": lambda: asked.top_k(bits, BEST, threads=threads),
        "faiss": faiss and (lambda: binary.search(asked.codes.data, BEST)),
    }), bits.data.nbytes)  # fmt: skip


def run(workload: Workload, rounds: int, roofs: Roofs, clock: Callable[[], float]) -> list[report.Row]:
    names = list(workload.calls)
    for name in names:
        workload.calls[name]()
    found = measure.take_turns(names, rounds, lambda who: workload.turn(who, clock))
    unit, scale = ("GB/s", 1e9) if workload.bytes else ("M/s", 1e6)
    roof = roofs.read(workload.bytes) if workload.bytes else None
    rows = []
    for name, rates in zip(names, found):
        scaled = measure.summary(rate / scale for rate in rates.values)
        share = rates.median / roof.high if roof else None
        rows.append(report.Row(workload.name, name, "", unit, scaled, share, "read" if roof else ""))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", type=int, nargs="+", default=list(DIMS))
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=team().size)
    parser.add_argument("--cpu", action="store_true", help="processor time, one thread")
    parser.add_argument("--save", help="append the JSON line to this file")
    args = parser.parse_args()
    args.threads = 1 if args.cpu else args.threads
    clock = time.thread_time if args.cpu else time.perf_counter
    of, rows, roofs = peers(), [], Roofs(args.threads)
    for dim in args.dims:
        for workload in (*pairs(dim, of), *scans(dim, of, args.threads)):
            if args.only in workload.name:
                rows += run(workload, args.rounds, roofs, clock)
    screen.table(*report.table(rows), right=report.RIGHT)
    line = report.record(
        "vectors",
        [row.as_json() for row in rows],
        threads=args.threads,
        clock="cpu" if args.cpu else "wall",
        roofs=roofs.as_json(),
    )
    print(json.dumps(line, ensure_ascii=False))
    if args.save:
        with open(args.save, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
