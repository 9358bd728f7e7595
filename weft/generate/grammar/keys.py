"""The keys of the objects in a JSON text that is being generated: none is written twice.

A grammar cannot say this of keys that it does not name, so the matcher removes the tokens that would complete a key
which its object already has. A key has one spelling, since weft's JSON has no escape \\u. Where a pattern
leaves no other way to go on, because all keys that it allows are used, one may repeat.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

_QUOTE, _BACKSLASH = 0x22, 0x5C
_OPEN_OBJECT, _OPEN_LIST, _COMMA, _COLON = b"{[,:"
_CLOSING = b"}]"
_WHOLE_KEY = re.compile(rb'[ \n\r\t]*"((?:[^"\\]|\\.)*)"', re.DOTALL)
_LATER_KEY = re.compile(rb',[ \n\r\t]*"(?:[^"\\]|\\.)*"', re.DOTALL)


class KeyTokens:
    """The tokens of a vocabulary that can complete a key."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._quoted = sorted((token, id) for id, token in enumerate(tokens) if b'"' in token)
        self._whole: dict[bytes, list[int]] = {}  # by the key with which a token begins
        self.later: list[tuple[int, bytes]] = []  # tokens with a key after a comma
        for token, id in self._quoted:
            if found := _WHOLE_KEY.match(token):
                self._whole.setdefault(found[1], []).append(id)
            if _LATER_KEY.search(token):
                self.later.append((id, token))

    def beginning_with(self, text: bytes) -> Iterator[int]:
        """Ids of the tokens that begin with `text`, which ends in a quote."""
        for number in range(bisect_left(self._quoted, (text, -1)), len(self._quoted)):
            token, id = self._quoted[number]
            if not token.startswith(text):
                return
            yield id

    def with_key(self, key: bytes) -> Sequence[int]:
        """Ids of the tokens that begin with this key in quotes."""
        return self._whole.get(key, ())


class _Level:
    """An object that is not closed, with its keys so far; or a list, without keys."""

    __slots__ = ("keys", "outer")

    def __init__(self, keys: frozenset[bytes] | None, outer: _Level | None) -> None:
        self.keys, self.outer = keys, outer


class Keys:
    """The place in a JSON text, and the keys of every object around it. Copies share their levels."""

    __slots__ = ("_expected", "_key", "_level", "_string", "repeated")

    def __init__(self) -> None:
        self._level: _Level | None = None
        self._expected = False  # a key comes next, if anything but white space or the end of the object does
        self._string = 0  # 1 inside quotes, 2 after a backslash there
        self._key: bytes | None = None  # the part of a key that is written, without its first quote
        self.repeated = False

    @property
    def is_outside(self) -> bool:
        """Whether the text is outside all brackets and quotes."""
        return self._level is None and not self._string

    def copy(self) -> Keys:
        new = Keys()
        new._level, new._expected, new._string, new._key = self._level, self._expected, self._string, self._key
        return new

    def add(self, text: bytes) -> None:
        """Append text that the grammar allows; `repeated` becomes true at a key that its object already has."""
        for byte in text:
            if self._string:
                self._add_quoted(byte)
            elif byte == _QUOTE:
                self._string, self._key = 1, b"" if self._expected else None
            elif byte in (_OPEN_OBJECT, _OPEN_LIST):
                self._level = _Level(frozenset() if byte == _OPEN_OBJECT else None, self._level)
                self._expected = byte == _OPEN_OBJECT
            elif byte in _CLOSING:
                self._level, self._expected = self._level.outer if self._level else None, False
            elif byte == _COMMA:
                self._expected = self._level is not None and self._level.keys is not None
            elif byte == _COLON:
                self._expected = False

    def _add_quoted(self, byte: int) -> None:
        if byte == _QUOTE and self._string == 1:
            if self._key is not None and self._level is not None and self._level.keys is not None:
                self.repeated |= self._key in self._level.keys
                self._level = _Level(self._level.keys | {self._key}, self._level.outer)
                self._expected = False
            self._string, self._key = 0, None
            return
        self._string = 2 if byte == _BACKSLASH and self._string == 1 else 1
        if self._key is not None:
            self._key += bytes([byte])

    def refused(self, tokens: KeyTokens) -> Iterator[int]:
        """Ids of the tokens that would repeat a key."""
        keys: frozenset[bytes] = (self._level.keys if self._level is not None else None) or frozenset()
        if self._key is not None:
            for key in keys:
                if key.startswith(self._key):
                    yield from tokens.beginning_with(key[len(self._key) :] + b'"')
        elif self._expected and not self._string:
            for key in keys:
                yield from tokens.with_key(key)
        for id, token in tokens.later:
            further = self.copy()
            further.add(token)
            if further.repeated:
                yield id
