"""The state of one answer in the engine: its tokens, pages, text and timings."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.errors import BackendError, GrammarError
from weft.generate.choice.ahead import Ahead, look_ahead
from weft.generate.choice.draft_model import Wanted
from weft.generate.choice.drafts import MAX_DRAFT, Acceptance, AcceptanceByDepth, PromptLookup, agreement
from weft.generate.choice.logprobs import token_logprob
from weft.generate.choice.sampling import Sampler
from weft.generate.choice.stops import StopText
from weft.generate.decoder import TextStream
from weft.generate.request import Request
from weft.generate.result import FinishReason, Generation, Piece, Timings, TokenLogprob, Usage
from weft.generate.schedule import Progress, Work
from weft.generate.sight.prompt import keyed
from weft.runtime.paged.holding import Holding
from weft.runtime.paged.pages import PAGE_TOKENS
from weft.runtime.paged.prefix import Node, Prefixes
from weft.runtime.paged.slots import CHECKPOINT_PAGES, LEAST_PAGES, NONE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from weft.generate.choice.reasoning import Reasoning
    from weft.generate.grammar import Matcher
    from weft.runtime.decoder import TopRows


TOKEN_SECONDS = 1.0  # of processor time that a grammar may take for one token

Added = tuple[tuple[int, ...], tuple[TokenLogprob, ...]]  # tokens, and their log probabilities if asked for


class Limits(NamedTuple):
    """The limits of a request, derived when it is admitted."""

    max_tokens: int
    vocab_size: int
    stop_ids: frozenset[int]
    text_ids: int  # ids below this have text


class Choosing(NamedTuple):
    """The choice of a sequence's next tokens after a step over `work`, when it had `known` tokens."""

    work: Work
    known: int
    accepted: int
    done: Future[int] | None  # None once it is made
    hidden: np.ndarray | None = None  # hidden states of the step's tokens, for a draft head


class Sequence:
    """One answer, from submission to its end. Only the engine changes it, under its lock."""

    def __init__(
        self,
        key: int,
        request: Request,
        prompt: tuple[int, ...],
        limits: Limits,
        holding: Holding,
        *,
        index: int = 0,
        seed: int | None = None,
        text: TextStream | None,
        now: float,
    ) -> None:
        self.key = key
        self.request = request
        self.tokens = list(prompt)  # the prompt and the generated tokens
        self.drafts: list[int] = []  # tokens to be checked in the next step
        self.computed = 0  # how many tokens, from the first, are in the KV cache; anything beyond is scratch
        self._reached = 0  # the same before wrong drafts made it compute some tokens again
        self.holding = holding
        self.sampler = Sampler(request.sampling, prompt, seed)
        self.pieces: deque[Piece] = deque()  # not yet fetched
        self.result: Generation | None = None
        self.error: Exception | None = None
        self.choosing: Choosing | None = None  # its next tokens, in another thread; nothing else may change it then
        self.waited = 0  # steps in which no token of its prompt was computed
        self.adapter: Any = None  # the adapter's version when the request was submitted
        self.matcher: Matcher | None = None  # of its grammar
        self.reasoning: Reasoning | None = None
        self.acceptance = Acceptance()  # starts low; the first right guess raises it
        self.model_acceptance = AcceptanceByDepth()  # of drafts by a draft model, or by the model's own head
        self.nodes: list[Node] = []  # of its full pages that are in the prefix cache
        self.hashes: list[bytes] = []  # of the prompt's pages that may be shared
        self.text = b""  # the bytes of the prompt's tokens, as they are hashed
        self.root: Node | None = None  # None: pages are not shared
        self.found: tuple[int, list[Node]] = (-1, [])  # the cache's version at the last lookup, and what it found
        self.marks: set[int] = set()  # with recurrent state: after how many pages a checkpoint is wanted
        self.latest: tuple[Node, int] | None = None  # the checkpoint of its answer, and after how many pages it is
        self._lookup: PromptLookup | None = None
        self._guess: ListOf[int] = ()  # the proposal from repeated text, drafted or not
        self._forced: ListOf[int] | None = None  # tokens that the grammar forces next, once that is known
        self.looks_ahead = False  # whether the grammar's masks are wanted before a step
        self.ahead: Ahead | None = None
        self._by_model = False  # whether a draft model made the drafts
        self._index = index
        self._limits = limits
        self._prompt_tokens = len(prompt)
        self._truncated = len(request.prompt) - len(prompt)
        self._stream = text
        self._stops = StopText(request.stop)
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._cached = 0
        self._drafted = 0
        self.accepted = 0  # drafts that were right
        self._submitted = now
        self._started: float | None = None
        self._first: float | None = None

    @property
    def pages(self) -> list[int]:
        """The pages it holds, in the order of its tokens."""
        return self.holding.pages

    @property
    def finished(self) -> bool:
        return self.choosing is None and (self.result is not None or self.error is not None)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self._prompt_tokens

    @property
    def decodes(self) -> bool:
        """Whether all tokens but the last are computed, or were before a wrong draft."""
        return self.reached == len(self.tokens) - 1 and bool(self.pages)

    @property
    def wants_nothing(self) -> bool:
        """Whether only the prompt is to be computed (`max_tokens` 0)."""
        return self._limits.max_tokens == 0

    def start(self, now: float) -> None:
        """Record the start of the first step; later calls change nothing."""
        if self._started is None:
            self._started = now
            self._cached = self.computed

    # Pages

    def share_under(self, root: Node, prefixes: Prefixes) -> None:
        """Share the prompt's pages under `root`; the last token is always computed, for its logits."""
        self.root = root
        self.text = keyed(self.tokens, self.request.pictures)
        most = len(self.tokens) - 1
        if self.request.prompt_logprobs is not None:  # their logits must be computed too
            most = min(most, self.request.prompt_logprobs_from - 1)
        self.hashes = prefixes.hashes(root, self.text[: 4 * most])
        self.marks.add(len(self.hashes))

    def shareable(self, prefixes: Prefixes) -> list[Node]:
        """The nodes of the prefix cache that hold its first tokens."""
        if self.root is None:
            return []
        if self.found[0] != prefixes.version:
            if len(self.text) < 4 * len(self.tokens):  # it was preempted: its generated tokens can be shared too
                self.share_under(self.root, prefixes)
            found = prefixes.find(self.root, self.text, self.hashes)
            self.found = prefixes.version, prefixes.resumable(found)
        return self.found[1]

    def begin(self, nodes: ListOf[Node]) -> None:
        """Start with the pages of `nodes`, which hold its first tokens."""
        self.nodes = list(nodes)
        self.computed = len(nodes) * PAGE_TOKENS
        if len(self.hashes) < len(nodes) + LEAST_PAGES:
            self.marks.discard(len(self.hashes))
        self.holding.add([node.page for node in nodes])
        self.holding.resume(nodes[-1].slot if nodes else NONE)

    def drop(self) -> None:
        """Release the pages and slots; all tokens must be computed again."""
        self.holding.release()
        self.computed = self._reached = 0
        self.nodes, self.drafts, self.found = [], [], (-1, [])

    def full_page(self) -> tuple[Node, bytes, int] | None:
        """The next full page that is not in the prefix cache yet: its parent node, its tokens, the page."""
        count = len(self.nodes)
        if self.root is None or (count + 1) * PAGE_TOKENS > self.computed:
            return None
        first = count * PAGE_TOKENS
        tokens = keyed(self.tokens[first : first + PAGE_TOKENS], self.request.pictures, first)
        return (self.nodes[-1] if count else self.root), tokens, self.pages[count]

    def settle(self, start: int, stop: int) -> None:
        """Keep the recurrent state after a step over tokens start to stop, or discard it if drafts were wrong.

        After discarding, the next step computes the right ones again.
        """
        if self.holding.recurrence is None:
            return
        if self.computed == stop:
            self.holding.advance()
        else:
            self._reached, self.computed = self.computed, start

    @property
    def after_last_node(self) -> bool:
        """Whether its recurrent state is that after its last page in the prefix cache."""
        return bool(self.nodes) and self.computed == len(self.nodes) * PAGE_TOKENS

    def _checkpoints(self, pages: int) -> list[int]:
        """After how many pages, more than `pages`, the steps of its prompt end for checkpoints."""
        first, last = (pages // CHECKPOINT_PAGES + 1) * CHECKPOINT_PAGES, self._prompt_pages
        marks = {mark for mark in self.marks if pages < mark <= last}
        return sorted(marks.union(range(first, last + 1, CHECKPOINT_PAGES)))

    @property
    def _prompt_pages(self) -> int:
        """Full pages of the prompt, and of the answer before it was preempted, without the last token."""
        return max((self._prompt_tokens - 1) // PAGE_TOKENS, len(self.hashes))

    def coming(self, pages: int) -> list[bytes]:
        """The hashes of its pages, after the first `pages`, that others can resume from once it has computed them."""
        if self.root is None:
            return []
        if self.holding.recurrence is None:
            return self.hashes[pages:]
        return [self.hashes[count - 1] for count in self._checkpoints(pages) if count <= len(self.hashes)]

    def _pause(self, pages: int) -> int:
        """Where its part of a step ends at the latest, for a checkpoint, when `pages` pages are full; 0: anywhere."""
        if self.holding.recurrence is None or self.root is None:
            return 0
        return PAGE_TOKENS * min(self._checkpoints(pages), default=max(pages, self._prompt_pages) + 1)

    @property
    def reached(self) -> int:
        """How many tokens have been computed, those among them that a wrong draft made it compute again."""
        return max(self.computed, self._reached)

    # For the schedule

    def progress(self, scarce: bool) -> Progress:
        """Its progress while it runs; `scarce` counts the pages that preempting it would free."""
        return Progress(
            self.key,
            len(self.tokens) + len(self.drafts),
            self.computed,
            len(self.pages),
            decodes=self.decodes,
            own=sum(self.holding.users(page) == 1 for page in self.pages) if scarce else 0,
            pause=self._pause(self.computed // PAGE_TOKENS),
            **self._asked,
        )

    def waiting_progress(self, prefixes: Prefixes, coming: set[bytes]) -> Progress:
        """Its progress while it waits. `coming` holds the hashes of pages that others compute; its next is added."""
        nodes = self.shareable(prefixes)
        wanted = self.coming(len(nodes))  # pages that it may wait for
        held_up = not coming.isdisjoint(wanted if self.holding.recurrence is not None else wanted[:1])
        if not held_up:
            coming.update(wanted)  # later requests with the same prefix wait for this one
        return Progress(
            self.key,
            len(self.tokens),
            len(nodes) * PAGE_TOKENS,
            0,
            shared=len(nodes),
            idle=sum(not self.holding.users(node.page) for node in nodes),
            held_up=held_up,
            pause=self._pause(len(nodes)),
            **self._asked,
        )

    @property
    def _asked(self) -> dict[str, Any]:
        asked = self.request
        return {
            "priority": asked.priority,
            "waited": self.waited,
            "tenant": asked.tenant,
            "scored": asked.prompt_logprobs is not None,
            "wholes": tuple((one.at, one.end) for one in asked.pictures if one.whole),
        }

    # Drafts

    def propose(self, count: int) -> None:
        """Draft at most `count` tokens; keeps the whole proposal, to learn how good it was."""
        room = self._limits.max_tokens - self.generated - 1
        if self._forced is None:
            self._forced = self._rule.forced() if self._rule else ()
        forced, self._forced = self._forced, None
        if forced:
            self.drafts = list(forced[: max(0, room)])
            return
        if self._lookup is None:
            self._lookup = PromptLookup(self.tokens)
        self._guess = self._lookup.propose(MAX_DRAFT)
        self.drafts = self._guess[: max(0, min(count, room))]

    def wanted(self, count: int) -> Wanted:
        """The order for a draft model: at most `count` tokens."""
        room = max(0, min(count, self._limits.max_tokens - self.generated - 1))
        choose = lambda row, ahead: self.sampler.choose(row, self.generated + ahead)  # noqa: E731
        return Wanted(self.tokens, room, choose, self.holding.row, PAGE_TOKENS * len(self.pages))

    def take_drafts(self, drafts: list[int]) -> None:
        """Use the drafts of a draft model."""
        self.drafts, self._by_model = drafts, bool(drafts)

    # Tokens

    def check_finite(self, logits: np.ndarray) -> None:
        """BackendError if one of the logits after its last tokens is not a finite number."""
        if np.isfinite(logits).all():
            return
        row, bad = map(int, np.argwhere(~np.isfinite(logits))[0])
        place = len(self.tokens) - len(logits) + row
        raise BackendError(
            "engine",
            f"request {self.key}: the logits after token {place} are not finite: {logits[row, bad]} for id {bad}",
            advice="check the model's weights, or load it with compute='f32'",
        )

    def receive(self, start: int, stop: int, rows: np.ndarray | TopRows, now: float) -> int:
        """Take `rows`, the logits after the last tokens of start to stop; returns how many drafts were checked."""
        known = len(self.tokens)
        if self.request.prompt_logprobs is not None and isinstance(rows, np.ndarray):
            self.note_prompt(stop - len(rows), rows)
        follow = stop - max(start, known - 1)
        if follow <= 0:
            return 0
        if self.wants_nothing:
            self.finish("length", now)
            return 0
        self.advance(rows[len(rows) - follow :], now)
        return follow - 1

    def receive_constrained(self, start: int, stop: int, rows: np.ndarray | TopRows, now: float) -> int:
        """`receive` for a sequence with a grammar, and what the grammar forces next; GrammarError if it takes long."""
        began = time.thread_time()
        checked = self.receive(start, stop, rows, now)
        if self.result is None:
            self._forced = self._rule.forced() if self._rule else ()
            if self.looks_ahead:
                self.ahead = look_ahead(self._rule, len(self.tokens), self._forced)
        took = time.thread_time() - began
        if took > TOKEN_SECONDS * (1 + checked + len(self.ahead or ())):
            what = f"the grammar takes {took:.1f} s for a token; at most {TOKEN_SECONDS:g} s are allowed"
            raise GrammarError("grammar", what, advice="give a simpler one")
        return checked

    def advance(self, rows: np.ndarray | TopRows, now: float) -> None:
        """Choose the next tokens from logits `rows` [1 + drafts, vocab], all finite; stops at the first wrong draft.

        The right drafts are in the KV cache already, so they count as computed.
        """
        known = len(self.tokens)
        drafts, self.drafts = self.drafts[: len(rows) - 1], []
        self._drafted += len(drafts)
        for place, row in enumerate(rows):
            if self.reasoning is not None and self.reasoning.used_up:
                self.accept(self.reasoning.close, now, self._logprob(row, self.reasoning.close))
                break
            allowed = self._allowed() if isinstance(row, np.ndarray) else None  # the largest logits are those allowed
            token = self.sampler.choose(row, self.generated, allowed)
            right = place < len(drafts) and drafts[place] == token
            self.accepted += right
            self._take(token, row, now)
            if self.result is not None or not right:
                break
            self.computed += 1
        if self._by_model:
            agreed = agreement(drafts, self.tokens[known:])
            self.model_acceptance.note(agreed, agreed < min(len(drafts), len(self.tokens) - known))
            self._by_model = False
        self._learn(self.tokens[known:])

    def _learn(self, tokens: list[int]) -> None:
        """Update the acceptance rate with the last proposal, whether it was drafted or not."""
        if self._guess:
            right = agreement(self._guess, tokens)
            self.acceptance.note(right, right < min(len(self._guess), len(tokens)))
            self._guess = ()

    def _allowed(self) -> np.ndarray | None:
        """Mask [vocab] of the tokens that the grammar and `min_tokens` allow; None if they allow all."""
        allowed = _truths(self._rule.mask(), self._limits.vocab_size) if self._rule else None
        if self.generated < self.request.min_tokens and self._limits.stop_ids:
            unended = np.ones(self._limits.vocab_size, bool) if allowed is None else allowed
            unended[list(self._limits.stop_ids)] = False
            allowed = (
                unended if unended.any() else allowed
            )  # where the grammar allows only the end, end before min_tokens
        return allowed

    def _take(self, token: int, row: np.ndarray | TopRows, now: float) -> None:
        if self._rule:
            self._rule.advance(token)
        self.accept(token, now, self._logprob(row, token))

    def _logprob(self, row: np.ndarray | TopRows, token: int) -> TokenLogprob | None:
        asked = self.request.logprobs
        return None if asked is None or not isinstance(row, np.ndarray) else token_logprob(row, token, asked)

    @property
    def _rule(self) -> Matcher | None:
        """The grammar's matcher; None without one, and inside reasoning, which is not constrained."""
        return None if self.reasoning is not None and self.reasoning.inside else self.matcher

    def accept(self, token: int, now: float, logprob: TokenLogprob | None = None) -> None:
        """Append `token` to the tokens and the text; ends the request if a stop rule applies."""
        if self._first is None:
            self._first = now
        if token in self._limits.stop_ids:
            self.finish("stop", now)
            return
        self.tokens.append(token)
        self.sampler.note(token)
        if self._lookup is not None:
            self._lookup.add(token)
        if self.reasoning is not None:
            self.reasoning.note(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        added: Added = (token,), () if logprob is None else (logprob,)
        text = self._stops.add(self._stream.add(token)) if self._stream and token < self._limits.text_ids else ""
        if self._stops.stopped:
            self._end(text, added, "stop", now)
        elif self.matcher is not None and self.matcher.stopped:
            self.finish("stop", now, text, added)
        elif self.generated >= self._limits.max_tokens:
            self.finish("length", now, text, added)
        else:
            self._add(text, added)

    def note_prompt(self, first: int, rows: np.ndarray) -> None:
        """Record prompt log probabilities; `rows` are the logits after tokens first, first + 1, ... of the prompt."""
        assert self.request.prompt_logprobs is not None
        for place, row in enumerate(rows, first + 1):
            new = place == self.request.prompt_logprobs_from + len(
                self._prompt_logprobs
            )  # False if recorded before a preemption
            if place < self._prompt_tokens and new:
                self._prompt_logprobs.append(token_logprob(row, self.tokens[place], self.request.prompt_logprobs))

    def finish(self, reason: FinishReason, now: float, text: str = "", added: Added = ((), ())) -> None:
        """End the request and release the text held back, after the `text` of the last token if it `added` one."""
        if self._stream:
            text += self._stops.add(self._stream.finish())
        if self._stops.stopped:  # the last bytes completed a stop string
            reason = "stop"
        self._end(text + self._stops.finish(), added, reason, now)

    def _end(self, text: str, added: Added, reason: FinishReason, now: float) -> None:
        self._add(text, added, reason)
        self.drafts = []
        asked = self.request
        self.result = Generation(
            text="".join(self._texts),
            tokens=tuple(self.tokens[self._prompt_tokens :]),
            finish_reason=reason,
            usage=Usage(
                self._prompt_tokens, self.generated, self._truncated, self._cached, self._drafted, self.accepted
            ),
            timings=self._timings(now),
            seed=self.sampler.seed,
            index=self._index,
            logprobs=None if asked.logprobs is None else tuple(self._logprobs),
            prompt_logprobs=None if asked.prompt_logprobs is None else tuple(self._prompt_logprobs),
            stop=self._stops.found,
        )

    def _add(self, text: str, added: Added, reason: FinishReason | None = None) -> None:
        self._texts.append(text)
        self.pieces.append(Piece(text, added[0], reason, self._index, added[1]))

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


def _truths(bits: np.ndarray, count: int) -> np.ndarray:
    """Bits in 32-bit words as `count` booleans."""
    return np.unpackbits(bits.view(np.uint8), count=count, bitorder="little").view(np.bool_)
