"""Every block type that weft reads beside llama.cpp: prompts and decoding of one model of random weights.

    python benchmarks/block_types.py --llama-bench PROGRAM --types q4_0 iq2_xxs --rounds 3

Each type is a file with TinyLlama's shapes (benchmarks/random_model.py), so both read the same bytes. They take turns:
weft stays loaded in this process, `llama-bench` is started for each turn, with as many threads. A turn is a prompt of
--prompt tokens at once, with the logits of the last, and --steps steps of one token from an empty state, without a
choice of the next: what `llama-bench -p -n` measures. llama.cpp's other options are its defaults, so it repacks where
it can. Prints a line of JSON for each type: medians of tokens/s with their range, and weft's over llama.cpp's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from random_model import SCALES

from weft.nn.step import Step
from weft.runtime import PAGE_TOKENS, Decoder, open_checkpoint

REST_S = 0.5  # pools of threads may spin a while after their last task


class Weft:
    """A loaded model, and one turn of it."""

    def __init__(self, path: Path, prompt: int, steps: int, threads: int) -> None:
        self.prompt, self.steps = prompt, steps
        context = max(prompt, steps)
        self.decoder = Decoder(open_checkpoint(path), context=context, kv_tokens=context, threads=threads)
        self.pages = np.arange(-(-context // PAGE_TOKENS), dtype=np.int32)[None]
        self.ids = np.random.default_rng(0).integers(100, 20_000, prompt).astype(np.int32)

    def run(self, ids: np.ndarray, first: int) -> None:
        at = np.arange(first, first + len(ids), dtype=np.int32)
        rows, segments = np.asarray([len(ids) - 1], np.int32), np.asarray([0, len(ids)], np.int32)
        self.decoder.run(Step(ids=ids, positions=at, segments=segments, rows=rows, pages=self.pages))

    def turn(self) -> dict[str, float]:
        begun = time.perf_counter()
        self.run(self.ids, 0)
        read = time.perf_counter()
        self.run(self.ids[:1], 0)  # as llama-bench, a step before those that count
        first = time.perf_counter()
        for step in range(self.steps):
            self.run(self.ids[step : step + 1], step)
        return {"prompt": self.prompt / (read - begun), "decode": self.steps / (time.perf_counter() - first)}


def peer_turn(given: argparse.Namespace, path: Path) -> dict[str, float]:
    command = [given.llama_bench, "-m", str(path), "-t", str(given.threads), "-p", str(given.prompt)]
    done = subprocess.run(
        [*command, "-n", str(given.steps), "-r", "1", "-o", "json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{given.llama_bench} failed for {path.name}: {done.stderr.strip().splitlines()[-1:]}")
    return {"prompt" if test["n_prompt"] else "decode": test["avg_ts"] for test in json.loads(done.stdout)}


def measured(given: argparse.Namespace, path: Path) -> dict[str, Any]:
    own = Weft(path, given.prompt, given.steps, given.threads)
    own.turn()
    turns: dict[str, list[dict[str, float]]] = {"weft": [], "llama.cpp": []}
    for number in range(given.rounds):
        for name in sorted(turns, reverse=number % 2 == 0):
            time.sleep(REST_S)
            turns[name].append(own.turn() if name == "weft" else peer_turn(given, path))
    line: dict[str, Any] = {"compute": own.decoder.info["compute"]}
    for what in ("prompt", "decode"):
        for name, made in turns.items():
            values = sorted(turn[what] for turn in made)
            line[f"{name} {what}"] = [round(value, 2) for value in (median(values), values[0], values[-1])]
        line[f"{what} ratio"] = round(line[f"weft {what}"][0] / line[f"llama.cpp {what}"][0], 3)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", default="llama-bench")
    parser.add_argument("--types", nargs="+", default=list(SCALES), choices=list(SCALES))
    parser.add_argument("--folder", type=Path, help="where files are kept, and taken from (default: a temporary one)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write-only", action="store_true", help="write the files and measure nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for kind in given.types:
            path = (given.folder or Path(scratch)) / f"tinyllama-{given.layers}-{kind}.gguf"
            if not path.exists():
                maker = [sys.executable, str(Path(__file__).with_name("random_model.py")), "--shapes", "tinyllama"]
                subprocess.run([*maker, "--layers", str(given.layers), "--type", kind, str(path)], check=True)
            if not given.write_only:
                sizes = {name: getattr(given, name) for name in ("layers", "prompt", "steps", "rounds", "threads")}
                head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "type": kind, **sizes}
                print(json.dumps({**head, **measured(given, path)}), flush=True)
            if given.folder is None:
                path.unlink()


if __name__ == "__main__":
    main()
