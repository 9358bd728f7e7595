"""Strict semantic versions: what semver.org 2.0.0 allows, in the order that it defines."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from weft.errors import VersionError
from weft.frozen import frozen

MAX_VERSION = 128  # characters
_NUMBER = r"(?:0|[1-9][0-9]*)"
_WORD = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_PATTERN = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-({_WORD}(?:\.{_WORD})*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)


@frozen
class Semver:
    """One version. `precedence` orders versions; what follows a plus sign has no part in it."""

    text: str
    numbers: tuple[int, int, int]
    pre: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: Any) -> Semver:
        """The version that `text` writes; VersionError for anything that semver.org does not call one."""
        found = _PATTERN.fullmatch(text) if isinstance(text, str) and len(text) <= MAX_VERSION else None
        if found is None:
            advice = (
                "write MAJOR.MINOR.PATCH as in 1.4.0, or 1.4.0-rc.1: numbers without leading zeros, no v before them"
            )
            raise VersionError("registry", "is not a semantic version", field="version", given=text, advice=advice)
        major, minor, patch = (int(found[i]) for i in (1, 2, 3))
        return cls(text, (major, minor, patch), tuple(found[4].split(".")) if found[4] else ())

    @cached_property
    def precedence(self) -> tuple[Any, ...]:
        """The key to sort by: a pre-release comes before its release, numbers before words, shorter before longer."""
        words = tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in self.pre)
        return (*self.numbers, not self.pre, words)

    def __str__(self) -> str:
        return self.text


def is_version(text: str) -> bool:
    return _PATTERN.fullmatch(text) is not None
