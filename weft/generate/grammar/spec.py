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

_LONG = re.compile(rf'"(?:[^"\\\n]|\\.){{{MAX_LITERAL},}}')  # a string in Lark that is over the limit

# JSON as weft generates it. The escape \u is not allowed: with it a key could be spelled differently and evade the
# rules for keys. `matcher.py` bounds the length of numbers and of white space.
_JSON: Any = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"[\x20\x0A\x09]{1,64}",
    "json_allowed_escapes": 'nrbtf\\"',
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}

# JSON inside a tool call: on one line, with or without a space after commas and colons, as models write it.
CALL_JSON: Any = {
    **_JSON,
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ?",
    "key_separator": ": ?",
}


@frozen
class Grammar:
    """What a generated text must match in full; make one with the class methods. `text` is what llguidance compiles.

    `is_json` says that the text is JSON; `json_after` are marks in it after which JSON follows.
    """

    kind: str
    text: str
    is_json: bool = False
    json_after: tuple[str, ...] = ()

    @classmethod
    def json_schema(cls, schema: dict[str, Any] | str | bool, *, compact: bool = False) -> Grammar:
        """JSON that satisfies a schema, draft 2020-12 (or older). A keyword that cannot be enforced is refused.

        Properties come in the schema's order, and `format` is enforced. `compact` allows no white space, so more of
        the text is determined in advance and can be drafted.
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
        """Exactly one of these strings."""
        if (
            not isinstance(choices, Sequence)
            or isinstance(choices, str)
            or not choices
            or not all(isinstance(text, str) and text for text in choices)
        ):
            raise InputError("grammar", "must be a list of strings that are not empty", field="choices", given=choices)
        if len(choices) > MAX_CHOICES:
            limit = f"has {len(choices)} strings; at most {MAX_CHOICES} are allowed"
            raise InputError("grammar", limit, field="choices")
        import llguidance

        _check_text("choices", "".join(choices))
        if max(map(len, choices)) > MAX_LITERAL:
            limit = f"has a string of {max(map(len, choices))} characters; at most {MAX_LITERAL} are allowed"
            raise InputError("grammar", limit, field="choices")
        pattern = "|".join(re.sub(r"[\\.+*?()|\[\]{}^$#&~\-]", r"\\\g<0>", text) for text in dict.fromkeys(choices))
        return in_time("choices", cls("choices", llguidance.LLMatcher.grammar_from_regex(pattern))._checked)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Texts of a grammar in llguidance's variant of Lark's syntax; matching begins at the rule `start`."""
        from weft.generate.schema.pattern import check_size

        _check_text("lark", text)
        if re.search(r"%json\b", text):
            raise UnsupportedError(
                "lark", "%json inside a grammar is not supported", advice="use the JSON Schema without the grammar"
            )
        check_size(text, "lark")
        check_rules(sum(":" in line for line in text.splitlines()), "lark")
        if _LONG.search(text):
            raise InputError("lark", f"the grammar has a string of more than {MAX_LITERAL} characters")
        return cls._of_lark("lark", text)

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """Texts of a grammar in llama.cpp's notation; matching begins at the rule `root`."""
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
        """This grammar compiled for a model's tokens; the vocabulary caches the result."""
        from weft.generate.grammar.matcher import Compiled

        _ = vocabulary.native  # built once, outside the time limit of the grammar
        return vocabulary.cache.get(self, lambda: in_time(self.kind, lambda: Compiled(self, vocabulary)))


def grammar_of_calls(text: str, json_after: tuple[str, ...]) -> Grammar:
    """A grammar of tool calls from Lark in which `%json` stands for schemas that are already rewritten."""
    import llguidance

    check_rules(text.count("\n") // 8, "tools")  # most rules are a parameter or a literal, which nest no deeper
    made = Grammar("tools", llguidance.LLMatcher.grammar_from_lark(text), json_after=json_after)
    return in_time("tools", made._checked)


def grammar_of_answer(text: str, answer: Grammar, json_after: tuple[str, ...]) -> Grammar:
    """The grammar in Lark, in which `@answer` stands for texts of `answer`; JSON follows one of `json_after`."""
    stored = answer.text.lstrip().startswith("{")  # else it is Lark too
    first, *rest = json.loads(answer.text)["grammars"] if stored else [{"lark_grammar": answer.text}]
    whole = {"grammars": [{"lark_grammar": text}, {**first, "name": "answer"}, *rest]}
    made = Grammar(answer.kind, json.dumps(whole), json_after=json_after if answer.is_json else ())
    return in_time(answer.kind, made._checked)


def _patterns(schema: Any) -> Iterator[str]:
    """The regular expressions in a schema, including those for property names."""
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
        raise InputError(kind, "the grammar must be a string that is not empty", given=text)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InputError(kind, f"the grammar is not valid Unicode: {error}") from error
    if size > MAX_BYTES:
        raise InputError(kind, f"the grammar has {size} bytes; at most {MAX_BYTES} are allowed")
