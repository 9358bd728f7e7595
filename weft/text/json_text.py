"""Follows JSON text one character at a time, while it is generated."""

import re

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
_WORDS = ("true", "false", "null")
_SPACE = " \t\n\r"
_MAX_DEPTH = 64


class JsonFollower:
    """Follows one object or array. `take` returns whether a character can come next; `ended` is True at the end.

    `key` is the member of the outermost object that is being read, `inside` whether the last character was part of that
    member's value, and `completed` whether the value ended with it, or just before it.
    """

    def __init__(self) -> None:
        self.key: str | None = None
        self.inside = self.completed = self.ended = False
        self._open: list[str] = []
        self._expects = "container"
        self._is_key = False
        self._text: list[str] = []  # of a key of the outermost object, or of a word
        self._hex = 0

    def take(self, character: str) -> bool:
        """Take the next character; False if it is not allowed here."""
        depth, self.completed = len(self._open), False
        if self._expects == "word" and not self._goes_on(character):
            if not self._word_is_whole():
                return False
            self._value_done()
        in_text = self._expects in ("string", "escape", "hex", "word") and not self._is_key
        if not self._step(character):
            return False
        begins = self._expects in ("string", "word") and not self._is_key
        self.inside = depth > 1 or len(self._open) > 1 or in_text or begins
        return True

    def _step(self, character: str) -> bool:
        if self._expects in ("string", "escape", "hex"):
            return self._in_string(character)
        if self._expects == "word":
            self._text.append(character)
            return True
        if character in _SPACE:
            return self._expects != "end"
        if self._expects in ("container", "value", "value or end"):
            return self._value(character)
        if self._expects in ("key", "key or end"):
            return self._key(character)
        if self._expects == "colon":
            self._expects = "value"
            return character == ":"
        return self._after_value(character)

    def _value(self, character: str) -> bool:
        if character in "{[":
            self._open.append(character)
            self._expects = "key or end" if character == "{" else "value or end"
            return len(self._open) <= _MAX_DEPTH
        if self._expects == "container":
            return False
        if character == "]" and self._expects == "value or end":
            return self._close()
        self._text, self._is_key = [character], False
        self._expects = "string" if character == '"' else "word"
        return character == '"' or self._begun()

    def _key(self, character: str) -> bool:
        if character == "}" and self._expects == "key or end":
            return self._close()
        self._text, self._is_key, self._expects = [], True, "string"
        return character == '"'

    def _in_string(self, character: str) -> bool:
        if self._is_key and len(self._open) == 1 and character != '"':
            self._text.append(character)
        if self._expects == "escape":
            self._expects, self._hex = ("hex", 4) if character == "u" else ("string", 0)
            return character in '"\\/bfnrtu'
        if self._expects == "hex":
            self._hex -= 1
            self._expects = "hex" if self._hex else "string"
            return character in "0123456789abcdefABCDEF"
        if character == "\\":
            self._expects = "escape"
        elif character == '"':
            self._string_done()
        return character >= " "

    def _string_done(self) -> None:
        if not self._is_key:
            self._value_done()
            return
        self._expects, self._is_key = "colon", False
        if len(self._open) == 1:
            self.key = "".join(self._text)

    def _goes_on(self, character: str) -> bool:
        return character.isalnum() or character in "+-."

    def _begun(self) -> bool:
        word = "".join(self._text)
        return bool(_NUMBER_BEGUN.fullmatch(word)) or any(known.startswith(word) for known in _WORDS)

    def _word_is_whole(self) -> bool:
        word = "".join(self._text)
        return bool(_NUMBER.fullmatch(word)) or word in _WORDS

    def _value_done(self) -> None:
        self._expects = "after value"
        self.completed |= len(self._open) == 1

    def _close(self) -> bool:
        self._open.pop()
        self._value_done()
        if not self._open:
            self._expects, self.ended = "end", True
        return True

    def _after_value(self, character: str) -> bool:
        if not self._open or character not in (",", "}" if self._open[-1] == "{" else "]"):
            return False
        if character != ",":
            return self._close()
        self._expects = "key" if self._open[-1] == "{" else "value"
        return True
