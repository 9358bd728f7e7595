"""What a model of random weights writes at a high temperature satisfies its schema: all of it, by another validator."""

import json
from pathlib import Path

import pytest
from random_model import byte_keys, vocabulary_keys, write_random_model

import weft
from weft.generate import Grammar

# None of them has texts, lists or objects without an end, which random weights would never find.
SCHEMAS = [
    json.loads(line) for line in Path(__file__).with_name("bounded_schemas.jsonl").read_text("utf-8").splitlines()
]


def valid_answers(model: weft.Model, count: int) -> int:
    """Generate `count` answers at temperature 1.5, the schemas in turn; how many tokens they have together."""
    jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed (test extra)")
    tokens = 0
    for first, schema in enumerate(SCHEMAS[:count]):
        many = len(range(first, count, len(SCHEMAS)))
        prompt = "An answer: " if first % 2 else "{"
        options = {"temperature": 1.5, "seed": 1_000 * first, "n": many, "max_tokens": 2_000}
        found = model.generate(prompt, grammar=Grammar.json_schema(schema), **options)
        for answer in found if isinstance(found, list) else [found]:
            assert answer.finish_reason == "stop", (schema, answer.text[:500])
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
            tokens += len(answer.tokens)
    return tokens


def test_every_answer_in_bytes_satisfies_its_schema(tmp_path: Path) -> None:
    model = weft.load(str(write_random_model(tmp_path / "m.gguf", byte_keys())))
    assert valid_answers(model, 2 * len(SCHEMAS)) > 500


@pytest.mark.shared
def test_every_answer_in_a_published_vocabulary_satisfies_its_schema(shared: Path, tmp_path: Path) -> None:
    path = shared / "vocabs" / "ggml-vocab-gpt-2.gguf"
    if not path.is_file():
        pytest.skip("GPT-2's vocabulary is not in the extra data")
    model = weft.load(str(write_random_model(tmp_path / "m.gguf", vocabulary_keys(path))))
    assert valid_answers(model, len(SCHEMAS)) > 100
