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
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeGuard, cast

import numpy as np

from weft.errors import BackendError, BusyError, InputError, UnsupportedError
from weft.generate.admission import Admission, identity_of
from weft.generate.choice.draft_model import TRY, DraftModel
from weft.generate.choice.drafts import MAX_DRAFT, Acceptance, StepCosts, draft_length
from weft.generate.decoder import Decoder, Detokenizer
from weft.generate.handle import Handle
from weft.generate.interrupts import InterruptsHeld
from weft.generate.request import Request
from weft.generate.result import Piece, Stats
from weft.generate.schedule import Progress, State, Work, schedule
from weft.generate.sequence import Sequence, step_of
from weft.runtime.paged.pages import PAGE_TOKENS, pages_for
from weft.runtime.paged.prefix import HASH_BITS, Node, Prefixes, token_bytes
from weft.runtime.paged.slots import CHECKPOINT_PAGES, CHECKPOINT_TOKENS
from weft.runtime.paged.store import DEFAULT_LIMIT, PrefixStore

if TYPE_CHECKING:
    from weft.generate.model import Model


class Engine:
    """Requests over one decoder: at most `max_running` in a step of at most `step_tokens` tokens.

    Given a model, it uses the model's decoder and tokenizer. The model keeps its own engine until
    `model.use_engine(engine)`; only one engine of a decoder may run at a time.

    Any thread may submit, step and cancel; steps run one at a time. A caller that waits for a result drives the engine,
    and with it all requests, so a program without threads needs no loop of its own.

    Pages of the KV cache are shared between requests with the same prefix unless `prefix_cache` is False; with
    `prefix_dir` they are also stored there (at most `prefix_bytes`), for other processes and the next start.
    `speculate` allows speculative decoding where it pays: with repeated text, and with `draft`, a smaller model of the
    same vocabulary. `hash_bits` is for tests of collisions.
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
        draft: Decoder | Model | None = None,
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
        self._slots = self._decoder.slots
        if self._slots is not None:
            self._max_running = min(max_running, self._slots.most_running)
            if prefix_dir is not None:
                what = "is not supported for models with recurrent state: pages on disk do not hold it"
                raise UnsupportedError("engine", what, field="prefix_dir")
        self._store = PrefixStore(prefix_dir, self._decoder, limit=prefix_bytes) if prefix_dir is not None else None
        self._prefixes = Prefixes(self._decoder.pages, slots=self._slots, hash_bits=hash_bits, store=self._store)
        self._share = prefix_cache
        self._speculate = speculate
        self._costs = StepCosts()
        self._drafter = None if draft is None else DraftModel(_decoder_of(draft), self._decoder.vocab_size)
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
        pool, counts = self._decoder.pages, self._counts
        return Stats(
            running=self.running,
            waiting=self.waiting,
            pages=pool.count,
            free_pages=pool.free_count,
            kept_pages=pool.kept_count,
            steps=counts["steps"],
            prompt_tokens=counts["prompt"],
            cached_tokens=counts["cached"],
            generated_tokens=counts["generated"],
            drafted_tokens=counts["drafted"],
            accepted_tokens=counts["accepted"],
            preemptions=self.preemptions,
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
        sequences = [admitted.sequence(next(self._keys), index) for index in range(request.n)]
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

    def read_pages(self, tokens: list[int], *, salt: str = "", adapter: str | None = None) -> list[bytes]:
        """The contents of the full pages in memory for the longest known prefix of `tokens`."""
        with self._lock:
            root, text = self._root(salt, adapter), token_bytes(tokens)
            nodes = self._prefixes.find(root, text, self._prefixes.hashes(root, text))
            return [self._decoder.read_page(node.page) for node in nodes]

    def write_pages(self, tokens: list[int], pages: list[bytes], *, salt: str = "", adapter: str | None = None) -> None:
        """Put pages from `read_pages` into the prefix cache, as many as there is room for."""
        with self._lock:
            self._prefixes.put(self._root(salt, adapter), token_bytes(tokens), pages, self._decoder.write_page)

    def _root(self, salt: str, adapter: str | None) -> Node:
        return self._prefixes.root(salt, self._admission.adapter_identity(adapter))

    def close(self) -> None:
        """Cancel all requests, and return when the pages for `prefix_dir` are on disk."""
        with self._lock, InterruptsHeld():
            self._take_in()
            self._cancelled.extend(self._sequences.values())
            self._end_cancelled()
        if self._store is not None:
            self._store.close()

    def step(self) -> bool:
        """Run one step; False when there was nothing to do.

        Errors of requests are raised by their handles, not here. An interrupt while the model computes loses nothing:
        the pages written by then are beyond `computed`, and the next step writes them again.
        """
        with self._lock, InterruptsHeld() as held:
            self._take_in()
            self._end_cancelled()
            work = self._prepare()
            sequences = [self._sequences[w.key] for w in work]
            if work:
                try:
                    with held.released():
                        rows, logits = self._run(work, sequences)
                except Exception as error:
                    for sequence in sequences:
                        self._fail(sequence, error)
                else:
                    self._commit(work, sequences, rows, logits)
                self._end_cancelled()
        return bool(work)

    def _take_in(self) -> None:
        """Move submitted requests to the queue."""
        while self._inbox:
            sequence = self._inbox.popleft()
            asked = sequence.request
            self._sequences[sequence.key] = sequence
            if self._drafter is not None:
                sequence.model_acceptance = Acceptance(self._drafter.rate, weight=4)
            if self._entered is not None:
                self._entered.append(sequence)
            if asked.tenant not in self._served:  # a new tenant gets no credit for the time before
                self._served[asked.tenant] = min(self._served.values(), default=0)
            if self._share and asked.prefix_cache:
                root = self._prefixes.root(asked.salt, identity_of(sequence.adapter))
                sequence.share_under(root, self._prefixes)
                self._prefixes.fetch(root, sequence.text, sequence.hashes)

    def _prepare(self) -> tuple[Work, ...]:
        """Draft, schedule the next step, and move the pages as the plan says."""
        pool, now = self._decoder.pages, time.perf_counter()
        self._draft()
        plan = schedule(self._state(), self._step_tokens)
        for key in plan.preempted:
            self._sequences[key].drop()
            self.preemptions += 1
        for item in plan.work:  # before taking new pages, which might evict a shared one
            sequence = self._sequences[item.key]
            if not sequence.pages:
                nodes = sequence.shareable(self._prefixes)[: item.shared]
                pool.share([node.page for node in nodes])
                sequence.begin(nodes)
                self._counts["cached"] += item.start
                self._counts["prompt"] += len(sequence.tokens)
        for item in plan.work:
            sequence = self._sequences[item.key]
            if item.new_pages:
                sequence.holding.add(pool.take(item.new_pages))
            sequence.holding.ready()
            assert sequence.computed == item.start, "the plan was made for other pages"
            sequence.start(now)
        if self._sequences and not plan.work:
            raise BackendError(
                "engine",
                f"no request can continue: {pool.free_count} of {pool.count} pages are free and the others are held "
                "outside this engine",
                advice="use one engine for each model",
            )
        return plan.work

    def _draft(self) -> None:
        """Draft tokens for the requests that decode, as many as pay."""
        decoding = [s for s in self._sequences.values() if s.decodes and s.request.speculate is not False]
        if not self._speculate:  # drafts that a grammar forces cost nothing to make
            decoding = [s for s in decoding if s.matcher is not None]
        share = self._costs.marginal_share(len(decoding)) if self._speculate else 1.0
        for sequence in decoding:
            try:
                sequence.propose(draft_length(sequence.acceptance.rate, share, MAX_DRAFT))
            except Exception as error:  # from its grammar
                self._fail(sequence, error)
        if self._drafter is not None and self._speculate:
            self._draft_by_model([s for s in decoding if not s.drafts and not s.finished])

    def _draft_by_model(self, sequences: list[Sequence]) -> None:
        assert self._drafter is not None
        share = self._costs.marginal_share(max(1, len(sequences)), self._drafter.seconds)
        most = MAX_DRAFT if self._drafter.seconds else TRY
        lengths = {s.key: draft_length(s.model_acceptance.rate, share, most) for s in sequences}
        if not any(lengths.values()):  # it did not pay: try again from time to time
            again = [s.key for s in sequences if self._drafter.may_try(s.key, s.tokens)]
            lengths.update(dict.fromkeys(again[:1], TRY))
        for key, drafts in self._drafter.draft({s.key: s.wanted(lengths[s.key]) for s in sequences}).items():
            self._sequences[key].take_drafts(drafts)

    def _state(self) -> State:
        """The input of `schedule`."""
        running = [s for s in self._sequences.values() if s.pages]
        vacancies = max(0, self._max_running - len(running))
        pool = self._decoder.pages
        wanted = sum(max(0, pages_for(len(s.tokens) + len(s.drafts)) - len(s.pages)) for s in running)
        scarce = wanted > pool.free_count
        requests = [self._progress(s, scarce) for s in running]
        if vacancies and len(running) < len(self._sequences):
            coming = {key for s in running if s.root for key in s.hashes[len(s.nodes) :]}  # being computed
            waiting = [s for s in self._sequences.values() if not s.pages]
            for sequence in sorted(waiting, key=lambda s: -s.request.priority):
                sequence.waited += 1
                requests.append(self._waiting_progress(sequence, coming))
        stride = 0 if self._slots is None else CHECKPOINT_TOKENS
        return State(requests, pool.free_count, vacancies, self._served, stride)

    def _progress(self, s: Sequence, scarce: bool) -> Progress:
        pool = self._decoder.pages
        return Progress(
            s.key,
            len(s.tokens) + len(s.drafts),
            s.computed,
            len(s.pages),
            decodes=s.decodes,
            own=sum(pool.users(page) == 1 for page in s.pages) if scarce else 0,
            priority=s.request.priority,
            waited=s.waited,
            tenant=s.request.tenant,
        )

    def _waiting_progress(self, s: Sequence, coming: set[bytes]) -> Progress:
        pool, nodes = self._decoder.pages, s.shareable(self._prefixes)
        stride = 1 if self._slots is None else CHECKPOINT_PAGES
        following = s.hashes[len(nodes) + stride - 1 : len(nodes) + stride]  # the page it may wait for
        if following and following[0] not in coming:
            coming.add(following[0])  # later requests with the same prefix wait for this one
            following = []
        return Progress(
            s.key,
            len(s.tokens),
            len(nodes) * PAGE_TOKENS,
            0,
            shared=len(nodes),
            idle=sum(not pool.users(node.page) for node in nodes),
            held_up=bool(following),
            priority=s.request.priority,
            waited=s.waited,
            tenant=s.request.tenant,
        )

    def _run(self, work: tuple[Work, ...], sequences: list[Sequence]) -> tuple[list[int], np.ndarray]:
        """The number of rows of each item of `work`, and the logits [rows, vocab] in the order of `work`."""
        step, counts = step_of(work, sequences)
        before = time.perf_counter()
        logits = self._decoder.run(step)
        if all(sequence.decodes for sequence in sequences):
            self._costs.note(len(step.ids), time.perf_counter() - before)
        expected = (len(step.rows), self._decoder.vocab_size)
        if logits.shape != expected or logits.dtype != np.float32:
            raise BackendError("engine", f"the decoder returned {logits.dtype} {logits.shape}, not float32 {expected}")
        return counts, logits

    def _commit(self, work: tuple[Work, ...], sequences: list[Sequence], rows: list[int], logits: np.ndarray) -> None:
        """Record what was computed, and choose the next tokens of requests whose known tokens are all computed."""
        all_finite = _adds_up(logits)
        now = time.perf_counter()
        self._counts["steps"] += 1
        end = 0
        for item, sequence, row_count in zip(work, sequences, rows):
            start, end = end, end + row_count
            self._served[sequence.request.tenant] += item.stop - item.start
            known = len(sequence.tokens)
            sequence.computed = min(item.stop, known)
            try:
                if not all_finite and not np.isfinite(logits[start:end]).all():
                    raise _not_finite(sequence, logits[start:end])
                if row_count:
                    self._advance(item, sequence, logits[start:end], now)
                self._counts["generated"] += len(sequence.tokens) - known
                sequence.settle(item.start, item.stop)
                self._keep_pages(sequence)
            except Exception as error:
                self._fail(sequence, error)
            if sequence.finished:
                self._retire(sequence)

    def _advance(self, item: Work, sequence: Sequence, rows: np.ndarray, now: float) -> None:
        """Give the request `rows`, the logits after the last tokens of `item`."""
        known = len(sequence.tokens)
        if sequence.request.prompt_logprobs is not None:
            sequence.note_prompt(item.stop - len(rows), rows)
        follow = item.stop - max(item.start, known - 1)
        if follow <= 0:
            return
        if sequence.wants_nothing:
            sequence.finish("length", now)
            return
        accepted = sequence.accepted
        sequence.advance(rows[len(rows) - follow :], now)
        self._counts["drafted"] += follow - 1
        self._counts["accepted"] += sequence.accepted - accepted

    def _keep_pages(self, sequence: Sequence) -> None:
        """Add full pages to the prefix cache; where it has the same page already, use that one and release the own."""
        pool = self._decoder.pages
        while (full := sequence.full_page()) is not None:
            parent, tokens, page = full
            node = self._prefixes.add(parent, tokens, page)
            if node is None:  # a hash collision: stop sharing
                sequence.root = None
                return
            if node.page != page:
                pool.share([node.page])
                sequence.holding.replace(len(sequence.nodes), node.page)
                pool.release([page])
            else:
                self._prefixes.save(node)
            sequence.nodes.append(node)
        if sequence.at_checkpoint and sequence.holding.slots is not None:
            self._prefixes.checkpoint(sequence.nodes[-1], sequence.holding.slots[0])

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        sequence.error = error
        self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        """Remove a finished request and release its pages."""
        if self._sequences.pop(sequence.key, None):
            sequence.drop()
            self._admission.leave(sequence)
            if self._drafter is not None:
                self._drafter.forget(sequence.key, sequence.model_acceptance.rate)
            tenant = sequence.request.tenant
            if all(other.request.tenant != tenant for other in self._sequences.values()):
                del self._served[tenant]

    def _end_cancelled(self) -> None:
        while self._cancelled:
            sequence = self._cancelled.popleft()
            if sequence.finished:
                continue
            if sequence.key not in self._sequences:
                self._take_in()
            try:
                sequence.finish("cancelled", time.perf_counter())
            except Exception as error:  # from the tokenizer; the pages are released all the same
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


def _decoder_of(given: Decoder | Model) -> Decoder:
    return given.decoder if _is_model(given) else cast(Decoder, given)


def _is_model(given: Decoder | Model) -> TypeGuard[Model]:
    return hasattr(given, "use_engine")


def _adds_up(logits: np.ndarray) -> bool:
    """Whether the sum of all logits is finite, which implies that each one is. A quick check in one pass."""
    with np.errstate(all="ignore"):
        return math.isfinite(logits.sum())


def _not_finite(sequence: Sequence, logits: np.ndarray) -> BackendError:
    row, bad = map(int, np.argwhere(~np.isfinite(logits))[0])
    place = len(sequence.tokens) - len(logits) + row
    return BackendError(
        "engine",
        f"request {sequence.key}: the logits after token {place} are not finite: {logits[row, bad]} for id {bad}",
        advice="check the model's weights, or load it with compute='f32'",
    )
