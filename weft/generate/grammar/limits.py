"""How much a grammar may ask for: characters before it is compiled, seconds while it is, work at each step after."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from math import isqrt
from typing import Any, TypeVar

from weft.errors import BusyError, InputError, UnsupportedError

T = TypeVar("T")

# Work that one step, and building a grammar, may take; the parser stops with an error beyond.
LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 250_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
COMPILE_SECONDS = 2.0
CACHE_BYTES = 64 << 20
MAX_RULES = 500  # llguidance follows rules by recursion: 3,000 in a chain overflow a stack of 8 MiB
MAX_ALTERNATIVES = 4_000  # that all lead to each other they take a second
# Characters of a regular expression. llguidance's memory grows with their square, which its own limits do not see:
# 8 Ki of them take up to 40 MiB (`a?a?a?...`), 60 Ki took 780.
MAX_EXPRESSION = 8 << 10
STACK_BYTES = 16 << 20

_compiling = threading.Lock()

# In Lark: comments, texts, expressions, the head of a definition, names.
_LARK = re.compile(
    r"(?P<comment>//[^\n]*|\#[^\n]*)"
    r'|(?P<literal>"(?:[^"\\\n]|\\.)*"i?|/(?:[^/\\\n]|\\.)+/[a-z]*)'
    r"|^[?!]?(?P<head>\w+)(?:\.\d+|\[[^\]\n]*\]|::\w+|[ \t])*:"
    r"|(?P<name>\w+)",
    re.MULTILINE,
)


def in_time(kind: str, work: Callable[[], T]) -> T:
    """What `work` returns; an error where it takes longer than COMPILE_SECONDS.

    llguidance cannot be stopped, so a grammar that is too slow goes on in its thread, and nobody waits for it. Until it
    has ended no other is compiled: there is never more than one, nor more memory than one takes.
    """
    if not _compiling.acquire(timeout=COMPILE_SECONDS):
        raise BusyError(kind, "another grammar is still being compiled; try again later")
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)
        finally:
            _compiling.release()

    try:
        _start(run)
    except BaseException:
        _compiling.release()
        raise
    try:
        return done.result(COMPILE_SECONDS)
    except Late:
        raise UnsupportedError(
            kind, f"compiling it takes longer than {COMPILE_SECONDS:g} s; give a smaller one"
        ) from None


def _start(run: Callable[[], None]) -> None:
    """A thread whose stack holds MAX_RULES rules, on every system."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=run, name="weft-grammar", daemon=True).start()
    finally:
        threading.stack_size(usual)


def check_rules(count: int, kind: str) -> None:
    if count > MAX_RULES:
        raise InputError(kind, f"too many rules: {count}; {MAX_RULES} is the most")


def check_expressions(sizes: Iterable[int], kind: str) -> None:
    """Hold expressions of so many characters to what one of MAX_EXPRESSION takes, all together."""
    together = isqrt(sum(size * size for size in sizes))
    if together > MAX_EXPRESSION:
        raise InputError(
            kind, f"expressions too long: as much work as one of {together} characters; {MAX_EXPRESSION} is the most"
        )


def check_lark(text: str, kind: str) -> None:
    """The limits on alternatives, and on expressions with all that they name written out."""
    if text.count("|") > MAX_ALTERNATIVES:
        raise InputError(kind, f"too many alternatives: {text.count('|')}; {MAX_ALTERNATIVES} is the most")
    own, uses, loose = _definitions(text)
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = 0  # one that uses itself is llguidance's to refuse
            sizes[name] = own[name] + sum(size(other) for other in uses[name] if other in own)
        return sizes[name]

    check_expressions([*map(size, own), *loose], kind)


def _definitions(text: str) -> tuple[dict[str, int], dict[str, list[str]], list[int]]:
    """Of terminals, which have names in capitals, the characters of their own and the names they use; of rules, the
    characters of each text and expression."""
    own: dict[str, int] = {}
    uses: dict[str, list[str]] = {}
    loose: list[int] = []
    terminal = ""
    for found in _LARK.finditer(text):
        if head := found["head"]:
            terminal = head if head.isupper() else ""
            if terminal:
                own.setdefault(terminal, 0)
                uses.setdefault(terminal, [])
        elif found["literal"] and terminal:
            own[terminal] += len(found[0])
        elif found["literal"]:
            loose.append(len(found[0]))
        elif found["name"] and terminal:
            uses[terminal].append(found["name"])
    return own, uses, loose
