"""Which paths git ignores: the rules of .gitignore files, matched as `git check-ignore` does.

Paths are bytes, as in git: `?` matches one byte. `.git/info/exclude` counts, a user's global file does not. A nested
repository starts with no rules of the outer one. Patterns compile to expressions that cannot backtrack without end: a
folder's content is not trusted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from weft.frozen import frozen

FILE, REPOSITORY = ".gitignore", ".git"
MAX_RULE_BYTES = 4 << 20  # of one .gitignore
SPECIAL = b"*?[\\"
SLASH = ord("/")
PRINTED = range(0x20, 0x7F)
CLASSES = {
    b"alpha": [c for c in PRINTED if chr(c).isalpha()],
    b"digit": [c for c in PRINTED if chr(c).isdigit()],
    b"alnum": [c for c in PRINTED if chr(c).isalnum()],
    b"upper": [c for c in PRINTED if chr(c).isupper()],
    b"lower": [c for c in PRINTED if chr(c).islower()],
    b"xdigit": list(b"0123456789abcdefABCDEF"),
    b"blank": list(b" \t"),
    b"space": list(b" \t\n\r"),
    b"cntrl": [*range(0x20), 0x7F],
    b"print": list(PRINTED),
    b"graph": [c for c in PRINTED if c != 0x20],
    b"punct": [c for c in PRINTED if not chr(c).isalnum() and c != 0x20],
}
Segment = re.Pattern[bytes] | None  # matches one name; None is `**`, any number of names
NOTHING = re.compile(b"(?!)")


@frozen
class Pattern:
    """A line of a .gitignore. `prefix` has no special characters; `segments` match the names after it."""

    negated: bool
    folders_only: bool
    names_only: bool  # without a slash it matches the last name of a path, at any depth
    prefix: bytes
    segments: tuple[Segment, ...]

    def matches(self, path: bytes) -> bool:
        """Whether it matches a path below the folder of its file."""
        path = path.rpartition(b"/")[2] if self.names_only else path
        if not path.startswith(self.prefix):
            return False
        rest = path[len(self.prefix) :]
        return _fits(self.segments, rest.split(b"/")) if self.segments else not rest


@frozen
class Rules:
    """The patterns of the file in `folder`, and the rules of the folders above it, which count less."""

    folder: bytes
    patterns: tuple[Pattern, ...]
    above: Rules | None

    def ignore(self, path: bytes, is_folder: bool) -> bool:
        """Whether git ignores an absolute path below `folder`; folders above it are not looked at."""
        rules: Rules | None = self
        while rules is not None:
            below = path[len(rules.folder) :].lstrip(b"/")
            for pattern in reversed(rules.patterns):
                if (is_folder or not pattern.folders_only) and pattern.matches(below):
                    return not pattern.negated
            rules = rules.above
        return False


def rules_above(folder: Path) -> Rules | None:
    """The rules that hold in `folder`, an absolute path, because of the repository it is in; None outside of one."""
    found: Rules | None = None
    parents = list(folder.parents)
    top = next((place for place, parent in enumerate(parents) if (parent / REPOSITORY).exists()), None)
    if top is None:
        return None
    for parent in reversed(parents[: top + 1]):
        found = rules_in(parent, found)
    return found


def rules_in(folder: Path, above: Rules | None) -> Rules | None:
    """The rules for what is in `folder`, whose parent has the rules `above`."""
    if (folder / REPOSITORY).exists():
        above = _with(folder, folder / REPOSITORY / "info" / "exclude", None)
    return _with(folder, folder / FILE, above)


def _with(folder: Path, file: Path, above: Rules | None) -> Rules | None:
    try:
        if file.is_symlink() or not file.is_file():  # git follows no link here either
            return above
        with open(file, "rb") as opened:
            content = opened.read(MAX_RULE_BYTES)
    except OSError:
        return above
    patterns = tuple(patterns_of(content))
    return Rules(os.fsencode(folder), patterns, above) if patterns else above


def patterns_of(content: bytes) -> Iterator[Pattern]:
    """The patterns in the content of a .gitignore."""
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line and not line.startswith(b"#"):
            pattern = _pattern(_trimmed(line.removesuffix(b"\r")))
            if pattern is not None:
                yield pattern


def _trimmed(line: bytes) -> bytes:
    """The line without spaces at its end; a backslash keeps the one after it."""
    end = at = 0
    while at < len(line):
        if line[at : at + 1] == b"\\":
            at += 1
            if at == len(line):
                return line
        elif line[at : at + 1] == b" ":
            at += 1
            continue
        at += 1
        end = at
    return line[:end]


def _pattern(line: bytes) -> Pattern | None:
    """The pattern of a line; None if it can match nothing."""
    negated = line.startswith(b"!")
    line = line[1:] if negated else line
    folders_only = line.endswith(b"/")
    line = line[:-1] if folders_only else line
    names_only = b"/" not in line
    if not line:
        return None
    line = line.removeprefix(b"/")
    length = 0 if names_only else next((at for at, c in enumerate(line) if c in SPECIAL), len(line))
    prefix, rest = line[:length], line[length:]
    segments = _segments(rest) if rest else ()
    return None if segments is None else Pattern(negated, folders_only, names_only, prefix, segments)


def _segments(pattern: bytes) -> tuple[Segment, ...] | None:
    """The names of a pattern, which are between its slashes; None if the pattern is malformed."""
    found: list[Segment] = []
    chunks: list[bytes] = [b""]  # of the current name, between its stars
    stars, at, after_star = 0, 0, False
    while at <= len(pattern):
        c = pattern[at : at + 1]
        more, after_star = after_star and c == b"*", c == b"*"
        if c in (b"", b"/"):
            if stars > 1 and chunks == [b"", b""]:
                found.append(None)
            else:
                found.append(_compiled(chunks))
            chunks, stars = [b""], 0
        elif c == b"*":
            chunks += [] if more else [b""]
            stars += 1
        elif c == b"?":
            chunks[-1] += b"[^/]"
        elif c == b"[":
            bracket = _bracket(pattern, at + 1)
            if bracket is None:
                return None
            chunks[-1] += bracket[0]
            at = bracket[1]
        elif c == b"\\" and at + 1 == len(pattern):
            return None
        else:
            at += c == b"\\"
            chunks[-1] += re.escape(pattern[at : at + 1])
        at += 1
    if found[-1] is None:
        found.append(re.compile(b".*", re.DOTALL))  # `a/**` does not match `a`
    return tuple(found)


def _compiled(chunks: list[bytes]) -> re.Pattern[bytes]:
    """An expression for chunks with a star between each two.

    The first place where a chunk fits is as good as any later one, so each is taken once: a look-ahead into a group
    does not backtrack.
    """
    first, *others = chunks
    if not others:
        return re.compile(first, re.DOTALL)
    middle = b"".join(
        b"(?=(?P<g%d>.*?%s))(?P=g%d)" % (number, chunk, number) for number, chunk in enumerate(others[:-1])
    )
    return re.compile(first + middle + b".*" + others[-1], re.DOTALL)


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int] | None:
    """The expression of a set such as [a-z] whose content begins at `at`, and where its ] is; None if it has none."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    held: set[int] = set()
    before: int | None = None  # the character that may begin a range
    first = True
    while first or pattern[at : at + 1] != b"]":
        first = False
        c = pattern[at : at + 1]
        if c == b"\\":
            at += 1
            c = pattern[at : at + 1]
        elif c == b"-" and before is not None and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 1 + (pattern[at + 1 : at + 2] == b"\\")
            if at >= len(pattern):
                return None
            held.update(range(before, pattern[at] + 1))
            before = None
            at += 1
            continue
        elif pattern[at : at + 2] == b"[:":
            end = pattern.find(b"]", at + 2)
            if end < 0:
                return None
            if end > at + 2 and pattern[end - 1 : end] == b":":
                named = CLASSES.get(pattern[at + 2 : end - 1])
                if named is None:
                    return None
                held.update(named)
                before = None
                at = end + 1
                continue
        if not c:
            return None
        held.add(c[0])
        before = c[0]
        at += 1
    chosen = held | {SLASH} if negated else held - {SLASH}
    listed = b"".join(b"\\x%02x" % c for c in sorted(chosen))
    return (b"[%s%s]" % (b"^" if negated else b"", listed) if chosen else b"(?!)"), at


def _fits(segments: tuple[Segment, ...], names: list[bytes]) -> bool:
    """Whether the segments match all names; a `**` that matched too few is tried with one more."""
    at = done = 0
    retry: tuple[int, int] | None = None
    while done < len(names):
        segment = segments[at] if at < len(segments) else NOTHING
        if segment is None:
            retry = (at, done)
            at += 1
        elif segment.fullmatch(names[done]):
            at, done = at + 1, done + 1
        elif retry is not None:
            retry = (retry[0], retry[1] + 1)
            at, done = retry[0] + 1, retry[1]
        else:
            return False
    return all(segment is None for segment in segments[at:])
