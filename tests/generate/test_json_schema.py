"""JSON Schemas are enforced exactly or refused by name: no text that a schema forbids can be generated."""

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import ByteTokenizer, accepts, byte_vocabulary
from random_schemas import random_schema
from soaking import times
from test_grammar import generated

from weft.errors import InputError, UnsupportedError, WeftError
from weft.generate.grammar import Grammar, Vocabulary
from weft.generate.schema.pattern import translate

TOKENIZER = ByteTokenizer()


@pytest.fixture(scope="module")
def vocabulary():
    return byte_vocabulary()


@pytest.fixture
def allows(vocabulary):
    def check(schema: object, *texts: str) -> list[bool]:
        compiled = Grammar.json_schema(schema).compile(vocabulary)  # type: ignore[arg-type]
        return [accepts(compiled.start(), TOKENIZER.encode(text)) for text in texts]

    return check


def suite(folder: Path) -> list[tuple[str, dict]]:
    files = sorted((folder / "json-schema" / "tests" / "draft2020-12").glob("*.json"))
    if not files:
        pytest.skip("the JSON-Schema-Test-Suite is not in the extra data")
    return [(path.stem, group) for path in files for group in json.loads(path.read_text(encoding="utf-8"))]


@pytest.mark.shared
@pytest.mark.parametrize("tokens", ["bytes", "gpt-2"])
def test_the_official_suite_has_no_false_accepts(shared, vocabulary, tokens):
    encode = TOKENIZER.encode
    if tokens == "gpt-2":
        vocabulary, encode = gpt2(shared)
    refused, wrong, rejected, valid, taken, seen_invalid = [], [], [], 0, 0, 0
    for file, group in suite(shared):
        valid += sum(test["valid"] for test in group["tests"])
        try:
            compiled = Grammar.json_schema(group["schema"]).compile(vocabulary)
        except (InputError, UnsupportedError) as error:
            refused.append(str(error))
            continue
        for test in group["tests"]:
            plain = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
            spaced = json.dumps(test["data"], ensure_ascii=False)
            found = [accepts(compiled.start(), encode(text)) for text in (plain, spaced)]
            name = f"{file}: {group['description']}: {test['description']}"
            if test["valid"]:
                taken += all(found)
                rejected += [] if all(found) else [name]
            else:
                seen_invalid += 1
                wrong += [name] if any(found) else []
    print(
        f"{tokens}: {taken} of {valid} valid instances accepted ({taken / valid:.1%}), "
        f"{seen_invalid} invalid ones tried, {len(wrong)} accepted; {len(refused)} schemas refused"
    )
    assert not wrong
    assert all(error.startswith("[json schema") for error in refused)
    assert taken / valid >= 0.79, rejected


def gpt2(shared: Path):
    from weft.text import Tokenizer
    from weft.weights.gguf import open_gguf

    path = shared / "vocabs" / "ggml-vocab-gpt-2.gguf"
    if not path.is_file():
        pytest.skip("GPT-2's vocabulary is not in the extra data")
    tokenizer = Tokenizer.from_gguf(open_gguf(path).metadata)
    assert tokenizer.eos_id is not None
    vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size, [tokenizer.eos_id])
    return vocabulary, lambda text: tokenizer.encode(text, add_special=False)


@pytest.mark.soak
def test_texts_drawn_under_random_schemas_satisfy_them(vocabulary):
    jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed (test extra)")
    count, compiled, finished = times(300, 60), 0, 0
    for seed in range(count):
        schema = random_schema(random.Random(seed))
        try:
            grammar = Grammar.json_schema(schema).compile(vocabulary)
        except (InputError, UnsupportedError):
            continue
        compiled += 1
        text = generated(grammar.start(), np.random.default_rng(seed), 300)
        if text is not None:
            finished += 1
            assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), (seed, schema, text)
    assert compiled > 0.5 * count and finished > 0.43 * count, (compiled, finished)


@pytest.mark.parametrize(
    "schema, place, name",
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems", "uniqueItems"),
        ({"items": {"contains": {"type": "null"}}}, "/items/contains", "contains"),
        ({"anyOf": [{"type": "null"}, {"requierd": ["a"]}]}, "/anyOf/1/requierd", "requierd"),
        ({"type": "string", "nullable": True}, "/nullable", "nullable"),
        ({"$defs": {"/": {"minProperties": 2}}, "$ref": "#/$defs/~1"}, "/$defs/~1/minProperties", "minProperties"),
        ({"properties": {"a": {"format": "unheard-of"}}}, "/properties/a/format", "unheard-of"),
        ({"properties": {"a": {"pattern": "(?=x)"}}}, "/properties/a/pattern", "look-around"),
        ({"$ref": "https://example.com/schema"}, "/$ref", "another document"),
        ({"$schema": "https://example.com/own"}, "/$schema", "dialect"),
        ({"not": {"items": {"type": "null"}}}, "/not/items", "negation of items"),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, "/oneOf", "exclude"),
        ({"type": "integer", "minimum": 2**53 + 1}, "/minimum", "2^53"),
        ({"multipleOf": 99_991}, "/multipleOf", "multipleOf"),
        ({"multipleOf": 10**400}, "/multipleOf", "multipleOf"),
        ({"const": -(2**63)}, "/const", "2^53"),  # llguidance 1.9.1 crashes
        ({"enum": [{"a": [2**60 + 1]}]}, "/enum", "2^53"),
        ({"const": "a\x01"}, "/const", "control"),
        ({"$recursiveRef": "#"}, "/$recursiveRef", "recursiveRef"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_with_its_place(schema, place, name):
    with pytest.raises(UnsupportedError) as caught:
        Grammar.json_schema(schema)
    assert name in str(caught.value) and place in str(caught.value)


@pytest.mark.parametrize(
    "schema, place",
    [
        ({"properties": {"a": {"minLength": -1}}}, "/properties/a/minLength"),
        ({"properties": []}, "/properties"),
        ({"type": "text"}, "/type"),
        ({"anyOf": []}, "/anyOf"),
        ({"exclusiveMinimum": True, "minimum": 1}, "/exclusiveMinimum"),
        ({"items": 3}, "/items"),
        ({"$ref": "#/nowhere"}, "/$ref"),
        ({"required": ["a", 1]}, "/required"),
        ({"multipleOf": 0}, "/multipleOf"),
    ],
)
def test_a_malformed_schema_is_refused_with_its_place(schema, place):
    with pytest.raises(InputError) as caught:
        Grammar.json_schema(schema)
    assert str(caught.value).endswith(f"(at {place})")


@pytest.mark.parametrize("schema", [False, {"not": {}}, {"enum": []}, {"allOf": [{"type": "null"}, {"type": "string"}]},
                                    {"$ref": "#"}, {"type": "string", "minLength": 3, "maxLength": 2}])  # fmt: skip
def test_a_schema_that_nothing_satisfies_is_refused(schema, vocabulary):
    with pytest.raises(InputError, match=r"no value can satisfy the schema|no text can match the grammar"):
        Grammar.json_schema(schema).compile(vocabulary)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        '"x"',
        "NaN",
        '{"minimum": Infinity}',
        '{"const": 1e999}',
        "nul",
        '{"const": "\\ud800"}',
        '{"minLength": ' + "9" * 5_000 + "}",
    ],
)
def test_a_schema_that_is_no_schema_is_refused(text):  # fmt: skip
    with pytest.raises((InputError, UnsupportedError)):
        Grammar.json_schema(text)


def test_what_llguidance_would_let_through_is_closed(allows):
    assert allows({"x-guidance": {"lenient": True}, "type": "null"}, "null", "1") == [True, False]
    assert allows({"type": "object", "minProperties": 1}, "{}", '{"a": 1}') == [False, True]
    with pytest.raises(UnsupportedError, match="minProperties"):
        allows({"type": "object", "minProperties": 2})  # a key written twice would count as two
    assert allows({"format": "hostname"}, '"a.b"', json.dumps(".".join(["a" * 60] * 5))) == [True, False]


def test_compact_json_has_no_white_space_and_more_of_it_is_certain(vocabulary):
    schema = {"type": "object", "properties": {"name": {"type": "null"}}, "required": ["name"]}
    matcher = Grammar.json_schema(schema, compact=True).compile(vocabulary).start()
    assert b"".join(vocabulary.tokens[id] for id in matcher.forced()).startswith(b'{"name":nul')
    assert not accepts(matcher, TOKENIZER.encode('{"name": null}'))
    assert not Grammar.json_schema(schema).compile(vocabulary).start().forced()


def test_an_element_that_cannot_be_written_may_still_be_there(allows):
    """`contains` of a number with a fraction: its opposite allows no number at all, and never all of them."""
    schema = {"contains": {"type": "number", "not": {"type": "integer"}}, "minContains": 0, "maxContains": 0}
    assert allows(schema, "[]", "[1.5]") == [True, False]


def test_older_forms_are_understood(allows):
    tuples = {"items": [{"type": "null"}], "additionalItems": {"type": "boolean"}}
    assert allows(tuples, "[null, true]", "[null, null]", "[]") == [True, False, True]
    needs = {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}
    assert allows(needs, '{"b": 1, "a": 1}', '{"a": 1}', '{"c": 1}', "3") == [True, False, False, True]


@pytest.mark.parametrize(
    "pattern, matching, others",
    [
        (r"^\d+$", ["1", "20"], ["", "a", "٣"]),
        (r"^\w\W$", ["a-", "_ "], ["aa", "é-"]),
        (r"^\s\S$", [" a", "\ta", "﻿a"], ["aa", "  "]),
        (r"^.$", ["a", "é"], ["\n", "\r", "\u2028", "ab"]),
        (r"^[[a]$", ["[", "a"], ["b", "]"]),
        (r"^[a&&b]$", ["a", "&", "b"], ["c"]),
        (r"^[\d\-x]+$", ["1-x"], ["y"]),
        (r"^[^\s\d]$", ["a"], ["1", " "]),
        (r"^\u0041\x42\cI\u{43}\ud83d\ude00$", ["AB\tC😀"], ["AB"]),
        (r"^(?<year>a|b){2}?$", ["ab"], ["a"]),
        (r"^a{,3}\/\-#$", ["a{,3}/-#"], ["aa/-#"]),
        (r"^[^]$", ["\n", "a"], [""]),
        (r"^[a-c~]*?$", ["", "ab~"], ["d"]),
        (r"\p{Lu}", ["aB"], ["ab"]),
    ],
)
def test_patterns_mean_what_javascript_means(allows, pattern, matching, others):
    schema = {"type": "string", "pattern": pattern}
    quote = [json.dumps(text, ensure_ascii=False) for text in matching + others]
    assert allows(schema, *quote) == [True] * len(matching) + [False] * len(others)


@pytest.mark.parametrize("pattern", [r"\b", r"(?!a)", r"(a)\1", r"\k<a>", "(?i)a", r"\ud800", "[]", r"\u{110000}"])
def test_patterns_without_a_counterpart_are_refused(pattern):
    with pytest.raises((InputError, UnsupportedError), match="pattern"):
        translate(pattern, "here")


def nested(keyword: str, depth: int) -> dict:
    schema: dict = {}
    for _ in range(depth):
        schema = {keyword: [schema] if keyword.endswith("Of") else schema}
    return schema


def doubling(depth: int) -> dict:
    twice = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {**twice, f"d{depth}": {"type": "null"}}


BOMBS = {
    "deep": nested("items", 65),
    "deeper": nested("items", 400),
    "nots": nested("not", 60),
    "anyOfs": nested("anyOf", 30),
    "text": '{"items":' * 20_000 + "{}" + "}" * 20_000,
    "long": json.dumps({"title": "x" * 300_000}),
    "properties over": {"properties": {f"p{i}": {} for i in range(2_001)}},
    "properties": {"properties": {f"p{i}": {"type": "string"} for i in range(1_000)}},
    "values over": {"enum": list(range(10_001))},
    "values": {"enum": [f"value number {i}" for i in range(9_000)]},
    "long text": {"const": "x" * 100_000},
    "repetition": {"pattern": "a{1,1000000}"},
    "repetitions": {"pattern": "((a{1,2000}b){1,2000}c){1,2000}"},
    "slow elsewhere": {"pattern": "(a+)+b"},
    "groups": {"pattern": "(" * 60_000 + "a" + ")" * 60_000},
    "loop": {"pattern": "([x]*)*"},
    "patterns": {"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(8)]},
    "letters": {"pattern": r"^(\p{L}|\p{N}|\p{Lu}){1,500}$"},
    "self": {"$ref": "#"},
    "cycle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "chain": {"$ref": "#/$defs/a0", "$defs": {f"a{i}": {"$ref": f"#/$defs/a{(i + 1) % 3_000}"} for i in range(3_000)}},
    "references": {"anyOf": [{"$ref": "#/$defs/a"}] * 5_000, "$defs": {"a": {"type": "null"}}},
    "doubling": {"$ref": "#/$defs/d0", "$defs": doubling(60)},
    "doubling opposite": {"not": {"$ref": "#/$defs/d0"}, "$defs": doubling(60)},
    "2^20 cases": {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)]},
    "2^30 cases": {"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(30)}},
    "conditions": {"allOf": [{"if": {"required": [f"a{i}"]}, "then": {"required": [f"b{i}"]}} for i in range(16)]},
    "many oneOf": {"oneOf": [{"minimum": i} for i in range(200)]},
    "unevaluated": {"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(3)]} for i in range(9)],
                    "unevaluatedProperties": False},
    "items": {"minItems": 2**30},
    "length": {"type": "string", "minLength": 2**30},
    "multiples": {"type": "integer", "multipleOf": 49_999},
    "tuples": {"prefixItems": [{"type": "null"}] * 3_000},
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_schema_bombs_are_refused_or_compile_within_two_seconds(name, vocabulary):
    start = time.process_time()
    try:
        matcher = Grammar.json_schema(BOMBS[name]).compile(vocabulary).start()
        for _ in range(16):
            ids = np.flatnonzero(np.isfinite(matcher.apply(np.zeros(vocabulary.size, np.float32))))
            if matcher.stopped:
                break
            matcher.advance(int(ids[0]))
    except WeftError:
        pass
    assert time.process_time() - start < 2
