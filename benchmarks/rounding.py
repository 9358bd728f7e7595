"""What rounding costs a model: size, perplexity, divergence and speed of each type, made in each way.

    python benchmarks/rounding.py MODEL.gguf CALIBRATION.txt TEST.txt --types q4_0 q4_k_m --keep FOLDER --output LINES

MODEL, in f32, is the reference. For each type and way a file is written to FOLDER, measured and removed, and a line of
JSON is printed and appended to LINES. A run that was stopped goes on where it was: FOLDER keeps what the reference says
of the text and the importance of columns, and lines that LINES has are not made again. `--compute` is the arithmetic in
which the files are scored: f32 (only weights are rounded), or int8, which is faster and what a decoder does by default.

Types: GGUF's; `size:q4_0`, the plan that weft chooses for as many bytes as the tensors of q4_0 take; int8, and int4 or
int4-asym with the group after a colon (int4:32, int4:row), which are folders.

Ways: `plain`, `importance`, `feedback` (with importance); of folders `plain`, `inner` and `all` (rotated).
`llama-quantize` and `llama-quantize-importance` are llama.cpp's program (--program), with its own plan. `llama.cpp` and
`llama.cpp-importance` have weft's plan, with blocks rounded by ggml-quants.c: `--peer` is a shared library that exports
`quantize_q4_0` and its relatives.

Speeds are least processor times on one thread, by weft in its default arithmetic (--speed): a prompt of 512 tokens, and
steps of one token. `--feedback-columns` leaves error feedback out where a matrix is wider: its cost grows with the
square.
"""

import argparse
import ctypes
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from block_types import Weft
from kept_logits import Reference

from weft.dtype import DTYPES
from weft.quantise import Calibration, Quantising, QuantisingFolder, choose_plan, make_plan, read_imatrix, write_imatrix
from weft.quantise.imatrix import fitting
from weft.runtime import open_checkpoint
from weft.weights import TensorView, open_gguf, write_safetensors

FOLDERS = ("int8", "int4", "int4-asym")


class Narrow(Calibration):
    """A calibration whose feedback leaves wide matrices out."""

    columns = 1 << 30

    @property
    def able(self) -> frozenset[str]:
        narrow = {name for one in self._products if one.columns <= self.columns for name in one.tensors}
        return super().able & narrow


def rounded_by_peer(
    path: Path, model: Path, library: str, importance: Mapping[str, np.ndarray] | None, threads: int
) -> None:
    """The blocks of a file that was written of `model`, rounded again by llama.cpp; types and places stay."""
    loaded = ctypes.CDLL(library)
    with open_gguf(model) as source, open_gguf(path) as made, open(path, "r+b") as file:
        for name, view in made.tensors.items():
            if view.dtype.name in ("f32", "f16", "bf16"):
                continue
            values = np.ascontiguousarray(source[name].numpy(), np.float32).reshape(-1, view.shape[-1])
            weights = None if importance is None else importance.get(name)
            weights = None if weights is None else np.ascontiguousarray(weights, np.float32)
            out = np.empty(view.nbytes, np.uint8)
            function = getattr(loaded, "quantize_" + view.dtype.name.replace("_k", "_K"))
            function.restype = ctypes.c_size_t
            size, some = view.nbytes // len(values), -(-len(values) // threads)

            def part(first: int) -> None:
                rows = values[first : first + some]  # noqa: B023  # done before the next matrix
                places = [rows, out[first * size :], weights]  # noqa: B023
                places = [None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in places]
                shape = ctypes.c_int64(len(rows)), ctypes.c_int64(rows.shape[1])
                function(places[0], places[1], *shape, places[2])  # noqa: B023

            with ThreadPoolExecutor(threads) as team:
                list(team.map(part, range(0, len(values), some)))
            file.seek(view._start)
            file.write(out.tobytes())


class Work:
    """A model, the texts, and what is made of them once."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.model, self.keep = given, given.model, given.keep
        self.keep.mkdir(parents=True, exist_ok=True)
        self.imatrix = self.keep / "importance.gguf"
        self._calibration: Narrow | None = None
        tokenizer = open_checkpoint(self.model).tokenizer()
        ids = tokenizer.encode(given.test.read_text(encoding="utf-8"))[: given.tokens]
        self.reference = Reference(self.model, np.asarray(ids, np.int32), given.threads, self.keep)

    @property
    def calibration(self) -> Narrow:
        if self._calibration is None:
            tokens = self.given.calibration_tokens
            text = self.given.calibration.read_text(encoding="utf-8")[: tokens * 12]
            self._calibration = Narrow(self.model, text, tokens=tokens, threads=self.given.threads)
        return self._calibration

    @property
    def importance(self) -> dict[str, np.ndarray]:
        if not self.imatrix.exists():
            work = self.calibration
            write_imatrix(
                self.imatrix, work.importance(), text=self.given.calibration.name, windows=len(work.windows), window=512
            )
        return fitting(read_imatrix(self.imatrix), self.model)

    def folder(self) -> Path:
        """The model as a folder in f16, without a tokenizer."""
        made = self.keep / "folder"
        if not (made / "config.json").exists():
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            checkpoint = open_checkpoint(self.model)
            tensors = {name: TensorView.of(one.numpy().astype(np.float16)) for name, one in checkpoint.tensors.items()}
            write_safetensors(made / "model.safetensors", tensors)
            (made / "config.json").write_text(json.dumps({**checkpoint.config, "torch_dtype": "float16"}))
        return made

    def write(self, kind: str, way: str, path: Path) -> None:
        threads = self.given.threads
        if kind.partition(":")[0] in FOLDERS:
            name, _, group = kind.partition(":")
            more = {"group": (int(group) if group.isdigit() else group) or None, "rotate": None}
            more["rotate"] = None if way == "plain" else way
            list(QuantisingFolder(self.folder(), path, type=name, threads=threads, overwrite=True, **more))
            return
        importance = {} if way in ("plain", "llama.cpp", "llama-quantize") else self.importance
        if way.startswith("llama-quantize"):
            options = ["--imatrix", str(self.imatrix)] if importance else []
            partial = path.with_suffix(".partial")
            command = [self.given.program, *options, str(self.model), str(partial), kind.upper(), str(threads)]
            subprocess.run(command, check=True, capture_output=True)
            partial.rename(path)
            return
        feedback = self.calibration if way == "feedback" else None
        options = {"importance": importance, "feedback": feedback, "threads": threads, "overwrite": True}
        partial = path.with_name(f"partial-{path.name}") if way.startswith("llama.cpp") else path
        list(Quantising(self.model, partial, type=self.plan(kind, importance), **options))
        if partial != path:
            rounded_by_peer(partial, self.model, self.given.peer, importance or None, threads)
            partial.rename(path)

    def plan(self, kind: str, importance: Mapping[str, np.ndarray]) -> Any:
        if not kind.startswith("size:"):
            return kind
        with open_gguf(self.model) as opened:
            plan = make_plan(opened.tensors, kind.removeprefix("size:"))
            size = sum(DTYPES[plan.types[name]].nbytes(view.size) for name, view in opened.tensors.items())
            return choose_plan(opened.tensors, size=size, importance=importance, threads=self.given.threads)

    def line(self, kind: str, way: str) -> dict[str, Any]:
        folder = kind.partition(":")[0] in FOLDERS
        path = self.keep / (f"{kind}-{way}" + ("" if folder else ".gguf")).replace(":", "-")
        row: dict[str, Any] = {}
        if not path.exists():  # of a run that was stopped
            began = time.process_time()
            self.write(kind, way, path)
            row["seconds"] = round(time.process_time() - began, 1)
        files = list(path.glob("*.safetensors")) if folder else [path]
        row["bytes"] = sum(file.stat().st_size for file in files)
        row |= self.reference.beside(path, self.given.compute, self.given.threads)
        if self.given.speed:
            row |= speeds(path)
        shutil.rmtree(path) if folder else path.unlink()
        return row


def speeds(path: Path) -> dict[str, float]:
    own = Weft(path, 512, 24, 1)
    turns = [own.turn(time.process_time) for _ in range(4)]
    return {name: round(max(turn[name] for turn in turns), 2) for name in ("prompt", "decode")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--types", nargs="+", default=["q4_0", "q4_1", "q4_k_m"])
    parser.add_argument("--ways", nargs="+", default=["plain", "importance", "feedback"])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--calibration-tokens", type=int, default=16384)
    parser.add_argument("--compute", default="f32", help="the arithmetic in which the files are scored")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--speed", action="store_true", help="measure prompts and decoding as well")
    parser.add_argument("--peer", default="", help="a shared library of ggml-quants.c, for the ways of llama.cpp")
    parser.add_argument("--program", default="llama-quantize")
    parser.add_argument("--keep", type=Path, required=True, help="a folder for what the next run needs, too")
    parser.add_argument("--output", type=Path, required=True, help="lines of JSON; what it has is not made again")
    parser.add_argument("--feedback-columns", type=int, default=1 << 30)
    given = parser.parse_args()
    Narrow.columns = given.feedback_columns
    work = Work(given)
    head = {"model": given.model.name, "tokens": given.tokens, "calibration_tokens": given.calibration_tokens}
    head |= {"compute": given.compute}
    lines = given.output.read_text().splitlines() if given.output.exists() else []
    done = [{name: line.get(name) for name in (*head, "type", "way")} for line in map(json.loads, lines)]

    def note(row: dict[str, Any]) -> None:
        text = json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}", **head, **row})
        print(text, flush=True)
        with given.output.open("a") as out:
            out.write(text + "\n")

    if {**head, "type": "reference", "way": None} not in done:
        note({"type": "reference", "perplexity": round(work.reference.perplexity, 5)})
    for kind in given.types:
        for way in given.ways:
            if {**head, "type": kind, "way": way} not in done:
                note({"type": kind, "way": way, **work.line(kind, way)})


if __name__ == "__main__":
    main()
