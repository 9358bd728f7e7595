"""What rounding costs a model: size, perplexity and divergence of each type, plain, with importance, with feedback.

    python benchmarks/rounding.py MODEL CALIBRATION.txt TEST.txt --types q4_0 q4_k_m --tokens 4096

Prints a line of JSON for each file, which is written to a temporary folder. The reference is MODEL itself, in f32.
The ways `llama.cpp` and `llama.cpp-importance` have the same plan, with blocks rounded by ggml-quants.c: `--peer` is a
shared library of that (see tests/golden/encode/make_encode.py). Named after `plain` or `importance` they take its file
over instead of making it again.

`--keep FOLDER` keeps what the reference says and the importance of columns for the next run with the same text and
tokens. `--feedback-columns` leaves error feedback out where a matrix is wider: its cost grows with the square.
"""

import argparse
import ctypes
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from weft.quantise import Calibration, Quantising
from weft.runtime import Decoder, open_checkpoint
from weft.weights import open_gguf

WINDOW = 512
KEPT = 4 << 30  # bytes of the reference's log-probabilities that are kept for the next file


def logits(path: Path, ids: np.ndarray, threads: int) -> Iterator[np.ndarray]:
    """Log-probabilities of every window, each by itself, float64."""
    decoder = Decoder(open_checkpoint(path), context=WINDOW, compute="f32", kv_dtype="f32", threads=threads)
    for first in range(0, len(ids), WINDOW):
        wide = decoder.logits(ids[first : first + WINDOW]).astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        yield wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


class Reference:
    """The model that all are compared with; what it says of each window is kept where it fits."""

    def __init__(self, path: Path, ids: np.ndarray, threads: int, file: Path | None = None) -> None:
        self.path, self.ids, self.threads, self.file = path, ids, threads, file
        self.kept: list[np.ndarray] = []
        if file is not None and file.exists():
            with np.load(file) as kept:
                self.kept = [kept[name] for name in kept.files]

    def logits(self) -> Iterator[np.ndarray]:
        if self.kept:
            yield from self.kept
            return
        for one in logits(self.path, self.ids, self.threads):
            if len(self.ids) * one.shape[1] * 4 <= KEPT:
                self.kept.append(one.astype(np.float32))
            yield one
        if self.kept and self.file is not None:
            np.savez(self.file, *self.kept)


class Narrow(Calibration):
    """A calibration whose feedback leaves wide matrices out."""

    columns = 1 << 30

    @property
    def able(self) -> frozenset[str]:
        narrow = {name for one in self._products if one.columns <= self.columns for name in one.tensors}
        return super().able & narrow


def importance_of(work: Calibration, file: Path | None) -> dict[str, np.ndarray]:
    if file is not None and file.exists():
        with np.load(file) as kept:
            return dict(kept)
    found = {name: one.mean for name, one in work.importance().items()}
    if file is not None:
        np.savez(file, **found)
    return found


def measured(own_logits: Iterator[np.ndarray], reference: Reference) -> dict[str, float]:
    ids = reference.ids
    loss = divergence = same = 0.0
    count = rows = 0
    for number, (own, true) in enumerate(zip(own_logits, reference.logits())):
        window = ids[number * WINDOW : number * WINDOW + WINDOW]
        loss -= float(own[np.arange(len(window) - 1), window[1:]].sum())
        divergence += float((np.exp(true) * (true - own)).sum())
        same += float((own.argmax(1) == true.argmax(1)).sum())
        count, rows = count + len(window) - 1, rows + len(window)
    found = {"perplexity": np.exp(loss / count), "divergence": divergence / rows, "same_first": same / rows}
    return {name: round(float(value), 5) for name, value in found.items()}


def rounded_by_peer(
    path: Path, model: Path, library: str, importance: dict[str, np.ndarray] | None, threads: int
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--types", nargs="+", default=["q4_0", "q4_1", "q4_k_m"])
    parser.add_argument("--ways", nargs="+", default=["plain", "importance", "feedback"])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--calibration-tokens", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", default="", help="a shared library of ggml-quants.c, for the ways of llama.cpp")
    parser.add_argument("--keep", type=Path, help="a folder for what the reference says and for the importance")
    parser.add_argument("--feedback-columns", type=int, default=1 << 30)
    given = parser.parse_args()
    Narrow.columns = given.feedback_columns
    tokenizer = open_checkpoint(given.model).tokenizer()
    ids = np.asarray(tokenizer.encode(given.test.read_text(encoding="utf-8"))[: given.tokens], np.int32)
    reference = Reference(given.model, ids, given.threads, given.keep and given.keep / "reference.npz")
    print(json.dumps({"type": "reference", **measured(reference.logits(), reference)}), flush=True)
    text = given.calibration.read_text(encoding="utf-8")[: given.calibration_tokens * 12]
    work = Narrow(given.model, text, tokens=given.calibration_tokens, threads=given.threads)
    seen = importance_of(work, given.keep and given.keep / "importance.npz")
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.types:
            path = Path(folder) / f"{kind}.gguf"
            for way in given.ways:
                more = {} if way in ("plain", "llama.cpp") else {"importance": seen}
                if way == "feedback":
                    more["feedback"] = work
                began = time.perf_counter()
                if not (way.startswith("llama.cpp") and path.exists()):
                    list(Quantising(given.model, path, type=kind, threads=given.threads, overwrite=True, **more))
                if way.startswith("llama.cpp"):
                    rounded_by_peer(path, given.model, given.peer, more.get("importance"), given.threads)
                took = round(time.perf_counter() - began, 1)
                row = {"type": kind, "way": way, "bytes": path.stat().st_size, "seconds": took}
                print(json.dumps({**row, **measured(logits(path, ids, given.threads), reference)}), flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
