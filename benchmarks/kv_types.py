"""What each type of the KV cache costs: perplexity, divergence from one in f32, bytes, and the speed of steps.

    python benchmarks/kv_types.py MODEL TEXT --tokens 2048 --compute f32
    python benchmarks/kv_types.py MODEL --context 2048 --rounds 5

With TEXT the windows are those of `weft eval ppl`, and the divergence (Kullback-Leibler, in nats) is that of the next
token. With --context one sequence reads so many tokens at 512 a step and decodes --steps more; the types take turns,
and the least time of a step is told. Prints a line of JSON for each type.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from weft.measure.perplexity import Perplexity, log_chances, scored_logits
from weft.nn.step import Step
from weft.runtime import PAGE_TOKENS, Decoder, open_checkpoint
from weft.runtime.paged.elements import KV_TYPES


def quality(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    base: list[np.ndarray] = []
    for kind in ["f32", *(kind for kind in given.types if kind != "f32")]:
        options = {"compute": given.compute, "threads": given.threads}
        measured = Perplexity(given.model, given.text, tokens=given.tokens, kv_dtype=kind, **options)
        losses, apart = [], []
        parts = (part for window in measured.windows for part in scored_logits(measured.decoder, measured.ids, window))
        for index, (places, logits) in enumerate(parts):
            chances = log_chances(logits).astype(np.float32)
            losses.append(-chances[np.arange(len(places)), measured.ids[places]])
            if kind == "f32":
                base.append(chances)
            apart.append((np.exp(base[index]) * (base[index] - chances)).sum(axis=1, dtype=np.float64))
        lost = np.concatenate(losses).astype(np.float64)
        if kind == "f32":
            first = lost
        more = lost - first
        found[kind] = {
            "tokens": len(lost),
            "perplexity": float(np.exp(lost.mean())),
            "percent": 100 * float(np.expm1(more.mean())),
            "error": 100 * float(more.std() / np.sqrt(len(more))),
            "divergence": float(np.concatenate(apart).mean()),
        }
    return found


def speeds(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    context = given.context + given.steps * given.rounds
    pages = np.arange(-(-context // PAGE_TOKENS), dtype=np.int32)[None]
    rng, found, decoders = np.random.default_rng(0), {}, {}

    def run(decoder: Decoder, ids: np.ndarray, first: int) -> None:
        at = np.arange(first, first + len(ids), dtype=np.int32)
        rows, segments = np.asarray([len(ids) - 1], np.int32), np.asarray([0, len(ids)], np.int32)
        decoder.run(Step(ids=ids, positions=at, segments=segments, rows=rows, pages=pages))

    for kind in given.types:
        made = Decoder(
            open_checkpoint(Path(given.model)), context=context, kv_tokens=context, kv_dtype=kind,
            compute=given.compute, threads=given.threads, draft_head=False,
        )  # fmt: skip
        ids = rng.integers(100, 2000, given.context).astype(np.int32)
        run(made, ids[:8], 0)
        begun = time.perf_counter()
        for first in range(0, given.context, 512):
            run(made, ids[first : first + 512], first)
        decoders[kind] = made
        found[kind] = {
            "bytes_per_token": made.page_bytes / PAGE_TOKENS,
            "context": given.context,
            "prefill_per_s": given.context / (time.perf_counter() - begun),
            "decode_ms": np.inf,
        }
    for done in range(given.rounds):
        for kind, made in decoders.items():
            for step in range(given.steps):
                begun = time.perf_counter()
                run(made, np.asarray([7], np.int32), given.context + done * given.steps + step)
                found[kind]["decode_ms"] = min(found[kind]["decode_ms"], 1e3 * (time.perf_counter() - begun))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--types", nargs="+", default=list(KV_TYPES), choices=list(KV_TYPES))
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--context", type=int, help="measure the speed after so many tokens")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compute", choices=["int8", "bf16", "f16", "f32"])
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for part in ([quality(given)] if given.text else []) + ([speeds(given)] if given.context else []):
        for kind, facts in part.items():
            found.setdefault(kind, {}).update(facts)
    for kind, facts in found.items():
        print(json.dumps({"kv_dtype": kind, **facts}))


main()
