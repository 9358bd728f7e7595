"""Admission: checks that a request can run and derives its limits. It does not change the engine."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, TooLongError, UnsupportedError
from weft.frozen import frozen
from weft.generate.choice.reasoning import Reasoning
from weft.generate.choice.sampling import fresh_seed
from weft.generate.decoder import Decoder, Detokenizer, TextStream
from weft.generate.request import Request, fit
from weft.generate.sequence import Limits, Sequence
from weft.runtime.paged.holding import Holding
from weft.runtime.paged.pages import PAGE_TOKENS

if TYPE_CHECKING:
    from weft.generate.grammar import Compiled, Vocabulary

MARKS = ("<think>", "</think>")
SEES = "use a model that reads pictures: `weft list --models`"


class Admission:
    """Checks a request when it is submitted, and derives its limits."""

    def __init__(self, decoder: Decoder, tokenizer: Detokenizer | None) -> None:
        pages = min(decoder.pages.count, decoder.max_pages)
        self._stored = (
            pages * PAGE_TOKENS + 1
        )  # most tokens of one request: the last is never computed and needs no room
        self._context = min(decoder.max_context, self._stored)
        if self._context < 2:
            raise InputError(
                "engine",
                f"a context of {decoder.max_context} tokens and {pages} pages leaves no room for a token",
                advice="load the model with a longer context or a larger KV cache",
            )
        if decoder.slots is not None and decoder.slots.most_running < 1:
            raise InputError("engine", f"recurrent state needs at least 2 slots: got {decoder.slots.count}")
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._vocabulary: Vocabulary | None = None  # made when the first grammar comes
        self._making = Lock()

    def admit(self, request: Request) -> Admitted:
        """The request with its limits; raises an error if it can never run."""
        self._check_ids(request)
        self._check_pictures(request)
        if request.stop and self._tokenizer is None:
            raise InputError(
                "engine", "needs a tokenizer, which this engine lacks", field="stop", advice="give stop_ids"
            )
        prompt, max_tokens = self._sizes(request)
        eos = frozenset() if request.ignore_eos else self._decoder.eos_ids
        limits = Limits(
            max_tokens=max_tokens,
            vocab_size=self._decoder.vocab_size,
            stop_ids=frozenset(request.stop_ids) | eos,
            text_ids=self._tokenizer.vocab_size if self._tokenizer else 0,
        )
        compiled = None if request.grammar is None else self._compiled(request.grammar)
        return Admitted(self, request, prompt, limits, compiled)

    def holding(self) -> Holding:
        """An empty holding of pages and slots, for a new request."""
        return Holding(self._decoder.pages, self._decoder.slots, self._decoder.max_pages)

    def _compiled(self, grammar: Any) -> Compiled:
        """The grammar compiled for this model's vocabulary."""
        from weft.generate.grammar import Grammar, Vocabulary

        if not isinstance(grammar, Grammar):
            raise InputError("engine", "must be a weft.Grammar", field="grammar", given=grammar)
        if self._tokenizer is None:
            raise InputError("engine", "needs a tokenizer, which this engine lacks", field="grammar")
        with self._making:
            if self._vocabulary is None:
                tokenizer: Any = self._tokenizer  # grammars use more of it than the Detokenizer protocol has
                self._vocabulary = Vocabulary(tokenizer, self._decoder.vocab_size, sorted(self._decoder.eos_ids))
        return grammar.compile(self._vocabulary)

    def _check_ids(self, request: Request) -> None:
        bias = tuple(request.sampling.logit_bias)
        for name, ids in (("prompt", request.prompt), ("stop_ids", request.stop_ids), ("logit_bias", bias)):
            if ids and not 0 <= min(ids) <= max(ids) < self._decoder.vocab_size:
                bad = next(i for i in ids if not 0 <= i < self._decoder.vocab_size)
                limit = f"has token id {bad}; the model's ids are 0 to {self._decoder.vocab_size - 1}"
                raise InputError("engine", limit, field=name)

    def _check_pictures(self, request: Request) -> None:
        """Every place of a picture has one, and only such places have; the vectors are of the model's size."""
        token = getattr(self._decoder, "picture_token", None)
        if request.pictures:
            size = getattr(self._decoder, "vector_size", 0)
            if not size or token is None:
                raise UnsupportedError("engine", "this model does not see", field="pictures", advice=SEES)
            wrong = next((one for one in request.pictures if one.vectors.shape[1] != size), None)
            if wrong is not None:
                what = f"must be vectors of {size} numbers, not {wrong.vectors.shape[1]}"
                raise InputError("engine", what, field="pictures")
        if token is None or (not request.pictures and token not in request.prompt):
            return
        seen = {place for one in request.pictures for place in range(one.at, one.end)}
        odd = next((i for i, id in enumerate(request.prompt) if (id == token) != (i in seen)), None)
        if odd is not None:
            what = f"has token {request.prompt[odd]} at place {odd}, where {'a' if odd in seen else 'no'} picture is"
            raise InputError("engine", what, field="prompt", advice=f"pictures are tokens of id {token}, and no others")

    def _sizes(self, request: Request) -> tuple[tuple[int, ...], int]:
        """The prompt after truncation, and the most tokens that may be generated."""
        limited_by = "the page pool" if self._stored < self._decoder.max_context else "the context"
        prompt = fit(request, self._context, limited_by)
        asked = self._context if request.max_tokens is None else request.max_tokens
        wanted = min(asked, self._decoder.max_context - len(prompt))
        if request.max_tokens and len(prompt) + wanted > self._stored:
            raise TooLongError(
                "engine",
                f"is {request.max_tokens}; with {len(prompt)} prompt tokens that exceeds the KV cache, which has pages "
                f"for {self._stored} tokens",
                advice="ask for fewer, or load the model with a larger KV cache",
                field="max_tokens",
                index=None,
                length=len(prompt) + wanted,
                limit=self._stored,
            )
        most = min(wanted, self._context - len(prompt))
        if request.min_tokens > most:
            raise TooLongError(
                "engine",
                f"is {request.min_tokens}; with {len(prompt)} prompt tokens {limited_by} leaves room for {most}",
                advice="ask for fewer, or shorten the prompt",
                field="min_tokens",
                index=None,
                length=len(prompt) + request.min_tokens,
                limit=self._context,
            )
        return prompt, most

    def stream(self, request: Request) -> TextStream | None:
        return self._tokenizer.stream(skip_special=not request.show_special) if self._tokenizer else None

    def reasoning(self, request: Request) -> Reasoning | None:
        """Tracks a request's reasoning for its budget, or for a grammar that applies after it; None without either."""
        if request.reasoning_budget is None and request.grammar is None:
            return None
        open, close = (self._tokenizer.id(mark) if self._tokenizer else None for mark in MARKS)
        if open is None or close is None:
            if request.reasoning_budget is None:
                return None
            lacking = "needs <think> and </think>, which are not in the model's vocabulary"
            raise UnsupportedError("engine", lacking, field="reasoning_budget")
        budget = math.inf if request.reasoning_budget is None else request.reasoning_budget
        return Reasoning(budget, open, close, request.prompt)

    def adapter_identity(self, name: str | None) -> str:
        """The adapter's part of the key under which KV pages are shared; empty without an adapter."""
        name = self._own(name)
        return "" if name is None else identity_of(self._decoder.adapters.get(name))

    def hold_adapter(self, name: str | None) -> Any:
        """The adapter's current version, held until the request ends."""
        name = self._own(name)
        if name is None:
            return None
        if self._decoder.adapters is None:
            raise UnsupportedError("engine", "is not supported by this decoder", field="adapter", given=name)
        return self._decoder.adapters.hold(name)

    def _own(self, name: str | None) -> str | None:
        """The adapter that a request names, or else the one that belongs to the model."""
        return name if name is not None else getattr(self._decoder, "own_adapter", None)

    def leave(self, sequence: Sequence) -> None:
        """Release the adapter of a request that has ended."""
        if sequence.adapter is not None:
            self._decoder.adapters.release(sequence.adapter)
            sequence.adapter = None


def identity_of(adapter: Any) -> str:
    """The digest of an adapter's weights: its name may later mean another adapter."""
    return "" if adapter is None else adapter.digest.hex()


@frozen
class Admitted:
    """A request that can run."""

    admission: Admission
    request: Request
    prompt: tuple[int, ...]
    limits: Limits
    compiled: Compiled | None

    def sequences(self, keys: Iterator[int]) -> list[Sequence]:
        """All answers of the request; where one fails, as when its adapter is gone, those before it hold nothing."""
        made: list[Sequence] = []
        try:
            for index in range(self.request.n):
                made.append(self.sequence(next(keys), index))
        except BaseException:
            for sequence in made:
                self.admission.leave(sequence)
            raise
        return made

    def sequence(self, key: int, index: int) -> Sequence:
        """Answer `index` of the request."""
        asked = self.request.sampling.seed
        seed = fresh_seed() if asked is None else (asked + index) % 2**64
        sequence = Sequence(
            key,
            self.request,
            self.prompt,
            self.limits,
            self.admission.holding(),
            index=index,
            seed=seed,
            text=self.admission.stream(self.request),
            now=time.perf_counter(),
        )
        if self.compiled is not None:
            sequence.matcher = self.compiled.start()
        sequence.reasoning = self.admission.reasoning(self.request)
        sequence.adapter = self.admission.hold_adapter(self.request.adapter)  # last: what fails before it holds nothing
        return sequence
