"""What rounding costs a model: size, perplexity and divergence of each type, plain, with importance, with feedback.

    python benchmarks/rounding.py MODEL CALIBRATION.txt TEST.txt --types q4_0 q4_k_m --tokens 4096

Prints a line of JSON for each file, which is written to a temporary folder. The reference is MODEL itself, in f32.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from weft.quantise import Calibration, Quantising
from weft.runtime import Decoder, open_checkpoint

WINDOW = 512


def logits(path: Path, ids: np.ndarray, threads: int) -> Iterator[np.ndarray]:
    """Log-probabilities of every window, each by itself, float64."""
    decoder = Decoder(open_checkpoint(path), context=WINDOW, compute="f32", kv_dtype="f32", threads=threads)
    for first in range(0, len(ids), WINDOW):
        wide = decoder.logits(ids[first : first + WINDOW]).astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        yield wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def measured(path: Path, reference: Path, ids: np.ndarray, threads: int) -> dict[str, float]:
    loss = divergence = same = 0.0
    count = rows = 0
    for number, (own, true) in enumerate(zip(logits(path, ids, threads), logits(reference, ids, threads))):
        window = ids[number * WINDOW : number * WINDOW + WINDOW]
        loss -= float(own[np.arange(len(window) - 1), window[1:]].sum())
        divergence += float((np.exp(true) * (true - own)).sum())
        same += float((own.argmax(1) == true.argmax(1)).sum())
        count, rows = count + len(window) - 1, rows + len(window)
    found = {"perplexity": np.exp(loss / count), "divergence": divergence / rows, "same_first": same / rows}
    return {name: round(float(value), 5) for name, value in found.items()}


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
    given = parser.parse_args()
    tokenizer = open_checkpoint(given.model).tokenizer()
    ids = np.asarray(tokenizer.encode(given.test.read_text(encoding="utf-8"))[: given.tokens], np.int32)
    print(json.dumps({"type": "reference", **measured(given.model, given.model, ids, given.threads)}), flush=True)
    text = given.calibration.read_text(encoding="utf-8")[: given.calibration_tokens * 12]
    work = Calibration(given.model, text, tokens=given.calibration_tokens, threads=given.threads)
    seen = {name: one.mean for name, one in work.importance().items()}
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.types:
            for way in given.ways:
                path = Path(folder) / "out.gguf"
                more = {} if way == "plain" else {"importance": seen}
                if way == "feedback":
                    more["feedback"] = work
                began = time.perf_counter()
                list(Quantising(given.model, path, type=kind, threads=given.threads, overwrite=True, **more))
                took = round(time.perf_counter() - began, 1)
                row = {"type": kind, "way": way, "bytes": path.stat().st_size, "seconds": took}
                print(json.dumps({**row, **measured(path, given.model, ids, given.threads)}), flush=True)


if __name__ == "__main__":
    main()
