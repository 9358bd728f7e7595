"""The one token loop. Everything that generates submits requests here and lets the engine take steps.

A step takes tokens of many requests through the model at once: `schedule` says whose, the decoder computes logits,
and each request whose tokens are all computed gets its next one. The result of a request does not depend on what else
was in its steps, how its prompt was cut, or whether it was preempted.
"""

import time
from collections import deque
from collections.abc import Iterator
from itertools import count, islice
from threading import Lock

import numpy as np

from weft.errors import BackendError, BusyError, InputError, TooLongError
from weft.generate.decoder import Decoder, Detokenizer
from weft.generate.interrupts import InterruptsHeld
from weft.generate.request import Request, fit
from weft.generate.result import Generation, Piece
from weft.generate.schedule import State, Work, schedule
from weft.generate.sequence import Sequence
from weft.nn.step import Step
from weft.runtime.pages import PAGE_TOKENS


class Engine:
    """Requests over one decoder: at most `max_running` in a step of at most `step_tokens` tokens, oldest first.

    Any thread may submit, step and cancel: one works at a time, the others wait. Whoever wants a result drives the
    engine, and with it everybody's requests, so a program without threads needs no loop of its own.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Detokenizer | None = None,
        *,
        step_tokens: int = 512,
        max_running: int = 64,
        max_waiting: int = 256,
    ) -> None:
        for name, value in (("step_tokens", step_tokens), ("max_running", max_running), ("max_waiting", max_waiting)):
            if type(value) is not int or value < 1:
                raise InputError(f"[engine] {name} is {value!r}; give a whole number of at least 1")
        pages = min(decoder.pages.count, decoder.max_pages)
        self._stored = pages * PAGE_TOKENS + 1  # tokens of one request: the last is never computed and needs no place
        self._context = min(decoder.max_context, self._stored)
        if self._context < 2:
            raise InputError(
                f"[engine] no room for a token: max_context {decoder.max_context}, {pages} pages; give more"
            )
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._step_tokens = step_tokens
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._lock = Lock()
        self._keys = count()
        self._sequences: dict[int, Sequence] = {}  # unfinished, oldest first
        self._cancelled: deque[Sequence] = deque()  # to be ended by whoever has the lock
        self.preemptions = 0

    @property
    def running(self) -> int:
        """Requests that hold pages."""
        return sum(bool(s.pages) for s in list(self._sequences.values()))

    @property
    def waiting(self) -> int:
        """Requests that hold none: new ones and preempted ones."""
        return len(self._sequences) - self.running

    def submit(self, request: Request) -> "Handle":
        """Queue `request`; an error where it can never run, BusyError where too many wait. Nothing is computed yet."""
        prompt, max_tokens = self._admit(request)
        with self._lock:
            with InterruptsHeld():
                self._end_cancelled()
            if self.waiting >= self._max_waiting:
                raise BusyError(f"[engine] {self.waiting} requests wait, which is the most; try again later")
            sequence = Sequence(
                next(self._keys),
                request,
                prompt,
                max_tokens=max_tokens,
                max_pages=self._decoder.max_pages,
                stop_ids=frozenset(request.stop_ids) | (frozenset() if request.ignore_eos else self._decoder.eos_ids),
                text=self._tokenizer.stream() if self._tokenizer else None,
                text_ids=self._tokenizer.vocab_size if self._tokenizer else 0,
                now=time.perf_counter(),
            )
            self._sequences[sequence.key] = sequence
        return Handle(self, sequence)

    def _admit(self, request: Request) -> tuple[tuple[int, ...], int]:
        """The prompt as it will run and the most tokens that may follow."""
        for name, ids in (("prompt", request.prompt), ("stop_ids", request.stop_ids)):
            if ids and not 0 <= min(ids) <= max(ids) < self._decoder.vocab_size:
                bad = next(i for i in ids if not 0 <= i < self._decoder.vocab_size)
                raise InputError(
                    f"[engine] {name} has token id {bad}; the model has 0 to {self._decoder.vocab_size - 1}"
                )
        if request.stop and self._tokenizer is None:
            raise InputError("[engine] stop strings need a tokenizer, this engine has none; give stop_ids")
        limited_by = "the page pool" if self._stored < self._decoder.max_context else "the context"
        prompt = fit(request, self._context, limited_by)
        wanted = min(request.max_tokens or self._context, self._decoder.max_context - len(prompt))
        if request.max_tokens and len(prompt) + wanted > self._stored:
            raise TooLongError(
                f"[engine] {len(prompt)} prompt tokens and max_tokens {request.max_tokens} do not fit: there are pages "
                f"for {self._stored} tokens; ask for fewer, or give the decoder more pages",
                length=len(prompt) + wanted,
                limit=self._stored,
            )
        return prompt, min(wanted, self._context - len(prompt))

    def step(self) -> bool:
        """Run one step; False when there was nothing to do.

        What goes wrong with requests is raised by their handles, not here. An interrupt while the model computes
        loses nothing: what was written by then is beyond `computed`, and the next step writes it again.
        """
        with self._lock, InterruptsHeld() as held:
            self._end_cancelled()
            work = self._prepare()
            sequences = [self._sequences[w.key] for w in work]
            if work:
                try:
                    with held.released():
                        logits = self._run(work, sequences)
                except Exception as error:
                    for sequence in sequences:
                        self._fail(sequence, error)
                else:
                    self._commit(work, sequences, logits)
                self._end_cancelled()
        return bool(work)

    def _prepare(self) -> tuple[Work, ...]:
        """Schedule the next step, and move the pages as the plan says."""
        pool, now = self._decoder.pages, time.perf_counter()
        oldest = islice(self._sequences.values(), self._max_running)
        plan = schedule(State([s.progress() for s in oldest], pool.free_count), self._step_tokens)
        for key in plan.preempted:
            pool.release(self._sequences[key].drop())
            self.preemptions += 1
        for item in plan.work:
            sequence = self._sequences[item.key]
            if item.new_pages:
                sequence.grow(pool.take(item.new_pages))
            sequence.start(now)
        if self._sequences and not plan.work:
            raise BackendError(
                f"[engine] no request can go on: {pool.free_count} of {pool.count} pages are free and the others are "
                "held outside this engine; release them"
            )
        return plan.work

    def _run(self, work: tuple[Work, ...], sequences: list[Sequence]) -> np.ndarray:
        """Logits [rows, vocab] of the requests that this step completes, in the order of `work`."""
        ids: list[int] = []
        positions: list[int] = []
        segments = [0]
        rows: list[int] = []
        for item, sequence in zip(work, sequences):
            ids += sequence.tokens[item.start : item.stop]
            positions += range(item.start, item.stop)
            segments.append(len(ids))
            if item.stop == len(sequence.tokens):
                rows.append(len(ids) - 1)
        table = np.stack([sequence.table for sequence in sequences])
        step = Step(_int32(ids), _int32(positions), _int32(segments), _int32(rows), pages=table)
        logits = self._decoder.run(step)
        expected = (len(rows), self._decoder.vocab_size)
        if logits.shape != expected or logits.dtype != np.float32:
            raise BackendError(f"[engine] the decoder returned {logits.dtype} {logits.shape}, not float32 {expected}")
        return logits

    def _commit(self, work: tuple[Work, ...], sequences: list[Sequence], logits: np.ndarray) -> None:
        """Note what was computed, and give every completed request its next token."""
        finite = np.isfinite(logits.max(axis=1)) & np.isfinite(logits.min(axis=1))  # a NaN is both
        rows = iter(zip(logits, finite.tolist()))
        now = time.perf_counter()
        for item, sequence in zip(work, sequences):
            sequence.computed = item.stop
            if item.stop < len(sequence.tokens):
                continue
            row, row_is_finite = next(rows)
            try:
                if not row_is_finite:
                    raise _not_finite(sequence, row)
                sequence.accept(sequence.sampler.choose(row, sequence.generated), now)
            except Exception as error:
                self._fail(sequence, error)
            if sequence.finished:
                self._retire(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        sequence.error = error
        self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        """A finished request leaves; its pages are free again."""
        if self._sequences.pop(sequence.key, None):
            self._decoder.pages.release(sequence.drop())

    def _end_cancelled(self) -> None:
        while self._cancelled:
            sequence = self._cancelled.popleft()
            if sequence.finished:
                continue
            try:
                sequence.finish("cancelled", time.perf_counter())
            except Exception as error:  # of the tokenizer; the pages are freed all the same
                sequence.error = error
            self._retire(sequence)

    def _cancel(self, sequence: Sequence) -> None:
        """End `sequence` now, or at the end of the step that is running.

        Never waits: a forgotten iterator is closed by the garbage collector at any time, even inside a step.
        """
        self._cancelled.append(sequence)
        if self._lock.acquire(blocking=False):
            try:
                with InterruptsHeld():
                    self._end_cancelled()
            finally:
                self._lock.release()


def _int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def _not_finite(sequence: Sequence, logits: np.ndarray) -> BackendError:
    bad = int(np.flatnonzero(~np.isfinite(logits))[0])
    return BackendError(
        f"[engine] request {sequence.key}: the logits after token {len(sequence.tokens) - 1} are not finite: "
        f"{logits[bad]} for id {bad}; the weights or the backend are at fault"
    )


class Handle:
    """One submitted request. Iterate over it for pieces, or ask for the result; both drive the engine.

    Leaving the iteration early, also by an exception or Ctrl-C, cancels the request. A program that drives the engine
    itself fetches pieces with `drain`.
    """

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence

    @property
    def key(self) -> int:
        """The number by which errors name the request: how many were submitted before it."""
        return self._sequence.key

    @property
    def finished(self) -> bool:
        """Whether the request has ended, well or with an error; pieces may still be there to fetch."""
        return self._sequence.finished

    def __iter__(self) -> Iterator[Piece]:
        try:
            while True:
                finished = self.finished  # asked first: what comes after it is the rest
                yield from self.drain()
                if finished:
                    break
                self._engine.step()
        finally:
            self.cancel()
        if self._sequence.error is not None:
            raise self._sequence.error

    def drain(self) -> Iterator[Piece]:
        """The pieces that are there and were not fetched yet; drives nothing."""
        while self._sequence.pieces:
            yield self._sequence.pieces.popleft()

    def cancel(self) -> None:
        """End the request with what it has, at the latest when the running step ends; nothing if it has ended."""
        if not self.finished:
            self._engine._cancel(self._sequence)

    def result(self) -> Generation:
        """The whole result, when the request has ended; raises what ended it where that was an error."""
        for _ in self:
            pass
        assert self._sequence.result is not None, "the iteration ended before the request"
        return self._sequence.result
