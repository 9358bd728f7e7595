"""What a grammar is made from: a JSON Schema, a regular expression, Lark, GBNF, or a list of choices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.generate.grammar.limits import LIMITS, check_expressions, check_lark, check_rules, in_time
from weft.generate.schema.place import MAX_BYTES, MAX_LITERAL

if TYPE_CHECKING:
    from weft.generate.grammar.matcher import Compiled
    from weft.generate.grammar.vocabulary import Vocabulary

MAX_CHOICES = 10_000

_LONG = re.compile(rf'"(?:[^"\\\n]|\\.){{{MAX_LITERAL},}}')  # a text in Lark that is longer than others may be

# JSON as weft generates it. Without the escape \u no key can be written in a second way, which would get it past the
# rules for keys. The length of numbers and of white space is bounded where tokens are chosen (`matcher.py`).
_JSON: Any = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"[\x20\x0A\x09]{1,64}",
    "json_allowed_escapes": 'nrbtf\\"',
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}


@frozen
class Grammar:
    """What a generated text must match in full. `text` is what llguidance compiles; make one with the methods below."""

    kind: str
    text: str
    is_json: bool = False

    @classmethod
    def json_schema(cls, schema: dict[str, Any] | str | bool, *, compact: bool = False) -> Grammar:
        """JSON that satisfies a schema, draft 2020-12 (or older). What cannot be enforced is refused by name and place.

        Properties come in the schema's order, and `format` is enforced. `compact` allows no white space: more of the
        text is certain before a model writes it.
        """
        from weft.generate.schema.rewrite import rewritten

        return in_time("json schema", lambda: cls._of_schema("json schema", rewritten(schema), compact))

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return in_time("json object", lambda: cls._of_schema("json object", {"type": "object"}))

    @classmethod
    def _of_schema(cls, kind: str, schema: dict[str, Any], compact: bool = False) -> Grammar:
        import llguidance

        check_expressions(map(len, _patterns(schema)), kind)
        options: Any = {**_JSON, "whitespace_flexible": False, "whitespace_pattern": None} if compact else _JSON
        text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema, ensure_ascii=False), overrides=options)
        return cls(kind, text, is_json=True)._checked()

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Texts that a regular expression matches in full: Rust's syntax, without look-around and back references."""
        import llguidance

        from weft.generate.schema.pattern import check_size

        _check_text("regex", pattern)
        check_size(pattern, "regex")
        check_expressions([len(pattern)], "regex")
        return in_time("regex", cls("regex", llguidance.LLMatcher.grammar_from_regex(pattern))._checked)

    @classmethod
    def choices(cls, choices: Sequence[str]) -> Grammar:
        """One of some texts."""
        if (
            not isinstance(choices, Sequence)
            or isinstance(choices, str)
            or not choices
            or not all(isinstance(text, str) and text for text in choices)
        ):
            raise InputError("choices", "give a list of texts, none of them empty")
        if len(choices) > MAX_CHOICES:
            raise InputError("choices", f"too many: {len(choices)}; {MAX_CHOICES} is the most")
        import llguidance

        _check_text("choices", "".join(choices))
        if max(map(len, choices)) > MAX_LITERAL:
            raise InputError("choices", f"one is too long: over {MAX_LITERAL} characters")
        pattern = "|".join(re.sub(r"[\\.+*?()|\[\]{}^$#&~\-]", r"\\\g<0>", text) for text in dict.fromkeys(choices))
        return in_time("choices", cls("choices", llguidance.LLMatcher.grammar_from_regex(pattern))._checked)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Texts of a grammar in llguidance's variant of Lark's syntax; `start` is its first rule."""
        from weft.generate.schema.pattern import check_size

        _check_text("lark", text)
        if re.search(r"%json\b", text):
            raise UnsupportedError("lark", "%json inside a grammar is not supported; use Grammar.json_schema")
        check_size(text, "lark")
        check_rules(sum(":" in line for line in text.splitlines()), "lark")
        if _LONG.search(text):
            raise InputError("lark", f"a text is too long: over {MAX_LITERAL} characters")
        return cls._of_lark("lark", text)

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """Texts of a grammar in llama.cpp's notation; `root` is its first rule."""
        from weft.generate.grammar.gbnf import to_lark

        _check_text("gbnf", text)
        return cls._of_lark("gbnf", to_lark(text))

    @classmethod
    def _of_lark(cls, kind: str, text: str) -> Grammar:
        import llguidance

        check_lark(text, kind)
        return in_time(kind, cls(kind, llguidance.LLMatcher.grammar_from_lark(text))._checked)

    def _checked(self) -> Grammar:
        import llguidance

        from weft.generate.grammar.matcher import refuse

        limits = llguidance.LLParserLimits(**LIMITS)
        is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(self.text, limits=limits)
        if is_error:
            refuse(messages[0], self.kind)
        return self

    def compile(self, vocabulary: Vocabulary) -> Compiled:
        """This grammar for a model's tokens, from the vocabulary's cache where it was compiled before."""
        from weft.generate.grammar.matcher import Compiled

        _ = vocabulary.native  # made once for all grammars, whose time it is not
        return vocabulary.cache.get(self, lambda: in_time(self.kind, lambda: Compiled(self, vocabulary)))


def _patterns(schema: Any) -> Iterator[str]:
    """The regular expressions of a schema, those of property names too."""
    level = [schema]
    while level:
        node = level.pop()
        if isinstance(node, dict):
            yield from (value for key, value in node.items() if key == "pattern" and isinstance(value, str))
            if isinstance(expressions := node.get("patternProperties"), dict):
                yield from expressions
            level += node.values()
        elif isinstance(node, list):
            level += node


def _check_text(kind: str, text: str) -> None:
    if not isinstance(text, str) or not text:
        raise InputError(kind, "give a text that is not empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InputError(kind, f"half a character: {error}") from error
    if size > MAX_BYTES:
        raise InputError(kind, f"too long: over {MAX_BYTES} bytes")
