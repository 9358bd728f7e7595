"""How long grammars take: building a vocabulary, compiling, and the mask of each step, p50 and p99.

    python benchmarks/grammar.py tokenizer.json
    python benchmarks/grammar.py tokenizer.json --texts 20

Texts are drawn from random logits under the mask, and after them those of `cases` are replayed: a random text stays in
strings for long, a real one goes through all of the grammar. Bound by branches and memory; one thread.
"""

import argparse
import json
import platform
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.generate.grammar import Compiled, Grammar, Vocabulary
from weft.text import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 5},
        "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}}},
}
WRITTEN = (
    '{"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "tags": ["red", "blue"], "home": {"lat": 51.5}}'
)
CALLS = {
    "anyOf": [
        {
            "properties": {"name": {"const": f"tool_{i}"}, "arguments": {"$id": f"urn:tool:{i}", **PERSON}},
            "required": ["name", "arguments"],
        }
        for i in range(20)
    ]
}


def cases() -> dict[str, tuple[Grammar, str]]:
    """Grammars by name, each with a text of its own."""
    return {
        "schema": (Grammar.json_schema(PERSON), WRITTEN),
        "20 tools": (Grammar.json_schema(CALLS), f'{{"name": "tool_7", "arguments": {WRITTEN}}}'),
        "any object": (Grammar.json_object(), WRITTEN),
        "regex": (
            Grammar.regex(r"[A-Z][a-z]+(?: [A-Z][a-z]+){0,3}, [0-9]{4}-[0-9]{2}-[0-9]{2}"),
            "Ada King, 1815-12-10",
        ),
        "choices": (Grammar.choices([f"choice number {i}" for i in range(1_000)]), "choice number 517"),
        "gbnf": (Grammar.gbnf('root ::= item ("," item)*\nitem ::= [0-9]+ | "(" root ")"'), "1,(22,(3,4)),555"),
    }


def masks(compiled: Compiled, ids: list[int], texts: int) -> Iterator[float]:
    """Seconds of each mask of some random texts and of a given one."""
    rng, size = np.random.default_rng(1), compiled.vocabulary.size
    for number in range(texts + 1):
        matcher = compiled.start()
        for step in range(200 if number < texts else len(ids)):
            start = time.perf_counter()
            mask = matcher.mask()
            yield time.perf_counter() - start
            bits = np.unpackbits(mask.view(np.uint8), count=size, bitorder="little")
            token = ids[step] if number == texts else int(rng.choice(np.flatnonzero(bits)))
            if matcher.stopped or token in compiled.vocabulary.eos_ids or matcher.allowed([token]) == 0:
                break
            matcher.advance(token)


def applying(compiled: Compiled) -> float:
    """Seconds of putting a mask on logits, the mask included."""
    matcher, logits = compiled.start(), np.zeros(compiled.vocabulary.size, np.float32)
    return min(_timed(lambda: matcher.apply(logits)) for _ in range(50))


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer")
    parser.add_argument("--texts", type=int, default=10, help="random texts for each grammar")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(options.tokenizer)
    eos = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.vocab_size - 1
    start, start_cpu = time.perf_counter(), time.process_time()
    vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size, [eos])
    assert vocabulary.native
    build_s, build_cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    print(f"{vocabulary.size} tokens, vocabulary built in {build_s:.2f} s ({build_cpu_s:.2f} s of processor time)")
    print(f"{'grammar':12} {'compile ms':>10} {'p50 us':>8} {'p99 us':>8} {'max us':>8} {'apply us':>9} {'masks':>6}")
    results = {}
    for name, (grammar, text) in cases().items():
        start = time.perf_counter()
        compiled = grammar.compile(vocabulary)
        compile_s = time.perf_counter() - start
        times = np.array([*masks(compiled, tokenizer.encode(text, add_special=False), options.texts)]) * 1e6
        p50, p99 = np.percentile(times, [50, 99])
        apply_us = applying(compiled) * 1e6
        print(
            f"{name:12} {compile_s * 1e3:10.1f} {p50:8.0f} {p99:8.0f} {times.max():8.0f} {apply_us:9.0f} {len(times):6}"
        )
        results[name] = {"compile_ms": round(compile_s * 1e3, 2), "p50_us": round(p50, 1), "p99_us": round(p99, 1)}
    print(
        json.dumps(
            {"grammar": results, "tokens": vocabulary.size, "build_s": round(build_s, 3), "machine": platform.machine()}
        )
    )


if __name__ == "__main__":
    main()
