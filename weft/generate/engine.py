"""The one token loop. Everything that generates text submits requests here and lets the engine run steps.

A step runs tokens of many requests through the model at once: `schedule` chooses them, the decoder computes logits,
and each request whose tokens are all computed gets its next one. The result of a request does not depend on the other
requests in its steps, on how its prompt was split, on shared pages, on drafts, or on preemption.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeGuard, cast

import numpy as np

from weft.errors import BackendError, BusyError, InputError
from weft.generate.admission import Admission, identity_of
from weft.generate.batch.drafting import Drafting
from weft.generate.batch.planned import decided_by, step_of
from weft.generate.batch.sharing import Sharing
from weft.generate.choice.costs import StepCosts, parts_of
from weft.generate.decoder import Decoder, Detokenizer
from weft.generate.handle import Handle
from weft.generate.interrupts import InterruptsHeld
from weft.generate.request import Request
from weft.generate.result import Piece, Stats
from weft.generate.schedule import State, Work, schedule
from weft.generate.sequence import Choosing, Sequence
from weft.runtime.paged.pages import pages_for
from weft.runtime.paged.prefix import HASH_BITS, Node
from weft.runtime.paged.store import DEFAULT_LIMIT

if TYPE_CHECKING:
    from weft.generate.model import Model
    from weft.runtime.decoder import TopRows

ALONE_STEPS = 4  # a responsive engine computes prompts for this many times as long as a step of one row takes
FIRST_TOKENS = 64  # of its first steps
MOST_AHEAD = 8192  # tokens that a tenant can be ahead of another: what it had before that is forgotten
LEAST_PATIENCE_S = 0.002  # for grammars to choose tokens, beside half the time of the step
BUSY_S = 0.01  # until the engine looks for new requests, while it waits for a grammar


class Engine:
    """Requests over one decoder: at most `max_running` in a step of at most `step_tokens` tokens.

    Given a model, it uses the model's decoder and tokenizer. The model keeps its own engine until
    `model.use_engine(engine)`; only one engine of a decoder may run at a time.

    Any thread may submit, step and cancel; steps run one at a time. A caller that waits for a result drives the engine,
    and with it all requests, so a program without threads needs no loop of its own.

    Pages of the KV cache are shared between requests with the same prefix unless `prefix_cache` is False; with
    `prefix_dir` they are also stored there (at most `prefix_bytes`), for other processes and the next start.
    `speculate` allows speculative decoding where it pays: with repeated text, and with `draft`: a smaller model of the
    same vocabulary, or "mtp", the model's own head for multi-token prediction, the default where it has one; "none"
    for neither. `responsive`, for servers, bounds the time of steps also while nobody else runs: a request that
    comes then need not wait for a large step. `hash_bits` is for tests of collisions.
    """

    def __init__(
        self,
        decoder: Decoder | Model,
        tokenizer: Detokenizer | None = None,
        *,
        step_tokens: int = 512,
        max_running: int = 64,
        max_waiting: int = 256,
        prefix_cache: bool = True,
        prefix_dir: str | Path | None = None,
        prefix_bytes: int = DEFAULT_LIMIT,
        speculate: bool = True,
        responsive: bool = False,
        draft: Decoder | Model | str | None = None,
        hash_bits: int = HASH_BITS,
    ) -> None:
        for name, value in (("step_tokens", step_tokens), ("max_running", max_running), ("max_waiting", max_waiting)):
            if type(value) is not int or value < 1:
                raise InputError("engine", "must be a whole number of at least 1", field=name, given=value)
        self._decoder = _decoder_of(decoder)
        if _is_model(decoder):
            tokenizer = decoder.decoder.tokenizer if decoder.decoder.checkpoint.make_tokenizer else None
        self._admission = Admission(self._decoder, tokenizer)
        self._step_tokens = step_tokens
        self._max_running = max_running
        self._max_waiting = max_waiting
        if self._decoder.slots is not None:
            self._max_running = min(max_running, self._decoder.slots.most_running)
        self._sharing = Sharing(self._decoder, prefix_dir, prefix_bytes=prefix_bytes, hash_bits=hash_bits)
        self._share = prefix_cache
        self._responsive = responsive
        self._costs = StepCosts()
        drafter = draft if draft is None or isinstance(draft, str) else _decoder_of(draft)
        self._drafting = Drafting(drafter, self._decoder, self._costs, speculate=speculate)
        self._head = self._drafting.head
        self._top = getattr(self._decoder, "top", 0) if self._head is None else 0
        self._lock = Lock()
        self._keys = count()
        self._inbox: deque[Sequence] = deque()  # submitted; the holder of the lock takes them in
        self._sequences: dict[int, Sequence] = {}  # unfinished, oldest first
        self._entered: deque[Sequence] | None = None  # for __iter__: requests taken in since its last step
        self._cancelled: deque[Sequence] = deque()  # to be ended by the holder of the lock
        self._served: dict[str, int] = {}  # tokens computed for each tenant that has requests
        self._counts = dict.fromkeys(("steps", "prompt", "cached", "generated", "drafted", "accepted"), 0)
        self.preemptions = 0

    def runs(self, decoder: Decoder) -> bool:
        """Whether this engine runs `decoder`."""
        return self._decoder is decoder

    @property
    def running(self) -> int:
        """Requests that hold pages."""
        return sum(bool(s.pages) for s in list(self._sequences.values()))

    @property
    def waiting(self) -> int:
        """Requests that hold no pages: new and preempted ones."""
        return len(self._inbox) + sum(not s.pages for s in list(self._sequences.values()))

    @property
    def has_room(self) -> bool:
        """Whether a request submitted now would start within a step or two."""
        return self.waiting < min(self._max_waiting, self._max_running)

    def stats(self) -> Stats:
        """The engine's current load and its counters."""
        pool, slots, counts = self._decoder.pages, self._decoder.slots, self._counts
        experts = self._decoder.expert_counts
        return Stats(
            running=self.running,
            waiting=self.waiting,
            pages=pool.count,
            free_pages=pool.free_count,
            kept_pages=pool.kept_count,
            slots=0 if slots is None else slots.count,
            free_slots=0 if slots is None else slots.free_count,
            checkpoints=0 if slots is None else slots.checkpoints,
            checkpoint_bytes=0 if slots is None else slots.checkpoints * self._decoder.slot_bytes,
            steps=counts["steps"],
            prompt_tokens=counts["prompt"],
            cached_tokens=counts["cached"],
            generated_tokens=counts["generated"],
            drafted_tokens=counts["drafted"],
            accepted_tokens=counts["accepted"],
            preemptions=self.preemptions,
            expert_hits=experts.get("hits", 0),
            expert_misses=experts.get("misses", 0),
            expert_bytes=experts.get("bytes", 0),
        )

    def submit(self, request: Request) -> Handle:
        """Queue `request` and compute nothing yet; BusyError if the queue is full, other errors if it can never run.

        Never waits for a step that is running.
        """
        admitted = self._admission.admit(request)
        if self._cancelled and self._lock.acquire(blocking=False):  # this makes room in the queue
            try:
                with InterruptsHeld():
                    self._end_cancelled()
            finally:
                self._lock.release()
        waiting = self.waiting
        if waiting + request.n > max(self._max_waiting, request.n):
            raise BusyError("engine", f"the queue is full: {waiting} requests wait", advice="try again later")
        sequences = admitted.sequences(self._keys)
        self._inbox.extend(sequences)  # all its answers are queued, or none
        return Handle(self, sequences)

    def cancel(self, handle: Handle) -> None:
        """End a request with the text so far, at the latest when the running step ends."""
        handle.cancel()

    def __iter__(self) -> Iterator[tuple[int, Piece]]:
        """Drive all requests to their ends: the key of an answer and a piece of it, as they come.

        The handle of a request raises its error. Pieces that are returned here are no longer in the handles.
        """
        known: dict[int, Sequence] = dict(self._sequences)
        self._entered = deque()
        while True:
            more = self.step()
            while self._entered:  # including requests that began and ended in this step
                sequence = self._entered.popleft()
                known[sequence.key] = sequence
            for key, sequence in list(known.items()):
                finished = sequence.finished
                while sequence.pieces:
                    yield key, sequence.pieces.popleft()
                if finished:
                    del known[key]
            if not more and not known:
                self._entered = None
                return

    def read_pages(
        self, tokens: list[int], *, salt: str = "", adapter: str | None = None
    ) -> tuple[list[bytes], bytes | None]:
        """The full pages in memory for the longest known prefix of `tokens`, and the recurrent state after them.

        With recurrent state these are the pages up to the last checkpoint; the state is None for other models.
        """
        with self._lock:
            return self._sharing.read(self._root(salt, adapter), tokens)

    def write_pages(
        self,
        tokens: list[int],
        pages: list[bytes],
        state: bytes | None = None,
        *,
        salt: str = "",
        adapter: str | None = None,
    ) -> None:
        """Put pages and state from `read_pages` into the prefix cache, as far as there is room."""
        with self._lock:
            self._sharing.write(self._root(salt, adapter), tokens, pages, state)

    def _root(self, salt: str, adapter: str | None) -> Node:
        return self._sharing.prefixes.root(salt, self._admission.adapter_identity(adapter))

    def close(self) -> None:
        """Cancel all requests, and return when the pages for `prefix_dir` are on disk."""
        with self._lock, InterruptsHeld():
            self._take_in()
            self._await_chosen(None)
            self._cancelled.extend(self._sequences.values())
            self._end_cancelled()
        self._sharing.close()

    def step(self) -> bool:
        """Run one step; False when there was nothing to do.

        Errors of requests are raised by their handles, not here. An interrupt while the model computes loses nothing:
        the pages written by then are beyond `computed`, and the next step writes them again.
        """
        with self._lock, InterruptsHeld() as held:
            self._take_in()
            self._await_chosen(0)
            self._end_cancelled()
            work = self._prepare()
            sequences = [self._sequences[w.key] for w in work]
            if work:
                parts, began = parts_of(work, sequences), time.perf_counter()
                try:
                    with held.released():
                        rows, logits, hidden = self._run(work, sequences)
                except Exception as error:
                    for sequence in sequences:
                        self._fail(sequence, error)
                else:
                    self._commit(work, sequences, rows, logits, hidden)
                    took = time.perf_counter() - began
                    if self._counts["steps"] > 1:  # the first one also binds the weights
                        self._costs.note(parts, took)
                    self._await_chosen(max(took / 2, LEAST_PATIENCE_S))
                self._end_cancelled()
            else:  # all pages may be held by requests whose tokens are being chosen
                self._await_chosen(BUSY_S)
        return bool(work or self._sequences)

    def _take_in(self) -> None:
        """Move submitted requests to the queue."""
        while self._inbox:
            sequence = self._inbox.popleft()
            asked = sequence.request
            if self._share and asked.prefix_cache:
                self._sharing.enter(sequence, identity_of(sequence.adapter), self._sequences.values())
            self._sequences[sequence.key] = sequence
            sequence.looks_ahead = 0 < sequence.sampler.decided_by <= self._top
            self._drafting.enter(sequence)
            if self._entered is not None:
                self._entered.append(sequence)
            if asked.tenant not in self._served:  # a new tenant gets no credit for the time before
                self._served[asked.tenant] = min(self._served.values(), default=0)

    def _prepare(self) -> tuple[Work, ...]:
        """Draft, schedule the next step, and move the pages as the plan says."""
        pool, now = self._decoder.pages, time.perf_counter()
        self._draft()
        plan = schedule(self._state(), self._budget)
        planned = {item.key for item in plan.work}
        for key, sequence in self._sequences.items():
            sequence.waited += key not in planned and not sequence.choosing and not sequence.decodes
        for key in plan.preempted:
            self._sequences[key].drop()
            self._drafting.preempted(self._sequences[key])
            self.preemptions += 1
        for item in plan.work:  # before taking new pages, which might evict a shared one
            sequence = self._sequences[item.key]
            if not sequence.pages:
                self._sharing.begin(sequence, item.shared)
                self._counts["cached"] += item.start
                self._counts["prompt"] += len(sequence.tokens)
        for item in plan.work:
            sequence = self._sequences[item.key]
            if item.new_pages:
                sequence.holding.add(pool.take(item.new_pages))
            sequence.holding.ready()
            assert sequence.computed == item.start, "the plan was made for other pages"
            sequence.start(now)
        if self._sequences and not plan.work and not any(s.choosing for s in self._sequences.values()):
            raise BackendError(
                "engine",
                f"no request can continue: {pool.free_count} of {pool.count} pages are free and the others are held "
                "outside this engine",
                advice="use one engine for each model",
            )
        return plan.work

    def _draft(self) -> None:
        for sequence, error in self._drafting.draft(self._sequences):
            self._fail(sequence, error)

    @property
    def _budget(self) -> int:
        """Tokens of the next step; few until it is known what they cost."""
        unknown = self._responsive and not self._costs.cost.known
        return min(self._step_tokens, FIRST_TOKENS) if unknown else self._step_tokens

    def _state(self) -> State:
        """The input of `schedule`."""
        running = [s for s in self._sequences.values() if s.pages and s.choosing is None]
        vacancies = max(0, self._max_running - self.running)
        pool = self._decoder.pages
        wanted = sum(max(0, pages_for(len(s.tokens) + len(s.drafts)) - len(s.pages)) for s in running)
        scarce = wanted > pool.free_count
        requests = [s.progress(scarce) for s in running]
        if vacancies and len(running) < len(self._sequences):
            coming = {key for s in running for key in s.coming(len(s.nodes))}  # being computed
            waiting = [s for s in self._sequences.values() if not s.pages]
            for sequence in sorted(waiting, key=lambda s: -s.request.priority):
                requests.append(sequence.waiting_progress(self._sharing.prefixes, coming))
        cost = self._costs.cost
        seconds = ALONE_STEPS * (cost.step + cost.row) if self._responsive and cost.known else inf
        return State(requests, pool.free_count, vacancies, self._served, cost, seconds)

    def _run(
        self, work: tuple[Work, ...], sequences: list[Sequence]
    ) -> tuple[list[int], np.ndarray | TopRows, np.ndarray | None]:
        """The number of rows of each item of `work`, and the logits [rows, vocab] in the order of `work`; or of each
        row as many of the largest as decide the tokens.

        For a draft head also the hidden states of all tokens [T, hidden].
        """
        step, counts = step_of(work, sequences)
        deciding = decided_by(sequences, counts, self._top)
        if deciding and (found := self._decoder.run_top(step, *deciding)).finite:
            return counts, found, None
        logits, hidden = (self._decoder.run(step), None) if self._head is None else self._head.run(step)
        expected = (len(step.rows), self._decoder.vocab_size)
        if logits.shape != expected or logits.dtype != np.float32:
            raise BackendError("engine", f"the decoder returned {logits.dtype} {logits.shape}, not float32 {expected}")
        return counts, logits, hidden

    def _commit(
        self,
        work: tuple[Work, ...],
        sequences: list[Sequence],
        rows: list[int],
        logits: np.ndarray | TopRows,
        hidden: np.ndarray | None,
    ) -> None:
        """Record what was computed, and choose the next tokens of requests whose known tokens are all computed."""
        all_finite = True
        if isinstance(logits, np.ndarray):
            with np.errstate(all="ignore"):  # a finite sum, found in one pass, implies that each logit is finite
                all_finite = math.isfinite(logits.sum())
        now = time.perf_counter()
        self._counts["steps"] += 1
        end = last = 0
        for item, sequence, row_count in zip(work, sequences, rows):
            start, end = end, end + row_count
            first, last = last, last + item.stop - item.start
            states = None if hidden is None else hidden[first:last]
            self._served[sequence.request.tenant] += item.stop - item.start
            known, accepted, checked = len(sequence.tokens), sequence.accepted, 0
            sequence.computed = min(item.stop, known)
            try:
                if not all_finite and isinstance(logits, np.ndarray):
                    sequence.check_finite(logits[start:end])
                if row_count and sequence.matcher is not None:
                    own = logits[start:end]
                    self._choose(item, sequence, own.copy() if isinstance(own, np.ndarray) else own, states, now)
                    continue
                if row_count:
                    checked = sequence.receive(item.start, item.stop, logits[start:end], now)
                self._conclude(Choosing(item, known, accepted, None, states), sequence, checked)
            except Exception as error:
                self._fail(sequence, error)
        most = min(self._served.values(), default=0) + MOST_AHEAD
        self._served = {tenant: min(tokens, most) for tenant, tokens in self._served.items()}

    def _choose(
        self, item: Work, sequence: Sequence, rows: np.ndarray | TopRows, states: np.ndarray | None, now: float
    ) -> None:
        """Let the next tokens of a request with a grammar be chosen in another thread."""
        from weft.generate.grammar.turns import CHOOSING, Future

        done: Future[int] = Future()
        sequence.choosing = Choosing(item, len(sequence.tokens), sequence.accepted, done, states)
        job = partial(sequence.receive_constrained, item.start, item.stop, rows, now)
        CHOOSING.submit(sequence.request.tenant, job, done)

    def _conclude(self, chosen: Choosing, sequence: Sequence, checked: int) -> None:
        """Count what a step gave a request and keep its full pages; the step's tokens have been chosen."""
        item = chosen.work
        self._counts["drafted"] += checked
        self._counts["accepted"] += sequence.accepted - chosen.accepted
        self._counts["generated"] += len(sequence.tokens) - chosen.known
        sequence.settle(item.start, item.stop)
        if self._head is not None and chosen.hidden is not None and self._drafting.by_head(sequence):
            self._head.observe(sequence.key, item.start, chosen.hidden[: sequence.reached - item.start])
        self._sharing.keep(sequence)
        if sequence.finished:
            self._retire(sequence)

    def _await_chosen(self, patience_s: float | None) -> None:
        """Conclude the requests with grammars whose tokens have been chosen, after waiting `patience_s` seconds for
        them. With 0 and nothing else to run: until one of them is there or another request comes."""
        waiting = [(s, s.choosing) for s in self._sequences.values() if s.choosing is not None]
        choosing = [(s, chosen, chosen.done) for s, chosen in waiting if chosen.done is not None]
        if not choosing:
            return
        from concurrent.futures import FIRST_COMPLETED, wait

        futures = [future for _, _, future in choosing]
        done, _ = wait(futures, patience_s)
        while not done and patience_s == 0 and len(choosing) == len(self._sequences) and not self._inbox:
            done, _ = wait(futures, BUSY_S, FIRST_COMPLETED)
        for sequence, chosen, future in choosing:
            if future in done:
                sequence.choosing = None
                try:
                    self._conclude(chosen, sequence, future.result())
                except Exception as error:
                    self._fail(sequence, error)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        sequence.error = error
        self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        """Remove a finished request and release its pages."""
        if self._sequences.pop(sequence.key, None):
            self._sharing.leave(sequence)
            sequence.drop()
            self._admission.leave(sequence)
            self._drafting.ended(sequence)
            tenant = sequence.request.tenant
            if all(other.request.tenant != tenant for other in self._sequences.values()):
                del self._served[tenant]

    def _end_cancelled(self) -> None:
        later = []
        while self._cancelled:
            sequence = self._cancelled.popleft()
            if sequence.finished:
                continue
            if sequence.choosing is not None:
                later.append(sequence)
                continue
            if sequence.key not in self._sequences:
                self._take_in()
            try:
                sequence.finish("cancelled", time.perf_counter())
            except Exception as error:  # from the tokenizer; the pages are released all the same
                sequence.error = error
            self._retire(sequence)
        self._cancelled.extend(later)

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


def _decoder_of(given: Decoder | Model) -> Decoder:
    return given.decoder if _is_model(given) else cast(Decoder, given)


def _is_model(given: Decoder | Model) -> TypeGuard[Model]:
    return hasattr(given, "use_engine")
