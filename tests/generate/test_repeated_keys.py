"""No object of a generated JSON text has a key twice, whichever tokens spell it."""

import json
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import EOS, PAD, ByteTokenizer

from weft.generate.grammar import Grammar, Matcher, Vocabulary
from weft.generate.grammar.keys import Keys, KeyTokens

LONGER = [b'a"', b'"a"', b' "a":', b'{"', b'":', b'1,"a":', b'","', b'aa', b'a":1,"', b'{"a":1,"a"']  # fmt: skip
LIKELY = b'a"{}:,1[]'


class KeyTokenizer(ByteTokenizer):
    """Bytes, and tokens that hold parts of keys, whole keys, and more than one."""

    special_ids = frozenset((256 + len(LONGER), 257 + len(LONGER)))

    def token_bytes(self) -> list[bytes]:
        return [*(bytes([byte]) for byte in range(256)), *LONGER, b"<eos>", b"<pad>"]

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return list(text.encode())


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    assert EOS != PAD
    return Vocabulary(KeyTokenizer(), 258 + len(LONGER), [256 + len(LONGER)])  # type: ignore[arg-type]


def written(matcher: Matcher, rng: np.random.Generator, most: int) -> str | None:
    """A text of few different characters; None if it has no end after `most` tokens."""
    tokens = matcher.vocabulary.tokens
    likely = np.array([4.0 if token and set(token) <= set(LIKELY) else 0.0 for token in tokens], np.float32)
    likely[matcher.vocabulary.eos_ids[0]] = 5
    text = b""
    for _ in range(most):
        logits = matcher.apply(likely + rng.gumbel(size=len(tokens)).astype(np.float32))
        token = int(logits.argmax())
        if token in matcher.vocabulary.eos_ids:
            return text.decode(errors="replace")
        assert matcher.allowed([token]) == 1
        matcher.advance(token)
        text += tokens[token]
    return None


def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": {"const": 1}},
        {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 1}},
        {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"const": 1}}},
        {"type": "array", "items": {"type": "object", "additionalProperties": {"const": 1}}, "maxItems": 3},
    ],
)
def test_keys_do_not_repeat(vocabulary: Vocabulary, schema: dict[str, Any]) -> None:
    compiled = Grammar.json_schema(schema, compact=True).compile(vocabulary)
    rng, sizes = np.random.default_rng(3), []
    for _ in range(60):
        text = written(compiled.start(), rng, 60)
        if text is not None:
            found = json.loads(text, object_pairs_hook=no_repeats)
            sizes.append(len(found))
    assert len(sizes) > 20 and max(sizes) >= 2


def test_a_draft_that_repeats_a_key_is_cut_and_a_rollback_forgets_keys(vocabulary: Vocabulary) -> None:
    grammar = Grammar.json_schema({"type": "object", "additionalProperties": {"const": 1}}, compact=True)
    matcher = grammar.compile(vocabulary).start()
    first, again = list(b'{"a":1,"'), list(b'a":1}')
    assert matcher.allowed([*first, *again]) == len(first) + 1  # up to the quote that completes the key
    assert matcher.allowed([*first, *b'ab":1}']) == len(first) + 6
    for token in first:
        matcher.advance(token)
    other = matcher.fork()
    assert matcher.allowed(list(b'a"')) == other.allowed(list(b'a"')) == 1
    matcher.rollback(len(first) - 1)
    assert matcher.allowed(list(b'"a":1}')) == 6


def test_values_and_other_objects_do_not_count() -> None:
    keys = Keys()
    keys.add(rb'{"a":"a","b":{"a":["a","a"],"b\"":1},"c":[{"a":1},{"a":1}]')
    assert not keys.repeated
    keys.add(rb',"a"')
    assert keys.repeated
    one = Keys()
    one.add(rb'{"b\"":1,"b\""')
    assert one.repeated


def test_the_tokens_that_would_repeat_a_key_are_found_wherever_it_begins() -> None:
    tokens = [b'"', b'a"', b'"a"', b' "a":', b'b"', b'1,"a":', b'x', b'ab"']  # fmt: skip
    known, keys = KeyTokens(tokens), Keys()
    keys.add(b'{"a":1,')
    assert {2, 3} <= set(keys.refused(known)) <= {2, 3, 5}  # no number can come here
    keys.add(b'"')
    assert set(keys.refused(known)) - {5} == {1}
    keys.add(b"a")
    assert set(keys.refused(known)) - {5} == {0, 2}
    keys.add(b'b":')
    assert set(keys.refused(known)) == {5}
