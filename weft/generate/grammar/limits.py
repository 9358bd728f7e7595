"""Limits on a grammar: its characters, the seconds that compiling it may take, the work of each step."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from math import isqrt
from typing import Any, TypeVar

from weft.errors import BusyError, InputError, UnsupportedError
from weft.generate.grammar.turns import tenant_now

T = TypeVar("T")

# llguidance's limits on one step and on building a grammar; beyond them it stops with an error.
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
COMPILERS = 2  # compilations at a time, each of another tenant
CACHE_BYTES = 64 << 20
MAX_RULES = 500  # llguidance follows rules by recursion: 3,000 in a chain overflow a stack of 8 MiB
MAX_ALTERNATIVES = 4_000  # in the worst case, where each leads to all others, this many take a second
# Characters of a regular expression. llguidance's memory grows with the square of its length, and llguidance's own
# limits do not count that: 8 Ki characters take up to 40 MiB (`a?a?a?...`), 60 Ki took 780 MiB.
MAX_EXPRESSION = 8 << 10
STACK_BYTES = 16 << 20

_turn = threading.Condition()
_compiling: set[str] = set()  # tenants whose grammars are being compiled

# The parts of a Lark grammar: comments, strings and regular expressions, the head of a definition, names.
_LARK = re.compile(
    r"(?P<comment>//[^\n]*|\#[^\n]*)"
    r'|(?P<literal>"(?:[^"\\\n]|\\.)*"i?|/(?:[^/\\\n]|\\.)+/[a-z]*)'
    r"|^[?!]?(?P<head>\w+)(?:\.\d+|\[[^\]\n]*\]|::\w+|[ \t])*:"
    r"|(?P<name>\w+)",
    re.MULTILINE,
)


def in_time(kind: str, work: Callable[[], T]) -> T:
    """Return the result of `work`; UnsupportedError if it takes longer than COMPILE_SECONDS.

    llguidance cannot be stopped, so a compilation that is too slow continues in its thread, and its result is dropped.
    Until it has ended no other grammar of its tenant is compiled, and at most COMPILERS are in all, which limits the
    memory to that of so many compilations.
    """
    tenant = tenant_now.get()
    with _turn:
        if not _turn.wait_for(lambda: tenant not in _compiling and len(_compiling) < COMPILERS, COMPILE_SECONDS):
            raise BusyError(kind, "another grammar is still being compiled", advice="try again later")
        _compiling.add(tenant)
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)
        finally:
            _leave(tenant)

    try:
        _start(run)
    except BaseException:
        _leave(tenant)
        raise
    try:
        return done.result(COMPILE_SECONDS)
    except Late:
        what = f"compiling the grammar takes longer than {COMPILE_SECONDS:g} s"
        raise UnsupportedError(kind, what, advice="give a smaller one") from None


def _leave(tenant: str) -> None:
    with _turn:
        _compiling.discard(tenant)
        _turn.notify_all()


def _start(run: Callable[[], None]) -> None:
    """Start a thread whose stack is large enough for MAX_RULES rules on every system."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=run, name="weft-grammar", daemon=True).start()
    finally:
        threading.stack_size(usual)


def check_rules(count: int, kind: str) -> None:
    if count > MAX_RULES:
        raise InputError(kind, f"the grammar has {count} rules; at most {MAX_RULES} are allowed")


def check_expressions(sizes: Iterable[int], kind: str) -> None:
    """Refuse expressions of these `sizes`, in characters, that together cost more than one of MAX_EXPRESSION."""
    together = isqrt(sum(size * size for size in sizes))
    if together > MAX_EXPRESSION:
        cost = f"cost as much as one of {together} characters; at most {MAX_EXPRESSION} are allowed"
        raise InputError(kind, f"the regular expressions are too long: together they {cost}")


def check_lark(text: str, kind: str) -> None:
    """Check the limits on alternatives, and on expressions after the terminals they name are expanded."""
    if text.count("|") > MAX_ALTERNATIVES:
        raise InputError(
            kind, f"the grammar has {text.count('|')} alternatives; at most {MAX_ALTERNATIVES} are allowed"
        )
    own, uses, loose = _definitions(text)
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = 0  # stops the recursion; llguidance refuses a terminal that uses itself
            sizes[name] = own[name] + sum(size(other) for other in uses[name] if other in own)
        return sizes[name]

    check_expressions([*map(size, own), *loose], kind)


def _definitions(text: str) -> tuple[dict[str, int], dict[str, list[str]], list[int]]:
    """The characters of each terminal's own literals, the names it uses, and the characters of each literal in rules.

    Terminals are the definitions whose names are in capitals.
    """
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
