"""How native tokenizers are made. An export records the call, since the bundle repeats it from C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from weft._core import text as _native

Call = tuple[str, tuple[Any, ...]]  # the constructor's name, and its arguments

_recorded: ContextVar[list[Call] | None] = ContextVar("recorded", default=None)


def make(kind: str, *arguments: Any) -> _native.Tokenizer:
    """The native tokenizer of this constructor: from_json, from_sentencepiece, from_vocab, from_gguf, from_tiktoken."""
    calls = _recorded.get()
    if calls is not None:
        calls.append((kind, arguments))
    made: _native.Tokenizer = getattr(_native.Tokenizer, kind)(*arguments)
    return made


@contextmanager
def recording() -> Iterator[list[Call]]:
    """The calls of `make` in this thread; the last one made the tokenizer."""
    calls: list[Call] = []
    token = _recorded.set(calls)
    try:
        yield calls
    finally:
        _recorded.reset(token)
