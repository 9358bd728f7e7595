"""Grammars that ask for as much time and memory as they can: each is refused, or compiled within its limits.

    python tests/generate/hostile_grammars.py       one line of JSON a case: its name, how it ended, seconds, MiB

The sizes are just under what is taken, where a limit is there to be met, and far over it elsewhere.
"""

import ctypes
import json
import string
import sys
import time
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

import numpy as np  # noqa: E402
from byte_tokenizer import byte_vocabulary  # noqa: E402

from weft.errors import WeftError  # noqa: E402
from weft.generate.grammar import Grammar, Vocabulary  # noqa: E402

LETTERS = string.ascii_lowercase


def optional(letter: str, count: int) -> str:
    """An expression whose derivatives are as many as the square of its length."""
    return f"{letter}?" * count + letter * count


def doubling(name: str, count: int, last: str, sign: str = ":") -> str:
    """Rules that each use the next one twice."""
    rules = [f"{name}{i} {sign} {name}{i + 1} {name}{i + 1}" for i in range(count)]
    return "\n".join([*rules, f"{name}{count} {sign} {last}", ""])


def references(count: int, keyword: str) -> dict[str, Any]:
    """A schema whose parts each refer to the next one twice."""
    parts: dict[str, Any] = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(count)}
    return {"$defs": {**parts, f"d{count}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def named(count: int, schema: Any) -> dict[str, Any]:
    return {f"property number {i}": schema for i in range(count)}


REGEX = {
    "repeats of repeats": "((a{0,2000}){0,2000}){0,2000}",
    "deep repeats": "(" * 90 + "a?" + "){0,3}" * 90,
    "many repeats": "[a-z]{2000}" * 700,
    "letters of all scripts": r"\p{L}{2000}" * 700,
    "alternatives of all scripts": "|".join(rf"\p{{L}}{i}\p{{N}}" for i in range(560)),
    "letters in either case": "(?i)(" + "|".join(f"straße{i}Kſ" for i in range(650)) + ")",
    "wide set": "[" + "".join(chr(0x100 + 3 * i) for i in range(8_000)) + "]{1,2000}",
    "stars": "".join(f"{LETTERS[i % 26]}*" for i in range(4_000)),
    "stars of pluses": "(x+x+)+y" * 1_000,
    "stars of stars": "(a*)*" * 1_600,
    "optional letters": optional("a", 2_700),
    "too many optional letters": optional("a", 4_000),
    "many states": ".*a.{2000}",
    "many states of many": "|".join(f".*{c}.{{{500 + i}}}" for i, c in enumerate(LETTERS)),
    "counted alternatives": "|".join(f".{{{i},2000}}b" for i in range(600)),
    "literal": "ab" * 4_000,
    "back reference": r"(a)\1",
    "open groups": "(" * 100_000,
}
LARK = {
    "repeats of repeats": 'start: a{2000}\na: b{2000}\nb: c{2000}\nc: "x"\n',
    "repeats of nothing": 'start: a{0,2000}\na: b{0,2000}\nb: c{0,2000}\nc: "x"?\n',
    "ambiguous": 'start: s\ns: s s | s s s | "a" | ""\n',
    "conjunctions": "start: T\nT: " + " & ".join(f"/(.*{LETTERS[i % 26]}.*){{{2 + i}}}/" for i in range(100)) + "\n",
    "negations": "start: T\nT: " + " & ".join(f"~/.*{LETTERS[i % 26]}.{{{i}}}x/" for i in range(100)) + "\n",
    "doubling rules": "start: a0\n" + doubling("a", 400, '"x"'),
    "doubling terminals": "start: A0\n" + doubling("A", 40, '"x"'),
    "optional letters": "start: A0\n" + doubling("A", 14, "/a?/"),
    "few optional letters": "start: A0\n" + doubling("A", 10, "/a?/"),
    "long terminals": "start: T0 | T1 | T2\n" + "".join(f"T{i}: /{optional(LETTERS[i], 1_500)}/\n" for i in range(3)),
    "many terminals": "start: (" + " | ".join(f"T{i}" for i in range(480)) + ")*\n"
    + "".join(f"T{i}: /[a-z]{{{i + 1}}}[0-9]*/\n" for i in range(480)),
    "alternatives": "start: " + " | ".join(f'"{i}" a' for i in range(3_990)) + "\na: start?\n",
    "too many alternatives": "start: " + " | ".join(f'"{i}" a' for i in range(20_000)) + "\na: start?\n",
    "everything ignored": 'start: "x"+\n%ignore /(.|\\n)*/\n',
    "part of a text": 'start: T\nT: %regex { "substring_chars": "' + "ab" * 2_000 + '" }\n',
    "chain": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(490)) + 'r490: "a"\n',
}  # fmt: skip
GBNF = {
    "doubling": "root ::= a0\n" + doubling("a", 30, '"abc"', "::="),
    "recursion": 'root ::= root root | (root){0,2000} | "a" | ""',
    "repeats of recursion": 'root ::= (x{2000}){2000}\nx ::= "a" root | "b"',
    "all to all": "root ::= r0\n" + "".join(
        f"r{i} ::= " + " | ".join(f"r{j}" for j in range(60) if j != i) + ' | "x"\n' for i in range(60)
    ),
    "one rule everywhere": "root ::= root r0 | " + " | ".join(f"r{i}" for i in range(480)) + "\n"
    + "".join(f'r{i} ::= x "{i}"\n' for i in range(480)) + "x ::= " + " | ".join(f'"{7919 * i}"' for i in range(900)),
    "sets": "root ::= " + "[^a-z]{2000} " * 600,
}  # fmt: skip
OBJECT = {"type": "object", "additionalProperties": False}
SCHEMAS: dict[str, Any] = {
    "properties": {**OBJECT, "properties": named(2_000, {"type": "string", "pattern": "^[a-z]{1,2000}$"})},
    "required properties": {**OBJECT, "properties": named(2_000, {}), "required": [*named(2_000, {})]},
    "formats": {
        **OBJECT,
        "properties": named(1_000, {"type": "string", "format": "uri"}),
        "required": [*named(1_000, {})],
    },
    "enum": {"enum": [f"value {i} {'x' * 10}" for i in range(10_000)]},
    "long texts": {"enum": ["x" * 4_000 + str(i) for i in range(60)]},
    "depth": reduce(lambda inner, _: {"type": "object", "properties": {"a": inner}}, range(28), {"type": "null"}),
    "doubling allOf": references(60, "allOf"),
    "doubling anyOf": references(60, "anyOf"),
    "doubling items": references(60, "prefixItems"),
    "product": {
        "allOf": [
            {"anyOf": [{"properties": {f"p{i}{j}": {"type": "null"}}, "required": [f"p{i}{j}"]} for j in range(6)]}
            for i in range(8)
        ]
    },
    "items": {"type": "array", "minItems": 2_000, "items": {"type": "array", "minItems": 10**6, "items": {}}},
    "length": {"type": "string", "minLength": 10**6, "maxLength": 10**9},
    "pattern": {"type": "string", "pattern": f"^{optional('a', 2_700)}$"},
    "long pattern": {"type": "string", "pattern": f"^{optional('a', 20_000)}$"},
    "patterns": {"anyOf": [{"type": "string", "pattern": f"^{optional(c, 500)}$"} for c in LETTERS]},
    "patterns at once": {"allOf": [{"type": "string", "pattern": f"{c}.{{200}}"} for c in LETTERS]},
    "names": {"patternProperties": {a + b: {"type": "integer"} for a in LETTERS[:9] for b in LETTERS}},
    "dependencies": {"dependentRequired": {a: [*LETTERS[:16]] for a in LETTERS[:16]}},
    "multiples": {"allOf": [{"type": "integer", "multipleOf": p} for p in (97, 89, 83, 79, 73)]},
    "small multiple": {"type": "number", "multipleOf": 1e-300},
    "tools": {
        "anyOf": [
            {**OBJECT, "properties": {"tool": {"const": f"{i}"}, **named(20, {"format": "date"})}} for i in range(60)
        ]
    },
}
CHOICES = {
    "many": [f"{i} " + LETTERS[: i % 20] for i in range(10_000)],
    "long": ["ab" * 2_000 + str(i) for i in range(60)],
}


def cases() -> Iterator[tuple[str, Callable[[], Grammar]]]:
    for kind, given in (
        (Grammar.regex, REGEX),
        (Grammar.lark, LARK),
        (Grammar.gbnf, GBNF),
        (Grammar.json_schema, SCHEMAS),
        (Grammar.choices, CHOICES),
    ):
        for name, value in given.items():
            yield f"{kind.__name__}: {name}", lambda kind=kind, value=value: kind(value)  # type: ignore[misc]


def outcome(make: Callable[[], Grammar], vocabulary: Vocabulary) -> str:
    """Compile, and take 16 steps, the first token that may come each time."""
    try:
        matcher = make().compile(vocabulary).start()
        for _ in range(16):
            matcher.forced()
            token = int(np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))[0])
            if token in vocabulary.eos_ids:
                break
            matcher.advance(token)
    except WeftError as error:
        return f"{type(error).__name__}: {error}"[:150]
    return "ok"


def memory(key: str) -> float:
    """MiB of this process by a key of Linux; 0 elsewhere."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(key)), 0.0)


def forget_peak() -> None:
    """Give free memory back, so that a case pays for all that it takes, and let the peak be what is held now."""
    if sys.platform == "linux":
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    vocabulary = byte_vocabulary()
    _ = Grammar.choices(["a"]).compile(vocabulary)  # what all grammars need
    for name, make in cases():
        forget_peak()
        held, before = memory("VmRSS"), time.perf_counter()
        ended = outcome(make, vocabulary)
        seconds, mebibytes = time.perf_counter() - before, memory("VmHWM") - held
        print(json.dumps([name, ended, round(seconds, 3), round(mebibytes, 1)]), flush=True)


if __name__ == "__main__":
    main()
