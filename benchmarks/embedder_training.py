"""Steps of embedder training beside sentence-transformers, in turn, each engine in a process of its own.

Texts of equal length are not padded by anybody, texts of mixed lengths are padded by the peer to the longest of their
column. A step is the loss of a batch (ranking), its gradient, clipping and AdamW over all weights. The peer's loop is
written out: it needs torch and sentence-transformers only. Compute-bound; on a shared machine the processor time says
more than the time.

    python benchmarks/embedder_training.py MODEL_FOLDER --peer-python PEER_PYTHON --threads 16
    python benchmarks/embedder_training.py MODEL_FOLDER --peer-python PEER_PYTHON --cases equal --batch 32 --steps 3

A line of JSON for each case: the median seconds of a step, processor seconds, the ratio of both, and the peak memory of
each process, which made nothing but this.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORDS = [
    *("time", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family"),
    *("student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "night"),
    *("question", "work", "number", "point", "home", "water", "room", "mother", "area", "money", "story", "fact"),
]
CASES = {"equal": (14, 14), "mixed": (4, 120)}  # words of a text, at least and at most
CLIP = 1.0


def pairs(case: str, count: int) -> list[dict[str, str]]:
    """Rows of random words; of mixed lengths most are short, as texts are."""
    drawn = random.Random(case)
    least, most = CASES[case]

    def text() -> str:
        length = least if least == most else int(least * (most / least) ** drawn.random())
        return " ".join(drawn.choice(WORDS) for _ in range(length))

    return [{"anchor": text(), "positive": text()} for _ in range(count)]


def weft_steps(given: argparse.Namespace, case: str) -> Iterator[float]:
    """Each element is a loss, of a step that is done."""
    from weft import train

    rows = pairs(case, given.batch * (given.steps + 1))
    training = train.embedder(given.model, rows, batch=given.batch, rate=given.rate, clip=CLIP, warmup=0.0,
                              schedule="constant", threads=given.threads)  # fmt: skip
    return (step.loss for step in training)


def peer_steps(given: argparse.Namespace, case: str) -> Iterator[float]:
    # Files beside this one have names of packages that the peer imports.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
    import torch
    from sentence_transformers import SentenceTransformer

    try:  # sentence-transformers 6 moved it
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    except ImportError:
        from sentence_transformers.losses import MultipleNegativesRankingLoss
    torch.set_num_threads(given.threads)
    model = SentenceTransformer(given.model, device="cpu")
    loss = MultipleNegativesRankingLoss(model)
    rule = torch.optim.AdamW(model.parameters(), lr=given.rate, weight_decay=0.0)
    tokenise = getattr(model, "preprocess", None) or model.tokenize
    model.train()
    rows = pairs(case, given.batch * (given.steps + 1))
    for first in range(0, len(rows), given.batch):
        some = rows[first : first + given.batch]
        value = loss([tokenise([row[name] for row in some]) for name in ("anchor", "positive")], None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        rule.step()
        rule.zero_grad()
        yield float(value.detach())


def serve(steps: Iterator[float], out: Any) -> None:
    """One step for each line of the standard input, so that engines take turns; at the end the peak of the memory."""
    next(steps)
    print(json.dumps({"ready": True}), file=out, flush=True)
    for _ in sys.stdin:
        began, processor = time.perf_counter(), time.process_time()
        loss = next(steps)
        facts = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - processor, "loss": loss}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        print(json.dumps({**facts, "peak_bytes": peak}), file=out, flush=True)


class Engine:
    """A process that makes steps when it is told to."""

    def __init__(self, python: str, who: str, case: str, arguments: list[str]) -> None:
        self.steps: list[dict[str, float]] = []
        command = [python, "-W", "ignore", __file__, *arguments, "--serve", who, "--cases", case]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        self._answer()

    def step(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.steps.append(self._answer())

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine ended with {self.process.wait()}; run it with --serve to see why")
        return json.loads(line)  # type: ignore[no-any-return]

    def end(self) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        middle: Callable[[str], float] = lambda name: statistics.median(step[name] for step in self.steps)  # noqa: E731
        return {"seconds": middle("seconds"), "cpu": middle("cpu"), "peak_mb": self.steps[-1]["peak_bytes"] / 1e6,
                "loss": self.steps[-1]["loss"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder")
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has sentence-transformers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32, help="pairs of a step")
    parser.add_argument("--steps", type=int, default=7, help="of each engine and case, after one that is not counted")
    parser.add_argument("--rate", type=float, default=2e-5)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--serve", choices=["weft", "peer"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        out = sys.stdout
        sys.stdout = sys.stderr  # what libraries print is no answer
        serve({"weft": weft_steps, "peer": peer_steps}[given.serve](given, given.cases[0]), out)
        return
    arguments = [given.model, "--threads", str(given.threads), "--batch", str(given.batch)]
    arguments += ["--steps", str(given.steps), "--rate", str(given.rate)]
    for case in given.cases:
        engines = {"weft": Engine(sys.executable, "weft", case, arguments),
                   "peer": Engine(given.peer_python, "peer", case, arguments)}  # fmt: skip
        for _ in range(given.steps):
            for engine in engines.values():
                engine.step()
        found = {name: engine.end() for name, engine in engines.items()}
        ratios = {name: found["peer"][name] / found["weft"][name] for name in ("seconds", "cpu")}
        memory = found["weft"]["peak_mb"] / found["peer"]["peak_mb"]
        about = {"case": case, "threads": given.threads, "batch": given.batch, "steps": given.steps}
        print(json.dumps({**about, **found, "times_as_fast": ratios, "memory_part": memory}), flush=True)


if __name__ == "__main__":
    main()
