"""Admission: whether a request can run at all, and with which limits. Nothing here changes the engine."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, TooLongError, UnsupportedError
from weft.frozen import frozen
from weft.generate.choice.reasoning import Reasoning
from weft.generate.choice.sampling import fresh_seed
from weft.generate.decoder import Decoder, Detokenizer, TextStream
from weft.generate.request import Request, fit
from weft.generate.sequence import Limits, Sequence
from weft.runtime.paged.pages import PAGE_TOKENS

if TYPE_CHECKING:
    from weft.generate.grammar import Compiled, Vocabulary

MARKS = ("<think>", "</think>")


class Admission:
    """What of a request can be settled when it is submitted."""

    def __init__(self, decoder: Decoder, tokenizer: Detokenizer | None) -> None:
        pages = min(decoder.pages.count, decoder.max_pages)
        self._stored = pages * PAGE_TOKENS + 1  # tokens of one request: the last is never computed and needs no place
        self._context = min(decoder.max_context, self._stored)
        if self._context < 2:
            raise InputError(
                f"[engine] no room for a token: max_context {decoder.max_context}, {pages} pages; give more"
            )
        if decoder.slots is not None and decoder.slots.most_running < 1:
            raise InputError(f"[engine] no room for recurrent state: {decoder.slots.count} slots; give at least 2")
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._vocabulary: Vocabulary | None = None  # made for the first grammar

    def admit(self, request: Request) -> Admitted:
        """The request with its limits; an error where it can never run."""
        self._check_ids(request)
        if request.stop and self._tokenizer is None:
            raise InputError("[engine] stop strings need a tokenizer, this engine has none; give stop_ids")
        prompt, max_tokens = self._sizes(request)
        eos = frozenset() if request.ignore_eos else self._decoder.eos_ids
        limits = Limits(
            max_tokens=max_tokens,
            max_pages=self._decoder.max_pages,
            vocab_size=self._decoder.vocab_size,
            stop_ids=frozenset(request.stop_ids) | eos,
            text_ids=self._tokenizer.vocab_size if self._tokenizer else 0,
        )
        compiled = None if request.grammar is None else self._compiled(request.grammar)
        return Admitted(self, request, prompt, limits, compiled)

    def _compiled(self, grammar: Any) -> Compiled:
        """The grammar, ready for this model's vocabulary."""
        from weft.generate.grammar import Grammar, Vocabulary

        if not isinstance(grammar, Grammar):
            raise InputError(f"[engine] grammar is {grammar!r:.80}; give a weft.Grammar")
        if self._tokenizer is None:
            raise InputError("[engine] a grammar needs a tokenizer, this engine has none")
        if self._vocabulary is None:
            tokenizer: Any = self._tokenizer  # a grammar asks for more of it than the engine does
            self._vocabulary = Vocabulary(tokenizer, self._decoder.vocab_size, sorted(self._decoder.eos_ids))
        return grammar.compile(self._vocabulary)

    def _check_ids(self, request: Request) -> None:
        bias = tuple(request.sampling.logit_bias)
        for name, ids in (("prompt", request.prompt), ("stop_ids", request.stop_ids), ("logit_bias", bias)):
            if ids and not 0 <= min(ids) <= max(ids) < self._decoder.vocab_size:
                bad = next(i for i in ids if not 0 <= i < self._decoder.vocab_size)
                raise InputError(
                    f"[engine] {name} has token id {bad}; the model has 0 to {self._decoder.vocab_size - 1}"
                )

    def _sizes(self, request: Request) -> tuple[tuple[int, ...], int]:
        """The prompt as it will run and the most tokens that may follow."""
        limited_by = "the page pool" if self._stored < self._decoder.max_context else "the context"
        prompt = fit(request, self._context, limited_by)
        asked = self._context if request.max_tokens is None else request.max_tokens
        wanted = min(asked, self._decoder.max_context - len(prompt))
        if request.max_tokens and len(prompt) + wanted > self._stored:
            raise TooLongError(
                f"[engine] {len(prompt)} prompt tokens and max_tokens {request.max_tokens} do not fit: there are pages "
                f"for {self._stored} tokens; ask for fewer, or give the decoder more pages",
                length=len(prompt) + wanted,
                limit=self._stored,
            )
        return prompt, min(wanted, self._context - len(prompt))

    def stream(self, request: Request) -> TextStream | None:
        return self._tokenizer.stream(skip_special=not request.show_special) if self._tokenizer else None

    def reasoning(self, request: Request) -> Reasoning | None:
        """The watch over a request's reasoning: where it has a budget, and where a grammar is to wait for its end."""
        if request.reasoning_budget is None and request.grammar is None:
            return None
        open, close = (self._tokenizer.id(mark) if self._tokenizer else None for mark in MARKS)
        if open is None or close is None:
            if request.reasoning_budget is None:
                return None
            raise UnsupportedError("[engine] reasoning_budget: the model's vocabulary has no <think> and </think>")
        budget = math.inf if request.reasoning_budget is None else request.reasoning_budget
        return Reasoning(budget, open, close, request.prompt)

    def adapter_identity(self, name: str | None) -> str:
        """What an adapter is called where pages of the state are told apart."""
        return "" if name is None else identity_of(self._decoder.adapters.get(name))

    def hold_adapter(self, name: str | None) -> Any:
        """The adapter's version of now, which stays until the request leaves."""
        if name is None:
            return None
        if self._decoder.adapters is None:
            raise UnsupportedError(f"[engine] adapter {name!r:.80}: this decoder takes none")
        return self._decoder.adapters.hold(name)

    def leave(self, sequence: Sequence) -> None:
        """A request has ended: give back what was lent to it."""
        if sequence.adapter is not None:
            self._decoder.adapters.release(sequence.adapter)
            sequence.adapter = None


def identity_of(adapter: Any) -> str:
    """By what it computes: a name may stand for something else tomorrow."""
    return "" if adapter is None else adapter.digest.hex()


@frozen
class Admitted:
    """A request that can run."""

    admission: Admission
    request: Request
    prompt: tuple[int, ...]
    limits: Limits
    compiled: Compiled | None

    def sequence(self, key: int, index: int) -> Sequence:
        """Answer `index` of the request."""
        asked = self.request.sampling.seed
        seed = fresh_seed() if asked is None else (asked + index) % 2**64
        sequence = Sequence(
            key,
            self.request,
            self.prompt,
            self.limits,
            index=index,
            seed=seed,
            text=self.admission.stream(self.request),
            now=time.perf_counter(),
        )
        sequence.adapter = self.admission.hold_adapter(self.request.adapter)
        if self.compiled is not None:
            sequence.matcher = self.compiled.start()
        sequence.reasoning = self.admission.reasoning(self.request)
        return sequence
