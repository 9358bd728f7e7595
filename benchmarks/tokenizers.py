"""Encoding speed of weft's tokenizers beside the tokenizers library, and how time grows on hostile input.

    python benchmarks/tokenizers.py tokenizer.json [more.json ...] --wiki wiki.test.raw --threads 2
    python benchmarks/tokenizers.py --growth tokenizer.json [tokenizer.model ...]

Two workloads per tokenizer: English encyclopedia text in paragraphs (--wiki; skipped where the file is missing), and
generated text in many scripts; each text by text on one thread, and as one batch with --threads on both sides. The two
libraries take turns, so that a busy machine slows both. --growth prints time(2n)/time(n) for inputs that make careless
tokenizers quadratic: bound by memory and branches, it should stay near 2.
"""

import argparse
import base64
import itertools
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
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


def library(threads: int) -> Any:
    """The other side; this file shares its name, so its folder leaves the import path first."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
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


def seconds(run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run()
    return clock() - start


def measure(ours: Tokenizer, other: Any, texts: list[str], runs: int, threads: int) -> dict[str, float]:
    """Megabytes of UTF-8 per second, medians of `runs` turns after a warm-up, and the ratios."""
    size = sum(len(text.encode()) for text in texts) / 1e6
    for text in texts[:50]:
        mine = ours.encode(text, add_special=False, parse_special=True)
        assert mine == other.encode(text, add_special_tokens=False).ids, ascii(text)
    ways: dict[str, Callable[[], Any]] = {
        "weft": lambda: [ours.encode(text, parse_special=True) for text in texts],
        "library": lambda: [other.encode(text).ids for text in texts],
        "weft_batch": lambda: ours.encode_batch(texts, parse_special=True, threads=threads),
        "library_batch": lambda: [encoded.ids for encoded in other.encode_batch(texts)],
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(runs + 1):
        for way, run in ways.items():
            took = seconds(run)
            if turn:  # the first warms up
                times[way].append(took)
    rates = {way: size / statistics.median(took) for way, took in times.items()}
    ratios = {f"ratio{kind}": rates[f"weft{kind}"] / rates[f"library{kind}"] for kind in ("", "_batch")}
    return rates | ratios


HOSTILE: dict[str, str] = {
    "letter": "a",
    "spaces": " ",
    "lines": "\n",
    "emoji": "👩‍👩‍👧‍👦",
    "digits": "0123456789",
    "ideographs": "天地玄黃宇宙洪荒日月盈昃辰宿列張",
    "marks": "a" + "\u0301\u0323" * 8,
    "token_starts": "<|<|<｜[",
    "mixed_case": "aB",
    "upper": "AB",
}


def hostile(name: str, size: int) -> str:
    """`size` bytes, near enough, of one of the patterns or of base64."""
    if name == "base64":
        return base64.b64encode(random.Random(1).randbytes(size * 3 // 4)).decode()
    unit = HOSTILE[name]
    return unit * (size // len(unit.encode()))


def growth(path: Path, repeats: int, sizes: tuple[int, ...] = (1 << 18, 1 << 19, 1 << 20)) -> dict[str, Any]:
    """Seconds of processor time for each size (the least of `repeats`) and the two ratios, by kind of input."""
    tokenizer, rows = Tokenizer.from_file(path), {}
    for name in [*HOSTILE, "base64"]:
        texts = [hostile(name, size) for size in sizes]
        tokenizer.encode(texts[0])
        turns = [
            [seconds(lambda text=text: tokenizer.encode(text), time.process_time) for text in texts]
            for _ in range(repeats)
        ]
        times = [min(took) for took in zip(*turns)]
        rows[name] = {"seconds": times, "ratios": [after / before for before, after in itertools.pairwise(times)]}
        shown = "  ".join(f"{ratio:5.2f}" for ratio in rows[name]["ratios"])
        print(f"{path.parent.name:24} {name:14} {times[-1] * 1e3:9.1f} ms for 1 MiB   {shown}", flush=True)
    return rows


def load_times(path: Path, other_kind: Any, runs: int = 5) -> tuple[float, float]:
    ours = [seconds(lambda: Tokenizer.from_file(path)) for _ in range(runs)]
    other = [seconds(lambda: other_kind.from_file(str(path))) for _ in range(runs)]
    return statistics.median(ours) * 1e3, statistics.median(other) * 1e3


def compare(path: Path, other_kind: Any, texts: dict[str, list[str]], options: argparse.Namespace) -> Iterator[dict]:
    ours, other = Tokenizer.from_file(path), other_kind.from_file(str(path))
    other.no_truncation()
    other.no_padding()
    loads = load_times(path, other_kind)
    name = path.parent.name if path.parent.name != "models" else path.parent.parent.name
    for kind, lines in texts.items():
        row = measure(ours, other, lines, options.runs, options.threads)
        print(
            f"{name:18} {kind:6} {row['weft']:9.1f} {row['library']:8.2f} {row['ratio']:6.1f}x "
            f"{row['weft_batch']:9.1f} {row['library_batch']:8.2f} {row['ratio_batch']:6.1f}x "
            f"{loads[0]:8.0f} {loads[1]:8.0f}",
            flush=True,
        )
        yield {"tokenizer": name, "text": kind, "load_ms": loads[0], "library_load_ms": loads[1], **row}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="tokenizer.json files")
    parser.add_argument("--wiki", type=Path, help="a file of English text")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--growth", action="store_true")
    options = parser.parse_args()
    record = {"machine": platform.processor() or platform.machine(), "threads": options.threads}
    if options.growth:
        rows: Any = {str(path.parent.name): growth(path, options.runs) for path in options.files}
        print(json.dumps({"benchmark": "tokenizer_growth", **record, "rows": rows}))
        return 0
    other_kind, texts = library(options.threads), workloads(options.wiki)
    print(f"{'MB/s':18} {'text':6} {'weft':>9} {'library':>8} {'':7} {'batch':>9} {'library':>8} {'':7} {'load ms':>8}")
    rows = [row for path in options.files for row in compare(path, other_kind, texts, options)]
    print(json.dumps({"benchmark": "tokenizers", **record, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
