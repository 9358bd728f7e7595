"""Translates GBNF, llama.cpp's notation for grammars, to Lark.

    root ::= "yes" | "no" [.!]{0,2}      # a rule; matching begins at `root`

Rules that are not recursive, directly or through others, become regular expressions, which match exactly. Where a
recursive rule puts two such expressions side by side, the first one matches as much text as it can.
"""

from __future__ import annotations

import re

from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.generate.grammar.limits import MAX_EXPRESSION, check_rules
from weft.generate.schema.pattern import MAX_NESTING, MAX_REPEAT
from weft.generate.schema.place import MAX_LITERAL

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:\s|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_REPEAT = re.compile(r"[*+?]|\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_HEX = {"x": 2, "u": 4, "U": 8}
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^", "/": "/"}


@frozen
class Node:
    """Part of a rule: `kind` is text, set, rule, sequence, choice or repeat."""

    kind: str
    value: str = ""  # text and set: an expression; rule: its name; repeat: the suffix
    parts: tuple[Node, ...] = ()


def to_lark(text: str) -> str:
    """The same grammar in Lark; InputError with the line number if it is malformed."""
    rules = _Reader(text).rules()
    check_rules(len(rules), "gbnf")
    if "root" not in rules:
        raise InputError("gbnf", "the grammar has no rule called root")
    for name, rule in rules.items():
        for reference in _references(rule):
            if reference not in rules:
                raise InputError("gbnf", f"rule {name!r} uses {reference!r}, which is not defined")
    return _Writer(rules).write()


def _references(node: Node) -> set[str]:
    own = {node.value} if node.kind == "rule" else set()
    return own.union(*(_references(part) for part in node.parts))


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self.skip(_SPACE_AND_LINES)
        while self.position < len(self.text):
            name = self.take(_NAME, "a rule's name")
            self.skip(_SPACE)
            if not self.text.startswith("::=", self.position):
                raise self.wrong("expected ::=")
            self.position += 3
            self.skip(_SPACE_AND_LINES)
            if name in found:
                raise self.wrong(f"rule {name!r} is defined twice")
            found[name] = self.choice()
            self.skip(_SPACE)
            if self.position < len(self.text) and self.text[self.position] not in "\r\n":
                raise self.wrong("expected the end of the line")
            self.skip(_SPACE_AND_LINES)
        return found

    def wrong(self, what: str) -> InputError:
        line = self.text.count("\n", 0, self.position) + 1
        return InputError("gbnf", f"line {line}: {what}, near {self.text[self.position : self.position + 20]!r}")

    def skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self.text, self.position)
        self.position = found.end() if found else self.position

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self.text, self.position)
        if not found:
            raise self.wrong(f"expected {what}")
        self.position = found.end()
        return found[0]

    def choice(self) -> Node:
        space = _SPACE_AND_LINES if self.depth else _SPACE
        options = [self.sequence(space)]
        while self.text.startswith("|", self.position) or self.continued():
            self.position += 1
            self.skip(_SPACE_AND_LINES)
            options.append(self.sequence(space))
        return options[0] if len(options) == 1 else Node("choice", parts=tuple(options))

    def continued(self) -> bool:
        """Whether the next line begins with another option; moves there if so."""
        found = _SPACE_AND_LINES.match(self.text, self.position)
        if found and self.text.startswith("|", found.end()):
            self.position = found.end()
            return True
        return False

    def sequence(self, space: re.Pattern[str]) -> Node:
        parts: list[Node] = []
        while self.position < len(self.text) and self.text[self.position] not in "|)\r\n":
            part = self.atom()
            while found := _REPEAT.match(self.text, self.position):
                part = self.repeated(part, found)
            parts.append(part)
            self.skip(space)
        return parts[0] if len(parts) == 1 else Node("sequence", parts=tuple(parts))

    def repeated(self, part: Node, found: re.Match[str]) -> Node:
        counts = [count for count in (found[1], found[3]) if count]
        if any(len(count) > 4 or int(count) > MAX_REPEAT for count in counts):
            raise self.wrong(f"a repetition is too large (at most {MAX_REPEAT})")
        self.position = found.end()
        suffix = found[0] if found[0] in "*+?" else f"{{{found[1]}{found[2] or ''}{found[3] or ''}}}"
        return Node("repeat", suffix, (part,))

    def atom(self) -> Node:
        start = self.text[self.position]
        if start == '"':
            return self.literal()
        if start == "[":
            return self.character_set()
        if start == ".":
            self.position += 1
            return Node("set", "(?s:.)")
        if start == "(":
            return self.group()
        if start == "<":
            raise UnsupportedError("gbnf", "tokens by name or number (<...>) are not supported", advice="use strings")
        return Node("rule", self.take(_NAME, "a string, a set, a group or a rule's name"))

    def group(self) -> Node:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.wrong(f"groups are nested too deeply (at most {MAX_NESTING} levels)")
        self.position += 1
        self.skip(_SPACE_AND_LINES)
        inner = self.choice()
        if not self.text.startswith(")", self.position):
            raise self.wrong("expected )")
        self.position += 1
        self.depth -= 1
        return inner

    def literal(self) -> Node:
        self.position += 1
        characters = []
        while not self.text.startswith('"', self.position):
            characters.append(_escaped(self.character()))
        if len(characters) > MAX_LITERAL:
            raise self.wrong(f"a string has {len(characters)} characters (at most {MAX_LITERAL})")
        self.position += 1
        return Node("text", "".join(characters))

    def character_set(self) -> Node:
        self.position += 1
        negated = self.text.startswith("^", self.position)
        self.position += negated
        parts = []
        while not self.text.startswith("]", self.position):
            first = self.character()
            last = first
            if self.text.startswith("-", self.position) and not self.text.startswith("-]", self.position):
                self.position += 1
                last = self.character()
            if last < first:
                raise self.wrong("a range goes down")
            parts.append(_escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}")
        self.position += 1
        if not parts:
            raise self.wrong("a set is empty")
        return Node("set", f"[{'^' if negated else ''}{''.join(parts)}]")

    def character(self) -> str:
        character = self.text[self.position : self.position + 1]
        if character in ("", "\n", "\r"):
            raise self.wrong("a string or set has no end")
        self.position += 1
        if character != "\\":
            return character
        letter = self.text[self.position : self.position + 1]
        self.position += 1
        if letter in _HEX:
            digits = self.text[self.position : self.position + _HEX[letter]]
            if not re.fullmatch(f"[0-9A-Fa-f]{{{_HEX[letter]}}}", digits) or int(digits, 16) > 0x10FFFF:
                raise self.wrong("a character code is malformed")
            self.position += len(digits)
            return chr(int(digits, 16))
        if letter not in _PLAIN:
            raise self.wrong("an escape is unknown")
        return _PLAIN[letter]


def _escaped(character: str) -> str:
    """A character as it is written in a regular expression, inside or outside a set."""
    return character if character.isalnum() and character.isascii() else f"\\u{{{ord(character):x}}}"


class _Writer:
    """Writes the rules as Lark: recursive ones as Lark rules, the others as regular expressions in their places."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self.rules = rules
        self.expressions: dict[str, str] = {}
        for name in _regular(rules):
            self.expressions[name] = self.regular(rules[name])
            if len(self.expressions[name]) > MAX_EXPRESSION:
                raise InputError("gbnf", f"rule {name!r} is too long: it expands to over {MAX_EXPRESSION} characters")
        self.recursive = rules.keys() - self.expressions.keys()
        self.numbers = {name: number for number, name in enumerate(rules)}

    def write(self) -> str:
        lines = [f"start: {self.rule('root')}"]
        for name in self.rules:
            if name in self.recursive:
                lines.append(f"{self.rule(name)}: {self.expand(self.rules[name])}")
        return "\n".join(lines) + "\n"

    def rule(self, name: str) -> str:
        return f"r{self.numbers[name]}" if name in self.recursive else f"/{self.expressions[name]}/"

    def regular(self, node: Node) -> str:
        if node.kind == "rule":
            return f"(?:{self.expressions[node.value]})"
        if node.kind == "sequence":
            return "".join(f"(?:{self.regular(p)})" if p.kind == "choice" else self.regular(p) for p in node.parts)
        if node.kind == "choice":
            return "|".join(self.regular(part) for part in node.parts)
        if node.kind == "repeat":
            return f"(?:{self.regular(node.parts[0])}){node.value}"
        return node.value

    def expand(self, node: Node) -> str:
        """A part of a recursive rule, in Lark."""
        if not any(reference in self.recursive for reference in _references(node)):
            expression = self.regular(node)
            return f"/{expression}/" if expression else '""'
        if node.kind == "rule":
            return self.rule(node.value)
        if node.kind == "repeat":
            return f"({self.expand(node.parts[0])}){node.value}"
        separator = " | " if node.kind == "choice" else " "
        return f"({separator.join(self.expand(part) for part in node.parts)})"


def _regular(rules: dict[str, Node]) -> list[str]:
    """Names of the rules that neither are recursive nor use a recursive rule, each after those it uses."""
    waits = {name: _references(rule) for name, rule in rules.items()}
    used_by: dict[str, list[str]] = {}
    for name, uses in waits.items():
        for use in uses:
            used_by.setdefault(use, []).append(name)
    ordered = [name for name, uses in waits.items() if not uses]
    for name in ordered:  # the loop body appends to it
        for user in used_by.get(name, ()):
            waits[user].discard(name)
            if not waits[user]:
                ordered.append(user)
    return ordered
