"""A matcher allows the tokens that keep a text within its grammar, and no others."""

import json
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import EOS, PAD, ByteTokenizer, accepts, byte_vocabulary
from soaking import times

from weft.errors import GrammarError, InputError, UnsupportedError
from weft.generate.grammar import Grammar, Matcher, Vocabulary, limits
from weft.generate.grammar import matcher as matcher_module
from weft.generate.grammar.limits import LIMITS
from weft.generate.grammar.matcher import LONGEST_RUN, Cache, Compiled

TOKENIZER = ByteTokenizer()
SCHEMAS = [json.loads(line) for line in Path(__file__).with_name("schemas.jsonl").read_text().splitlines()]


# Thirty rules, each twice the one after it.
DOUBLING = "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1} a{i + 1}\n" for i in range(30)) + 'a30 ::= "abc"'


@pytest.fixture(scope="module")
def vocabulary():
    return byte_vocabulary()


@pytest.fixture
def matches(vocabulary):
    def check(grammar: Grammar, text: str) -> bool:
        return accepts(grammar.compile(vocabulary).start(), TOKENIZER.encode(text))

    return check


def allowed_ids(matcher: Matcher) -> set[int]:
    logits = matcher.apply(np.zeros(matcher.vocabulary.size, np.float32))
    return set(np.flatnonzero(np.isfinite(logits)).tolist())


def generated(matcher: Matcher, rng: np.random.Generator, limit: int, temperature: float = 1.5) -> bytes | None:
    """A text drawn from random logits under the mask; None where it is longer than `limit` tokens."""
    text = b""
    for _ in range(limit):
        logits = matcher.apply(rng.standard_normal(matcher.vocabulary.size).astype(np.float32) * 3)
        weights = np.exp((logits - logits.max()) / temperature)
        token = int(rng.choice(len(weights), p=weights / weights.sum()))
        if token in matcher.vocabulary.eos_ids:
            return text
        matcher.advance(token)
        text += matcher.vocabulary.tokens[token]
    return None


def test_choices_are_exactly_those_given(matches):
    grammar = Grammar.choices(["a", "ab", "c.*", "[x]", "é\n"])
    assert all(matches(grammar, text) for text in ["a", "ab", "c.*", "[x]", "é\n"])
    assert not any(matches(grammar, text) for text in ["", "b", "cde", "x", "abc", "é"])


def test_a_regular_expression_matches_in_full(matches):
    grammar = Grammar.regex(r"[a-c]{2,3}\d*")
    assert matches(grammar, "ab") and matches(grammar, "abc12")
    assert not matches(grammar, "a") and not matches(grammar, "abd") and not matches(grammar, "abcc")


def test_lark_and_gbnf_say_the_same(matches):
    lark = Grammar.lark('start: item ("," item)*\nitem: /[0-9]+/ | "(" start ")"\n')
    gbnf = Grammar.gbnf('root ::= item ("," item)*\nitem ::= [0-9]+ | "(" root ")"  # a comment\n')
    for text, expected in [
        ("1", True),
        ("1,(2,3),4", True),
        ("((1))", True),
        ("1,", False),
        ("(1", False),
        ("", False),
    ]:
        assert matches(lark, text) == matches(gbnf, text) == expected


@pytest.mark.parametrize(
    "rules, texts, others",
    [
        ('root ::= [a-z]+ "b"', ["ab", "bbb"], ["b", "abc"]),
        ('root ::= "\\"" [^"\\\\\\n]* "\\""', ['""', '"a b"'], ['"a', '"a\\"']),
        ("root ::= .", ["a", "\n", "é"], ["", "ab"]),
        ('root ::= "\\x41\\u00e9" [\\u0061-\\u0063]?', ["Aé", "Aéb"], ["A", "Aéd"]),
        ('root ::= x{2} | x{3,} "!" | x{0,1} "?"\nx ::= "ab"', ["abab", "ababab!", "?", "ab?"], ["ab", "abab?"]),
        ("root ::= (\n  one |\n  two\n)\none ::= \"1\"\ntwo ::=\n  \"2\" |\n  \"3\"", ["1", "2", "3"], ["12"]),
        ('root ::= "a"\n     | "b-c"', ["a", "b-c"], ["b"]),
        ('root ::= [-a] [a-] [\\]\\^]', ["--]", "aa^"], ["ba]"]),
        ('root ::= "" | a-1 a_2\na-1 ::= "x"\na_2 ::= "y"', ["", "xy"], ["x"]),
    ],
)  # fmt: skip
def test_gbnf_means_what_llama_cpp_means(matches, rules, texts, others):
    grammar = Grammar.gbnf(rules)
    assert [text for text in texts if not matches(grammar, text)] == []
    assert [text for text in others if matches(grammar, text)] == []


@pytest.mark.parametrize(
    "rules, message",
    [
        ("a ::= b", "root"),
        ("root ::= nothing", "'nothing'"),
        ('root ::= "a', "line 1"),
        ('root ::= "a"\nroot ::= "b"', "line 2"),
        ("root ::= [z-a]", "goes down"),
        ('root ::= "a"{1,9999}', "2000"),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "nested"),
        ("root ::= <think>", "tokens by name"),
        ('root = "a"', "::="),
        (DOUBLING, "too long"),
    ],
)  # fmt: skip
def test_malformed_gbnf_is_refused(rules, message):
    with pytest.raises((InputError, UnsupportedError), match=message):
        Grammar.gbnf(rules)


def test_any_json_object(matches):
    grammar = Grammar.json_object()
    assert matches(grammar, '{"a": [1, -2.5e3, {"b": null}], "c": "x\\n"}')
    assert not matches(grammar, "[]") and not matches(grammar, '{"a": 01}') and not matches(grammar, "{} ")


def test_a_key_cannot_be_written_in_a_second_way(matches):
    """llguidance would let a model write "a" as "\\u0061", past the schema of the property."""
    grammar = Grammar.json_schema({"properties": {"a": {"type": "integer"}}})
    assert matches(grammar, '{"b": "x"}')
    assert not matches(grammar, '{"\\u0061": "x"}')


def test_special_and_unused_tokens_match_no_text(vocabulary):
    matcher = Grammar.regex("(?s).*").compile(vocabulary).start()
    ids = allowed_ids(matcher)
    assert EOS in ids and PAD not in ids and max(ids) == EOS
    assert not accepts(Grammar.regex("<pad>").compile(vocabulary).start(), [PAD])


def test_the_end_is_allowed_where_the_text_may_end(vocabulary):
    matcher = Grammar.regex("ab?").compile(vocabulary).start()
    assert not matcher.accepting and allowed_ids(matcher) == {ord("a")}
    matcher.advance(ord("a"))
    assert matcher.accepting and not matcher.stopped and allowed_ids(matcher) == {ord("b"), EOS}
    matcher.advance(ord("b"))
    assert matcher.accepting and matcher.stopped and allowed_ids(matcher) == {EOS}


def test_a_token_that_is_not_allowed_is_refused_and_changes_nothing(vocabulary):
    matcher = Grammar.choices(["abc"]).compile(vocabulary).start()
    with pytest.raises(GrammarError):
        matcher.advance(ord("b"))
    matcher.advance(ord("a"))
    assert allowed_ids(matcher) == {ord("b")}


def test_drafts_are_counted_up_to_the_first_wrong_token(vocabulary):
    matcher = Grammar.regex("[a-c]{4}").compile(vocabulary).start()
    assert matcher.allowed([97, 98, 122, 97]) == 2
    assert matcher.allowed([97, 98, 99, 97, 97]) == 4
    assert matcher.allowed([]) == 0 and matcher.allowed([97, 10**9, 97]) == 1 and matcher.allowed([-1]) == 0
    with pytest.raises(GrammarError):
        matcher.advance(10**9)
    assert allowed_ids(matcher) == {97, 98, 99}


def test_forced_text_is_given_as_tokens(vocabulary):
    matcher = Grammar.regex("name=[0-9]!!!").compile(vocabulary).start()
    forced = matcher.forced()
    assert b"".join(vocabulary.tokens[id] for id in forced).startswith(b"name")
    assert matcher.allowed(forced) == len(forced)


def test_rollback_and_fork_keep_the_masks(vocabulary):
    schema = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}}
    matcher = Grammar.json_schema(schema).compile(vocabulary).start()
    ids = TOKENIZER.encode('{"a":   -12.5e+3, "b": "x 123"}')
    masks = []
    for id in ids:
        masks.append(matcher.mask().copy())
        matcher.advance(id)
    other = matcher.fork()
    for back in (1, 3, len(ids) - 4):
        matcher.rollback(back)
    assert (matcher.mask() == masks[0]).all()
    for id, mask in zip(ids, masks):
        assert (matcher.mask() == mask).all()
        matcher.advance(id)
    assert other.accepting and other.stopped


@pytest.mark.parametrize("schema", [{}, {"type": "number"}, {"type": "integer"}, {"type": "object"}])
def test_numbers_and_white_space_end(vocabulary, schema):
    """A model that likes digits or line breaks above all must not write them for ever."""
    for liked in (b"0123456789", b"9.", b"1e", b"-1", b" ", b"\n", b"[", b'{"a":1,'):
        matcher = Grammar.json_schema(schema).compile(vocabulary).start()
        likes = np.array([9.0 if token[:1] and token[0] in liked else 0.0 for token in vocabulary.tokens])
        text = b""
        for _ in range(300):
            logits = matcher.apply((likes + np.arange(vocabulary.size) / 1e4).astype(np.float32))
            token = int(np.argmax(logits))
            if token == EOS:
                break
            matcher.advance(token)
            text += vocabulary.tokens[token]
        for run in json_runs(text.decode()):
            assert run <= LONGEST_RUN + 4


def json_runs(text: str) -> list[int]:
    """Lengths of numbers and white space outside quotes."""
    outside = re.sub(r'"(?:[^"\\]|\\.)*("|$)', '""', text)
    return [len(found) for found in re.findall(r"[0-9.eE+-]+|[ \n\r\t]+", outside)]


@pytest.mark.parametrize("size", [PAD + 3, 288, 320])
def test_numbers_end_in_a_vocabulary_of_any_size(size):
    """llguidance's mask has a word more where 32 divides the size, as it does for most models."""
    matcher = Grammar.json_schema({"type": "integer"}).compile(byte_vocabulary(size)).start()
    for _ in range(LONGEST_RUN):
        matcher.advance(ord("1"))
    assert matcher.mask().shape == (-(-size // 32),)
    assert allowed_ids(matcher) == {EOS}


def test_drafts_keep_to_the_length_of_numbers(vocabulary):
    matcher = Grammar.json_schema({"type": "integer"}).compile(vocabulary).start()
    digits = [ord("1")] * 200
    count = matcher.allowed(digits)
    assert count == LONGEST_RUN
    for token in digits[:count]:
        matcher.advance(token)
    assert allowed_ids(matcher) == {EOS}
    matcher.rollback(1)
    assert ord("1") in allowed_ids(matcher)


def test_too_much_work_in_a_step_ends_the_request(vocabulary, monkeypatch):
    from weft.generate.grammar import matcher as module

    monkeypatch.setitem(module.LIMITS, "step_lexer_fuel", 50)
    monkeypatch.setitem(module.LIMITS, "step_max_items", 8)
    pattern = "|".join(f"(?:{a}.*{b}.{{20}}){c}" for a in "abc" for b in "def" for c in "ghi")
    with pytest.raises((GrammarError, InputError, UnsupportedError)):
        take(Grammar.regex(pattern), vocabulary, b"abcdefabcdefabcdef" * 10)


def take(grammar: Grammar, vocabulary: Vocabulary, tokens: bytes) -> None:
    follow(Compiled(grammar, vocabulary), tokens)


def follow(compiled: Compiled, tokens: bytes) -> None:
    matcher = compiled.start()
    for token in tokens:
        matcher.mask()
        matcher.advance(token)


def test_a_long_text_needs_no_masks_and_leaves_its_grammar_to_others(vocabulary):
    grammar = Grammar.json_schema({"type": "string", "maxLength": 9_000})
    ids = TOKENIZER.encode(json.dumps('\n"é' * 3_000, ensure_ascii=False))
    compiled = grammar.compile(vocabulary)
    assert compiled.start().allowed(ids) == len(ids)
    matcher = compiled.start()
    for id in ids:
        matcher.advance(id)
    assert matcher.accepting
    assert compiled.start().allowed([*ids[:-1], *TOKENIZER.encode('x"')]) == len(ids) - 1
    assert ord('"') in allowed_ids(compiled.start())


@pytest.mark.parametrize("length", [10, 1_000])
def test_a_text_and_its_end_are_allowed_together_however_long_it_is(vocabulary, length):
    ended = Grammar.json_schema({"type": "string", "maxLength": 1_000}), TOKENIZER.encode(json.dumps("a" * length))
    endless = Grammar.regex("a+"), TOKENIZER.encode("a" * length)
    for grammar, ids in (ended, endless):
        compiled = grammar.compile(vocabulary)
        for end, count in (([EOS], 1), ([EOS, EOS], 1), ([EOS, ord("a")], 1), ([ord("b"), EOS], 0), ([PAD], 0)):
            assert compiled.start().allowed([*ids, *end]) == len(ids) + count


def test_a_token_may_be_longer_than_what_is_appended_without_a_mask():
    class Long(ByteTokenizer):
        def token_bytes(self) -> list[bytes]:
            return [*super().token_bytes(), b" " * 600]

    vocabulary = Vocabulary(Long(), PAD + 2, [EOS])
    compiled = Grammar.json_schema({"type": "string", "maxLength": 1_300}).compile(vocabulary)
    quote, long = ord('"'), PAD + 1
    assert compiled.start().allowed([quote, long, long, quote]) == 4
    assert compiled.start().allowed([quote, long, long, long]) == 3
    assert accepts(compiled.start(), [quote, long, long, quote])


def test_a_grammar_whose_text_reached_a_limit_is_built_anew_for_the_next(vocabulary, monkeypatch):
    monkeypatch.setitem(LIMITS, "max_lexer_states", 500)
    compiled = Compiled(Grammar.json_schema({"type": "string", "maxLength": 100}), vocabulary)
    for _ in range(2):
        with pytest.raises(GrammarError, match="the parser failed"):
            follow(compiled, json.dumps("a" * 90).encode())
        assert accepts(compiled.start(), TOKENIZER.encode('"abc"'))


def test_a_grammar_that_is_built_anew_has_the_limits_of_the_first_time(vocabulary, monkeypatch):
    compiled = Compiled(Grammar.choices(["a"]), vocabulary)
    compiled.failed()
    stacks = []
    build = matcher_module._built

    def slow(grammar, vocabulary):
        stacks.append(threading.current_thread().name)
        time.sleep(0.3)
        return build(grammar, vocabulary)

    monkeypatch.setattr(matcher_module, "_built", slow)
    monkeypatch.setattr(limits, "COMPILE_SECONDS", 0.1)
    with pytest.raises(UnsupportedError, match="takes longer"):
        compiled.start()
    monkeypatch.setattr(limits, "COMPILE_SECONDS", 60)
    assert accepts(compiled.start(), TOKENIZER.encode("a"))
    assert set(stacks) == {"weft-grammar"}  # whose stack has room for any grammar


def test_a_grammar_may_fail_while_another_thread_starts(vocabulary):
    class Failing(Compiled):
        """Fails as soon as somebody has looked."""

        @property
        def _matcher(self):
            found, self.found = self.found, None
            return found

        @_matcher.setter
        def _matcher(self, found):
            self.found = found

    compiled = Failing(Grammar.choices(["a"]), vocabulary)
    for _ in range(2):
        assert accepts(compiled.start(), TOKENIZER.encode("a"))


@pytest.mark.parametrize("bounds", [(0, 0), (0, 1), (2, 5), (3, 3), (0, 300)])
def test_lengths_are_those_of_characters_however_they_are_written(vocabulary, bounds):
    least, most = bounds
    compiled = Grammar.json_schema({"type": "string", "minLength": least, "maxLength": most}).compile(vocabulary)
    for character in ["a", "é", "中", "😀", "\n", '"', "\\", "\u2028"]:
        for count in {0, 1, least - 1, least, most, most + 1} - {-1}:
            ids = TOKENIZER.encode(json.dumps(character * count, ensure_ascii=False))
            assert accepts(compiled.start(), ids) == (least <= count <= most), (character, count)
    assert not accepts(compiled.start(), TOKENIZER.encode('"\\u00e9"'))  # a second way to write it


def test_logits_of_another_width_are_refused(vocabulary):
    with pytest.raises(InputError, match="logits"):
        Grammar.choices(["a"]).compile(vocabulary).start().apply(np.zeros(7, np.float32))


def test_compiled_grammars_are_kept_and_the_oldest_dropped():
    vocabulary = byte_vocabulary()
    vocabulary.cache = Cache(limit_bytes=4 << 20)
    first = Grammar.choices(["a"])
    assert first.compile(vocabulary) is first.compile(vocabulary)
    for number in range(50):
        Grammar.choices([f"text {number}"]).compile(vocabulary)
    assert 1 <= len(vocabulary.cache) < 10 and vocabulary.cache.size_bytes <= 4 << 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grammar.regex(""),
        lambda: Grammar.regex("a" * (257 << 10)),
        lambda: Grammar.regex("(" * 101 + "a" + ")" * 101),
        lambda: Grammar.regex("a{1,2001}"),
        lambda: Grammar.regex("(?=a)b"),
        lambda: Grammar.regex("("),
        lambda: Grammar.choices([]),
        lambda: Grammar.choices("abc"),  # type: ignore[arg-type]
        lambda: Grammar.choices([""]),
        lambda: Grammar.choices([*map(str, range(10_001))]),  # type: ignore[arg-type]
        lambda: Grammar.lark("start: nothing"),
        lambda: Grammar.lark("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(9_000)) + 'r9000: "a"\n'),
        lambda: Grammar.gbnf(
            "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(9_000)) + "r9000 ::= root\n"
        ),
        lambda: Grammar.lark("start: %json {}"),
        lambda: Grammar.lark(""),
    ],
)
def test_malformed_and_oversized_grammars_are_refused(make):
    with pytest.raises((InputError, UnsupportedError)):
        make()


@pytest.mark.soak
def test_texts_drawn_at_a_high_temperature_satisfy_their_schemas(vocabulary):
    jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed (test extra)")
    count, finished, rng = times(500, 100), 0, np.random.default_rng(5)
    for number in range(count):
        schema = SCHEMAS[number % len(SCHEMAS)]
        text = generated(Grammar.json_schema(schema).compile(vocabulary).start(), rng, 3_000)
        if text is not None:
            finished += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    print(f"{finished} of {count} texts ended within 3,000 tokens, and all satisfy their schemas")
    assert finished >= 0.8 * count
