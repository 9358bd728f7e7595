"""Every block type that weft reads beside llama.cpp: prompts and decoding of one model of random weights.

    python benchmarks/block_types.py --llama-bench PROGRAM --types q4_0 iq2_xxs --rounds 3

Each type is a file with TinyLlama's shapes (benchmarks/random_model.py), so both read the same bytes. They take turns:
weft stays loaded in this process, `llama-bench` is started for each turn, with as many threads. A turn is a prompt of
--prompt tokens at once, with the logits of the last, and --steps steps of one token from an empty state, without a
choice of the next: what `llama-bench -p -n` measures. llama.cpp's other options are its defaults, so it repacks where
it can. Prints a line of JSON for each type: medians of tokens/s with their range, and weft's over llama.cpp's.

    python benchmarks/block_types.py --peer-library llama_steps.so --layers 1 --prompt 256 --rounds 10

is for a machine that others use. llama.cpp runs in this process (peers/llama_steps.cpp says how it is built), each
engine has one thread, and what counts is the time that the processor worked, not what a turn waited for. Turns are a
prompt and four steps and alternate; "decode pairs" is the median of the ratios of two turns after each other.
"""

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from random_model import SCALES

from weft.nn.step import Step
from weft.runtime import PAGE_TOKENS, Decoder, open_checkpoint

REST_S = 0.5  # pools of threads may spin a while after their last task
SHORT_STEPS = 4  # of a turn that shares the process


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

    def turn(self, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
        return turn_of(self, clock)


class Llama:
    """llama.cpp in this process, with the same file."""

    def __init__(self, library: str, path: Path, prompt: int, steps: int) -> None:
        self.prompt, self.steps = prompt, steps
        self.ids = np.random.default_rng(0).integers(100, 20_000, prompt).astype(np.int32)
        self.loaded = ctypes.CDLL(library)
        self.loaded.steps_open.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(self.loaded.steps_open(str(path).encode(), max(prompt, steps), 1))
        if not self.handle:
            raise SystemExit(f"llama.cpp does not open {path}")

    def run(self, ids: np.ndarray, first: int) -> None:
        if first == 0:
            self.loaded.steps_clear(self.handle)
        if self.loaded.steps_run(self.handle, ids.ctypes.data_as(ctypes.c_void_p), len(ids)):
            raise SystemExit("llama.cpp failed")

    def close(self) -> None:
        self.loaded.steps_close(self.handle)


def turn_of(engine: "Weft | Llama", clock: Callable[[], float]) -> dict[str, float]:
    """tokens/s of a prompt at once, and of steps."""
    begun = clock()
    engine.run(engine.ids, 0)
    read = clock()
    engine.run(engine.ids[:1], 0)  # as llama-bench, a step before those that count
    first = clock()
    for step in range(engine.steps):
        engine.run(engine.ids[step : step + 1], step)
    return {"prompt": engine.prompt / (read - begun), "decode": engine.steps / (clock() - first)}


def peer_turn(given: argparse.Namespace, path: Path) -> dict[str, float]:
    command = [given.llama_bench, "-m", str(path), "-t", str(given.threads), "-p", str(given.prompt)]
    done = subprocess.run(
        [*command, "-n", str(given.steps), "-r", "1", "-o", "json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{given.llama_bench} failed for {path.name}: {done.stderr.strip().splitlines()[-1:]}")
    return {"prompt" if test["n_prompt"] else "decode": test["avg_ts"] for test in json.loads(done.stdout)}


def alternating(given: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Both engines in this process, in short turns, by processor time."""
    own = Weft(path, given.prompt, SHORT_STEPS, 1)
    other = Llama(given.peer_library, path, given.prompt, SHORT_STEPS)
    turns: dict[str, list[dict[str, float]]] = {"weft": [], "llama.cpp": []}
    for _ in range(given.rounds + 1):
        turns["weft"].append(turn_of(own, time.process_time))
        turns["llama.cpp"].append(turn_of(other, time.process_time))
    other.close()
    turns = {name: made[1:] for name, made in turns.items()}  # the first warms both
    line = table(own, turns)
    both = zip(turns["weft"], turns["llama.cpp"])
    line["decode pairs"] = round(median(a["decode"] / b["decode"] for a, b in both), 3)
    return {"machine": platform.machine(), "clock": "processor", "load": round(os.getloadavg()[0], 1), **line}


def measured(given: argparse.Namespace, path: Path) -> dict[str, Any]:
    own = Weft(path, given.prompt, given.steps, given.threads)
    own.turn()
    turns: dict[str, list[dict[str, float]]] = {"weft": [], "llama.cpp": []}
    for number in range(given.rounds):
        for name in sorted(turns, reverse=number % 2 == 0):
            time.sleep(REST_S)
            turns[name].append(own.turn() if name == "weft" else peer_turn(given, path))
    return table(own, turns)


def table(own: Weft, turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
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
    parser.add_argument("--peer-library", help="llama.cpp in this process, by peers/llama_steps.cpp")
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
                if given.peer_library:
                    given.threads, given.steps = 1, SHORT_STEPS
                sizes = {name: getattr(given, name) for name in ("layers", "prompt", "steps", "rounds", "threads")}
                measure = alternating if given.peer_library else measured
                head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "type": kind, **sizes}
                print(json.dumps({**head, **measure(given, path)}), flush=True)
            if given.folder is None:
                path.unlink()


if __name__ == "__main__":
    main()
