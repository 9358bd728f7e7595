"""Encoding speed of weft's tokenizers against the tokenizers library: one thread, bound by memory and branches.

    python benchmarks/tokenizers.py tokenizer.json [more.json ...] --wiki wiki.test.raw
    python benchmarks/tokenizers.py path/to/tokenizer.json --runs 40

Two workloads per tokenizer: English encyclopedia text in paragraphs (--wiki; skipped where the file is missing), and
generated text in many scripts. The two libraries take turns, so that a busy machine slows both.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.text.tokenizer import Tokenizer

SCRIPTS = {
    "Latin": (0x61, 0x7A),
    "accented": (0xC0, 0x17F),
    "Greek": (0x391, 0x3C9),
    "Cyrillic": (0x410, 0x44F),
    "Hebrew": (0x5D0, 0x5EA),
    "Arabic": (0x621, 0x64A),
    "Devanagari": (0x905, 0x939),
    "Hiragana": (0x3041, 0x3096),
    "Han": (0x4E00, 0x5FFF),
    "Hangul": (0xAC00, 0xB7A3),
    "emoji": (0x1F300, 0x1F64F),
}


def library() -> Any:
    """The other side, on one thread; this file shares its name, so its folder leaves the import path first."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    from tokenizers import Tokenizer as Library

    return Library


def mixed_text(paragraphs: int) -> list[str]:
    """Paragraphs of words from all scripts; words repeat as they do in language (few often, many seldom)."""
    rng = random.Random(3)
    words = [
        "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(2, 8)))
        for first, last in SCRIPTS.values()
        for _ in range(700)
    ]
    rng.shuffle(words)
    weights = [1 / (rank + 3) for rank in range(len(words))]
    return [" ".join(rng.choices(words, weights, k=120)) + ".\n" for _ in range(paragraphs)]


def workloads(wiki: Path | None) -> dict[str, list[str]]:
    texts = {"mixed": mixed_text(400)}
    if wiki is not None and wiki.is_file():
        lines = wiki.read_text(encoding="utf-8").splitlines(keepends=True)
        texts["wiki"] = [line for line in lines if len(line) > 40][:1500]
    return texts


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(ours: Tokenizer, other: Any, texts: list[str], runs: int) -> dict[str, float]:
    """Megabytes of UTF-8 per second, medians of `runs` turns after a warm-up, and the ratio."""
    size = sum(len(text.encode()) for text in texts) / 1e6
    for text in texts[:50]:
        assert ours.encode(text, parse_special=True) == other.encode(text).ids, ascii(text)
    mine, theirs = [], []
    for turn in range(runs + 1):
        pair = (
            seconds(lambda: [ours.encode(text, parse_special=True) for text in texts]),
            seconds(lambda: [other.encode(text).ids for text in texts]),
        )
        if turn:  # the first warms up
            mine.append(size / pair[0])
            theirs.append(size / pair[1])
    weft_rate, library_rate = statistics.median(mine), statistics.median(theirs)
    return {"weft": weft_rate, "library": library_rate, "ratio": weft_rate / library_rate, "slowest": min(mine)}


def load_times(path: Path, other_kind: Any, runs: int = 5) -> tuple[float, float]:
    ours = [seconds(lambda: Tokenizer.from_file(path)) for _ in range(runs)]
    other = [seconds(lambda: other_kind.from_file(str(path))) for _ in range(runs)]
    return statistics.median(ours) * 1e3, statistics.median(other) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="tokenizer.json files")
    parser.add_argument("--wiki", type=Path, help="a file of English text")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    other_kind, texts = library(), workloads(options.wiki)
    rows = []
    print(f"{'tokenizer':28} {'text':6} {'weft MB/s':>10} {'library':>9} {'ratio':>7} {'load ms':>9} {'library':>9}")
    for path in options.files:
        ours, other = Tokenizer.from_file(path), other_kind.from_file(str(path))
        other.no_truncation()
        other.no_padding()
        loads = load_times(path, other_kind)
        for name, lines in texts.items():
            rates = measure(ours, other, lines, options.runs)
            rows.append(
                {"tokenizer": path.parent.name, "text": name, "load_ms": loads[0], "library_load_ms": loads[1], **rates}
            )
            print(
                f"{path.parent.name:28} {name:6} {rates['weft']:10.1f} {rates['library']:9.2f} {rates['ratio']:6.1f}x "
                f"{loads[0]:9.1f} {loads[1]:9.1f}"
            )
    print(json.dumps({"benchmark": "tokenizers", "machine": platform.processor() or platform.machine(), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
