"""Compiled grammars and their matchers: which tokens may come next in a text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from weft.errors import GrammarError, InputError, UnsupportedError
from weft.generate.grammar.keys import Keys
from weft.generate.grammar.limits import CACHE_BYTES, LIMITS, in_time

if TYPE_CHECKING:
    from weft.generate.grammar.spec import Grammar
    from weft.generate.grammar.vocabulary import Mask, Vocabulary

# llguidance allows each mask some work, and appended tokens what that leaves: after so many bytes a mask is due.
UNMASKED_BYTES = 512
# The most characters of a number, and of white space between two parts of JSON; the last token may exceed it a little.
LONGEST_RUN = 40


class Cache:
    """Compiled grammars; the least recently used ones are dropped when all together exceed `limit_bytes`."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.limit_bytes, self.size_bytes = limit_bytes, 0
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, grammar: Grammar, compile: Callable[[], Compiled]) -> Compiled:
        with self._lock:
            found = self._kept.get(grammar.text)
            if found is not None:
                self._kept.move_to_end(grammar.text)
                return found
        made = compile()  # outside the lock: it may take long
        with self._lock:
            if grammar.text not in self._kept:
                self._kept[grammar.text] = made
                self.size_bytes += made.size_bytes
            while self.size_bytes > self.limit_bytes and self._kept:
                self.size_bytes -= self._kept.popitem(last=False)[1].size_bytes
        return made


class Compiled:
    """A grammar compiled for a vocabulary; `start` returns a matcher for one text."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self.grammar, self.vocabulary = grammar, vocabulary
        # Measured after 60 tokens: 30 KiB for a word, 500 for a schema of five properties, 740 for twenty tools.
        self.size_bytes = (512 << 10) + 32 * len(grammar.text)
        self._matcher: Any = _built(grammar, vocabulary)

    def start(self) -> Matcher:
        """A matcher at the beginning of a text; after `failed`, the errors and the time of compiling the grammar."""
        native = self._matcher  # once: another thread may call `failed` at any time
        if native is None:
            native = in_time(self.grammar.kind, lambda: _built(self.grammar, self.vocabulary))
            self._matcher = native
        marks = tuple(mark.encode() for mark in self.grammar.json_after)
        follows = self.grammar.is_json or marks
        return Matcher(native.deep_copy(), self, _Json(marks=marks) if follows else None)

    def failed(self) -> None:
        """A matcher has reached a limit: its copies share a lexer, which is of no use any more. The next one is new."""
        self._matcher = None


def _built(grammar: Grammar, vocabulary: Vocabulary) -> Any:
    import llguidance

    limits = llguidance.LLParserLimits(**LIMITS)
    matcher = llguidance.LLMatcher(vocabulary.native, grammar.text, log_level=0, limits=limits)
    refuse(matcher.get_error(), grammar.kind)
    warnings = matcher.get_grammar_warnings()
    if warnings:
        raise UnsupportedError(grammar.kind, f"parts of the grammar cannot be enforced: {'; '.join(warnings)[:300]}")
    _try(matcher.deep_copy(), grammar.kind, vocabulary.eos_ids)
    return matcher


def _try(matcher: Any, kind: str, eos_ids: Sequence[int]) -> None:
    """Compute the first two masks, so that most grammars that exceed the limits fail here and not during generation."""
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if not mask.any() or matcher.is_error():
        raise InputError(kind, "no text can match the grammar, or its first step exceeds the limits")
    ids = np.setdiff1d(np.flatnonzero(np.unpackbits(mask, bitorder="little")), eos_ids)
    if len(ids) and matcher.try_consume_tokens([int(ids[0])]):
        matcher.compute_bitmask()
    refuse(matcher.get_error(), kind)


def refuse(error: str, kind: str) -> None:
    """Raise llguidance's `error` about a grammar as one of weft's errors; nothing if it is empty."""
    if not error:
        return
    text = " ".join(error.split())[:400]
    if "nsatisfiable" in text and "Unable to determine" not in text:
        raise InputError(kind, f"no text can match the grammar: {text}")
    raise UnsupportedError(kind, text)


class _Runs:
    """The length of the number or white space at the end of a JSON text; strings in quotes do not count."""

    __slots__ = ("kind", "length", "quoted")

    def __init__(self) -> None:
        self.quoted = 0  # 1 inside quotes, 2 after a backslash there
        self.kind = self.length = 0  # 1 a number, 2 white space

    def copy(self) -> _Runs:
        new = _Runs()
        new.quoted, new.kind, new.length = self.quoted, self.kind, self.length
        return new

    def add(self, text: bytes) -> None:
        for byte in text:
            if self.quoted == 2:
                self.quoted = 1
            elif self.quoted:
                self.quoted = 0 if byte == 0x22 else 2 if byte == 0x5C else 1
            else:
                kind = _KIND_OF[byte]
                self.length = self.length + 1 if kind == self.kind and kind else int(kind > 0)
                self.kind, self.quoted = kind, int(byte == 0x22)

    @property
    def too_long(self) -> bool:
        return self.length >= LONGEST_RUN


_KIND_OF = bytes(1 if byte in b"0123456789.eE+-" else 2 if byte in b" \n\r\t" else 0 for byte in range(256))


class _Json:
    """What a matcher tracks of JSON beside its grammar: all of a text, or the values that follow one of `marks`.

    A value ends where its outermost brackets close, or at a character that no value outside brackets has.
    """

    __slots__ = ("active", "keys", "marks", "runs", "tail")

    def __init__(self, runs: _Runs | None = None, keys: Keys | None = None, marks: tuple[bytes, ...] = ()) -> None:
        self.runs = _Runs() if runs is None else runs
        self.keys = Keys() if keys is None else keys
        self.marks = marks
        self.active = True  # a text may begin with a value
        self.tail = b""  # the end of the text outside values, in which a mark may begin

    def copy(self) -> _Json:
        new = _Json(self.runs.copy(), self.keys.copy(), self.marks)
        new.active, new.tail = self.active, self.tail
        return new

    def add(self, text: bytes) -> None:
        if not self.marks:
            self.runs.add(text)
            self.keys.add(text)
            return
        while text:
            text = self._within(text) if self.active else self._between(text)

    def _within(self, text: bytes) -> bytes:
        """Follow a value; returns what comes after it."""
        for number, byte in enumerate(text):
            one = bytes([byte])
            self.runs.add(one)
            self.keys.add(one)
            if self.keys.is_outside and byte not in _OUTSIDE:
                self.active = False
                self.runs, self.keys = _Runs(), Keys()
                self.tail = one
                return text[number + 1 :]
        return b""

    def _between(self, text: bytes) -> bytes:
        """Look for a mark; returns what comes after it."""
        whole = self.tail + text
        places = [(place + len(mark)) for mark in self.marks if (place := whole.find(mark)) >= 0]
        if not places:
            self.tail = whole[-max(map(len, self.marks)) :]
            return b""
        self.active, self.tail = True, b""
        return whole[min(places) :]


_OUTSIDE = b'{["-+.0123456789eE \n\r\t'  # what a value outside brackets, or the white space before it, is made of


class Matcher:
    """The state of one text in its grammar. Every failure is a GrammarError, which ends the request."""

    def __init__(self, native: Any, compiled: Compiled, json: _Json | None, past: Sequence[_Json] = ()) -> None:
        self.vocabulary = compiled.vocabulary
        self._native, self._compiled = native, compiled
        self._json = json
        self._past = list(past)  # what was tracked before each token, for rollback
        self._unmasked = UNMASKED_BYTES  # bytes since the last mask; matchers share what it leaves

    def mask(self) -> Mask:
        """The tokens that may come next, one bit each: uint32 [ceil(vocab / 32)], bit i of word w is token 32 w + i.

        Where the text may end, they include the end tokens.
        """
        mask = np.frombuffer(self._native.compute_bitmask(), np.uint32)
        self._check()
        self._unmasked = 0
        mask = self._narrowed(mask[: len(self.vocabulary.spaces)])  # llguidance adds a word where 32 divides the size
        if not mask.any():
            raise GrammarError("grammar", "no token of the vocabulary can continue the text")
        return mask

    def apply(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """A copy of `logits` [vocab] with minus infinity for every token that may not come next."""
        if logits.shape != (self.vocabulary.size,):
            raise InputError(
                "grammar", f"must have shape ({self.vocabulary.size},)", field="logits", given=logits.shape
            )
        bits = np.unpackbits(self.mask().view(np.uint8), count=self.vocabulary.size, bitorder="little")
        return np.where(bits.view(np.bool_), logits, np.float32(-np.inf))

    def advance(self, token: int) -> None:
        """Append a token; GrammarError if the grammar does not allow it next."""
        if 0 <= token < self.vocabulary.size:
            self._make_room(len(self.vocabulary.tokens[token]))
        if not 0 <= token < self.vocabulary.size or self._native.try_consume_tokens([token]) != 1:
            self._check()
            raise GrammarError("grammar", f"the grammar does not allow token {token} next")
        self._note(token)

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, from the first on, the grammar allows next. Does not append them."""
        known = list(takewhile(lambda token: 0 <= token < self.vocabulary.size, tokens))
        count = self._allowed_of(known)
        if self._json is None:
            return count
        json = self._json.copy()
        for number, token in enumerate(tokens[:count]):
            if json.runs.too_long and _bit(self._starts(json.runs), token):
                return number
            json.add(self._text(token))
            if json.keys.repeated:
                return number
        return count

    def _allowed_of(self, known: Sequence[int]) -> int:
        """`allowed`, as far as the grammar says."""
        sizes = [len(self.vocabulary.tokens[token]) for token in known]
        if len(known) <= 1 or sum(sizes) <= UNMASKED_BYTES:
            self._make_room(sum(sizes))
            count = self._native.validate_tokens(known)
            self._check()
            return int(count)
        ahead = Matcher(self._native.deep_copy(), self._compiled, None)
        ahead._unmasked = self._unmasked
        for number, token in enumerate(known):
            ends = token in self.vocabulary.eos_ids
            allowed = ends if ahead.stopped else ahead._allowed_of([token]) > 0
            if ends or not allowed:  # nothing follows the end
                return number + allowed
            ahead.advance(token)
        return len(known)

    def _make_room(self, size: int) -> None:
        """Let llguidance append `size` more bytes."""
        self._unmasked += size
        if self._unmasked > UNMASKED_BYTES and not self._native.is_stopped():
            self._native.compute_bitmask()
            self._check()
            self._unmasked = size

    def forced(self) -> tuple[int, ...]:
        """The tokens of the text that must come next, as the tokenizer would encode it; often none.

        A model may write the same text with other tokens, so the caller uses these as drafts.
        """
        tokens = self._native.compute_ff_tokens()
        self._check()
        return tuple(tokens)

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens."""
        if count and not self._native.rollback(count):
            raise GrammarError("grammar", f"cannot roll back {count} tokens: {self._native.get_error()[:200]}")
        if count and self._json is not None:
            self._json = self._past[-count]
            del self._past[-count:]

    def fork(self) -> Matcher:
        """An independent copy of this matcher."""
        json = None if self._json is None else self._json.copy()
        made = Matcher(self._native.deep_copy(), self._compiled, json, self._past)
        made._unmasked = self._unmasked
        return made

    @property
    def accepting(self) -> bool:
        """Whether the text may end here."""
        found = self._native.is_accepting()
        self._check()
        return found

    @property
    def stopped(self) -> bool:
        """Whether the text must end here."""
        found = self._native.is_stopped()
        self._check()
        return found

    def _check(self) -> None:
        if self._native.is_error():
            text = " ".join(self._native.get_error().split())[:300]
            self._compiled.failed()
            raise GrammarError("grammar", f"the parser failed: {text}")

    def _note(self, token: int) -> None:
        if self._json is not None:
            self._past.append(self._json.copy())
            self._json.add(self._text(token))
            self._json.keys.repeated = False  # where nothing else was left

    def _text(self, token: int) -> bytes:
        return b"" if token in self.vocabulary.eos_ids else self.vocabulary.text_of(token)

    def _starts(self, runs: _Runs) -> Mask:
        return self.vocabulary.numbers if runs.kind == 1 else self.vocabulary.spaces

    def _narrowed(self, mask: Mask) -> Mask:
        """The mask without tokens that would extend a number or white space that is too long, or repeat a key of an
        object, if any other is left."""
        if self._json is None:
            return mask
        if self._json.runs.too_long:
            rest = mask & ~self._starts(self._json.runs)
            mask = rest if rest.any() else mask
        refused = np.fromiter(self._json.keys.refused(self.vocabulary.keys), np.int64)
        if len(refused):
            rest = mask.copy()
            np.bitwise_and.at(rest, refused // 32, ~np.left_shift(np.uint32(1), (refused % 32).astype(np.uint32)))
            mask = rest if rest.any() else mask
        return mask


def _bit(mask: Mask, token: int) -> bool:
    return bool(mask[token // 32] >> np.uint32(token % 32) & np.uint32(1))
