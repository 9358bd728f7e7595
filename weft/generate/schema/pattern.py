"""Translates the regular expressions of JSON Schema, which are JavaScript's, to the dialect that llguidance compiles.

The meaning of a pattern is kept. Look-around, back references and word boundaries have no counterpart: an
UnsupportedError names them.
"""

import re

from weft.errors import InputError, UnsupportedError

MAX_REPEAT = 2_000
MAX_NESTING = 100

_ANY = r"[^\n\r\u{2028}\u{2029}]"
_SPACE = r"\t-\r\x20\xa0\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}"
_SETS = {"d": "0-9", "s": _SPACE, "w": "0-9A-Za-z_"}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "v": "\v", "f": "\f", "0": "\0"}
_REPEAT = re.compile(r"\{(\d+)(,(\d*))?\}")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z_=0-9]+\}")
_GROUP = re.compile(r"\(\?(?::|<[A-Za-z_$][\w$]*>)")


def translate(pattern: str, where: str) -> str:
    """`pattern` in llguidance's dialect; `where` is where errors say they arose."""
    return _Reader(pattern, where).read()


def check_size(pattern: str, where: str) -> None:
    """Check the limits on repetition and nesting of an expression that is already in llguidance's dialect."""
    depth, inside, position = 0, False, 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
        elif inside or character == "[":
            inside = character != "]" or not inside
        elif character in "()":
            depth += 1 if character == "(" else -1
            _check_nesting(depth, where)
        elif found := _REPEAT.match(pattern, position):
            _check_repeat(found, where)
        position += 1


def _check_nesting(depth: int, where: str) -> None:
    if depth > MAX_NESTING:
        raise InputError(where, f"groups are nested too deeply: more than {MAX_NESTING} levels")


def _check_repeat(found: re.Match[str], where: str) -> None:
    if any(len(count) > 4 or int(count) > MAX_REPEAT for count in (found[1], found[3]) if count):
        raise InputError(where, f"the repetition {found[0][:40]} is too large: at most {MAX_REPEAT}")


def _literal(character: str) -> str:
    """A character escaped so that it matches itself, inside or outside a class."""
    if character.isascii() and not character.isalnum():
        return f"\\x{ord(character):02x}"
    return character


class _Reader:
    def __init__(self, pattern: str, where: str) -> None:
        self.pattern, self.where = pattern, where
        self.position = 0

    def read(self) -> str:
        out, depth = [], 0
        while self.position < len(self.pattern):
            character = self.pattern[self.position]
            if character == "(":
                depth += 1
                _check_nesting(depth, self.where)
                out.append(self.group())
            elif character == "\\":
                out.append(self.escape())
            elif character == "[":
                out.append(self.character_class())
            elif character in "*+?" or (character == "{" and _REPEAT.match(self.pattern, self.position)):
                out.append(self.quantifier())
            else:
                depth -= character == ")"
                self.position += 1
                out.append(character if character in ")|^$" else _ANY if character == "." else _literal(character))
        return "".join(out)

    def refuse(self, what: str) -> UnsupportedError:
        return UnsupportedError(self.where, f"{what} not supported in a pattern", given=self.pattern)

    def malformed(self) -> InputError:
        return InputError(self.where, "the pattern is malformed", given=self.pattern)

    def group(self) -> str:
        if self.pattern.startswith("(?", self.position):
            found = _GROUP.match(self.pattern, self.position)
            if not found:
                raise self.refuse("look-around and flags are")
            self.position = found.end()
        else:
            self.position += 1
        return "(?:"

    def quantifier(self) -> str:
        found = _REPEAT.match(self.pattern, self.position)
        if found:
            _check_repeat(found, self.where)
        text = found[0] if found else self.pattern[self.position]
        self.position += len(text)
        if self.pattern.startswith("?", self.position):  # lazy: it matches the same texts
            self.position += 1
        return text

    def escape(self) -> str:
        letter = self.pattern[self.position + 1 : self.position + 2]
        if letter in ("b", "B", "k") or letter in tuple("123456789"):
            raise self.refuse("word boundaries and back references are")
        return self.set_escape(brackets=True) or _literal(self.character())

    def set_escape(self, *, brackets: bool) -> str:
        """The class that an escape (`\\d`) stands for, or an empty string if it is another escape."""
        letter = self.pattern[self.position + 1 : self.position + 2]
        if found := _PROPERTY.match(self.pattern, self.position + 1):
            self.position = found.end()
            return "\\" + found[0]
        if letter == "" or letter not in "dDwWsS":
            return ""
        self.position += 2
        inner = _SETS[letter.lower()]
        if letter.isupper():
            return f"[^{inner}]"
        return f"[{inner}]" if brackets else inner

    def character(self) -> str:
        """The next character, which may be written as an escape."""
        if self.position >= len(self.pattern):
            raise self.malformed()
        if self.pattern[self.position] != "\\":
            self.position += 1
            return self.pattern[self.position - 1]
        letter = self.pattern[self.position + 1 : self.position + 2]
        self.position += 2
        if letter in _CONTROLS and letter:
            return _CONTROLS[letter]
        if letter == "c" and re.match("[A-Za-z]", self.pattern[self.position : self.position + 1]):
            self.position += 1
            return chr(ord(self.pattern[self.position - 1]) % 32)
        if letter in ("x", "u"):
            return self.coded(letter)
        if not letter or letter.isalnum():
            raise self.malformed()
        return letter

    def coded(self, letter: str) -> str:
        digits = re.compile(r"[0-9A-Fa-f]{2}" if letter == "x" else r"[0-9A-Fa-f]{4}|\{0*[0-9A-Fa-f]{1,6}\}")
        found = digits.match(self.pattern, self.position)
        if not found:
            raise self.malformed()
        self.position = found.end()
        code = int(found[0].strip("{}"), 16)
        low = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})").match(self.pattern, self.position)
        if 0xD800 <= code < 0xDC00 and low:
            self.position = low.end()
            code = 0x10000 + ((code - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise self.refuse("a lone surrogate or a code above 10FFFF is")
        return chr(code)

    def character_class(self) -> str:
        self.position += 1
        negated = self.pattern.startswith("^", self.position)
        self.position += negated
        parts: list[str] = []
        while not self.pattern.startswith("]", self.position):
            parts.append(self.class_part())
        self.position += 1
        if not parts and not negated:
            raise self.refuse("an empty class is")
        return f"[{'^' if negated else ''}{''.join(parts)}]" if parts else "(?s:.)"

    def class_part(self) -> str:
        if self.pattern.startswith("\\", self.position):
            if found := self.set_escape(brackets=False):
                return found
            if self.pattern.startswith("\\b", self.position):
                self.position += 2
                return "\\x08"
        first = self.character()
        ranged = self.pattern.startswith("-", self.position) and not self.pattern.startswith("-]", self.position)
        if not ranged or re.match(r"-\\[dDwWsSpP]", self.pattern[self.position : self.position + 3]):
            return _literal(first)
        self.position += 1
        last = self.character()
        if last < first:
            raise self.malformed()
        return f"{_literal(first)}-{_literal(last)}"
