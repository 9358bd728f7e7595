"""A grammar in Lark that is put together rule by rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weft.generate.grammar.spec import CALL_JSON, Grammar, grammar_of_answer, grammar_of_calls
from weft.generate.schema.rewrite import rewritten

FREE = "/(?s:.*)/"


def quoted(text: str) -> str:
    """A literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


class Rules:
    """The rules of a grammar so far. With `strict`, what cannot be enforced is an error; else it stays free, and
    `is_loose` becomes true. After each of `marks` a JSON value follows, whose keys must not repeat."""

    def __init__(self, tokens: Mapping[str, int], *, strict: bool) -> None:
        """`tokens` are the marks that are special tokens of the model, with their ids."""
        self.strict = strict
        self.is_loose = False
        self.marks: list[str] = []
        self._lines: list[str] = []
        self._known: dict[str, str] = {}
        self._tokens = tokens

    def rule(self, right: str, *, lazy: bool = False) -> str:
        """The name of a rule with this right side."""
        return self._named("r", right, "[lazy]" if lazy else "")

    def terminal(self, right: str) -> str:
        """The name of a terminal: an expression, or several joined by `&`, `|` and `~`."""
        return self._named("T", right, "")

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """The name of a rule for JSON that satisfies a schema."""
        return self.rule(f"%json {json.dumps({**rewritten(schema), 'x-guidance': CALL_JSON}, ensure_ascii=False)}")

    def is_token(self, mark: str) -> bool:
        """Whether a mark is a special token, which matches no text."""
        return mark in self._tokens

    def mark(self, mark: str) -> str:
        """A mark: a special token, or else text."""
        return f"<[{self._tokens[mark]}]>" if mark in self._tokens else quoted(mark)

    def after_text(self, mark: str) -> str:
        """Any text that ends with the first `mark`."""
        text = self.terminal(FREE)
        return f"{text} {self.mark(mark)}" if self.is_token(mark) else self.rule(f"{text} {quoted(mark)}", lazy=True)

    def grammar(self, start: str) -> Grammar:
        """The grammar whose texts the right side `start` matches."""
        return grammar_of_calls("\n".join([f"start: {start}", *self._lines]), tuple(dict.fromkeys(self.marks)))

    def grammar_with(self, start: str, answer: Grammar) -> Grammar:
        """As `grammar`; in `start`, `@answer` stands for texts of another grammar."""
        marks = tuple(dict.fromkeys(self.marks))
        return grammar_of_answer("\n".join([f"start: {start}", *self._lines]), answer, marks)

    def _named(self, letter: str, right: str, options: str) -> str:
        key = f"{options}{right}"
        if key not in self._known:
            self._known[key] = f"{letter}{len(self._known)}"
            self._lines.append(f"{self._known[key]}{options}: {right}")
        return self._known[key]
