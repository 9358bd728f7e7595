"""The state of one request in the engine: its tokens, its pages, its text, its clock."""

from collections import deque

import numpy as np

from weft.generate.decoder import TextStream
from weft.generate.request import Request
from weft.generate.result import FinishReason, Generation, Piece, Timings, Usage
from weft.generate.sampling import Sampler
from weft.generate.schedule import Progress
from weft.generate.stops import StopText


class Sequence:
    """One request from submission to its end. The engine alone changes it, under its lock."""

    def __init__(
        self,
        key: int,
        request: Request,
        prompt: tuple[int, ...],
        *,
        max_tokens: int,
        max_pages: int,
        stop_ids: frozenset[int],
        text: TextStream | None,
        text_ids: int,
        now: float,
    ) -> None:
        self.key = key
        self.tokens = list(prompt)  # the prompt and what was generated
        self.computed = 0  # the first so many of them are in the state; whatever the pages hold beyond is scratch
        self.pages: list[int] = []
        self.table = np.zeros(max_pages, np.int32)  # the pages again, as a row of the page table
        self.sampler = Sampler(request.sampling, prompt)
        self.pieces: deque[Piece] = deque()  # not yet fetched
        self.result: Generation | None = None
        self.error: Exception | None = None
        self._prompt_tokens = len(prompt)
        self._truncated = len(request.prompt) - len(prompt)
        self._max_tokens = max_tokens
        self._stop_ids = stop_ids
        self._stream = text
        self._text_ids = text_ids  # ids below have text
        self._stops = StopText(request.stop)
        self._texts: list[str] = []
        self._submitted = now
        self._started: float | None = None
        self._first: float | None = None

    @property
    def finished(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def generated(self) -> int:
        return len(self.tokens) - self._prompt_tokens

    def progress(self) -> Progress:
        return Progress(self.key, len(self.tokens), self.computed, len(self.pages))

    def start(self, now: float) -> None:
        """The first step of the request begins; later calls change nothing."""
        if self._started is None:
            self._started = now

    def grow(self, pages: list[int]) -> None:
        """Append `pages` to those held."""
        held = len(self.pages)
        self.table[held : held + len(pages)] = pages
        self.pages += pages

    def drop(self) -> list[int]:
        """Forget the computed state; the pages that were held are the caller's to release."""
        pages, self.pages, self.computed = self.pages, [], 0
        self.table[: len(pages)] = 0
        return pages

    def accept(self, token: int, now: float) -> None:
        """`token` follows: add it to the tokens and the text, and end the request where a stop rule says so."""
        if self._first is None:
            self._first = now
        if token in self._stop_ids:
            self.finish("stop", now)
            return
        self.tokens.append(token)
        self.sampler.note(token)
        text = self._stops.add(self._stream.add(token)) if self._stream and token < self._text_ids else ""
        if self._stops.stopped:
            self._end(text, (token,), "stop", now)
        elif self.generated == self._max_tokens:
            self.finish("length", now, text, (token,))
        else:
            self._add(Piece(text, (token,)))

    def finish(self, reason: FinishReason, now: float, text: str = "", tokens: tuple[int, ...] = ()) -> None:
        """End the request: what was held back comes out, after the `text` and `tokens` of the last step."""
        if self._stream:
            text += self._stops.add(self._stream.finish())
        if self._stops.stopped:  # the last bytes completed a stop string
            reason = "stop"
        self._end(text + self._stops.finish(), tokens, reason, now)

    def _end(self, text: str, tokens: tuple[int, ...], reason: FinishReason, now: float) -> None:
        self._add(Piece(text, tokens, reason))
        self.result = Generation(
            text="".join(self._texts),
            tokens=tuple(self.tokens[self._prompt_tokens :]),
            finish_reason=reason,
            usage=Usage(self._prompt_tokens, self.generated, self._truncated),
            timings=self._timings(now),
            seed=self.sampler.seed,
        )

    def _add(self, piece: Piece) -> None:
        self._texts.append(piece.text)
        self.pieces.append(piece)

    def _timings(self, now: float) -> Timings:
        if self._started is None or self._first is None:
            return Timings(0.0, 0.0, 0.0, 0.0, 0.0)
        prompt_s, predicted_s = self._first - self._started, now - self._first
        return Timings(
            prompt_ms=prompt_s * 1e3,
            prompt_per_second=self._prompt_tokens / prompt_s if prompt_s else 0.0,
            predicted_ms=predicted_s * 1e3,
            predicted_per_second=max(self.generated - 1, 0) / predicted_s if predicted_s else 0.0,
            first_token_ms=(self._first - self._submitted) * 1e3,
        )
