"""A decoder and a tokenizer that need no model, an oracle that needs no engine, and an engine that always drafts."""

import hashlib
from typing import ClassVar

import numpy as np

from weft.generate import Engine
from weft.generate.choice.sampling import Sampler
from weft.generate.request import Request
from weft.nn.step import Step
from weft.runtime.paged.pages import PAGE_TOKENS, PagePool
from weft.runtime.paged.slots import SlotPool

VOCAB = 61
EOS = 7


def logits_after(tokens: list[int]) -> np.ndarray:
    """Logits [VOCAB] that depend on every token of the history and on their order."""
    digest = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little")).normal(0, 2, VOCAB).astype(np.float32)


class FakeDecoder:
    """Keeps token ids in pages and computes logits from what the page table finds there.

    A wrong page, a token at a wrong place, a missing token or a mixed-up row gives other logits.
    """

    def __init__(self, pages: int = 64, max_context: int = 640, eos_ids: frozenset[int] = frozenset({EOS})) -> None:
        self.vocab_size = VOCAB
        self.max_context = max_context
        self.max_pages = -(-max_context // PAGE_TOKENS)
        self.pages = PagePool(pages)
        self.eos_ids = eos_ids
        self.adapters = None
        self.slots: SlotPool | None = None
        self.store = np.full((pages, PAGE_TOKENS), -1, np.int32)
        self.steps: list[Step] = []

    def run(self, step: Step) -> np.ndarray:
        self.check(step)
        self.steps.append(step)
        owner = np.repeat(np.arange(len(step.segments) - 1), np.diff(step.segments))  # [T]
        self.store[step.pages[owner, step.positions // PAGE_TOKENS], step.positions % PAGE_TOKENS] = step.ids
        out = np.empty((len(step.rows), VOCAB), np.float32)
        for i, row in enumerate(step.rows):
            history = self.store[step.pages[owner[row]]].reshape(-1)[: step.positions[row] + 1]
            out[i] = logits_after(history.tolist())
        return out

    page_bytes = PAGE_TOKENS * 4
    slot_bytes = 0
    state_fingerprint = "fake"
    expert_counts: ClassVar[dict[str, int]] = {}

    def read_page(self, page: int) -> bytes:
        return self.store[page].tobytes()

    def write_page(self, page: int, data: bytes) -> None:
        assert self.pages.users(page) == 1
        self.store[page] = np.frombuffer(data, np.int32)

    def check(self, step: Step) -> None:
        """The shapes, types and ranges that the protocol promises."""
        for array in step.arrays().values():
            assert array.dtype == np.int32
        assert step.pages.shape == (len(step.segments) - 1, self.max_pages)
        assert len(step.ids) == len(step.positions) == step.segments[-1]
        assert step.segments[0] == 0 and (np.diff(step.segments) > 0).all()
        written = [
            (int(page), int(column))
            for row, start, end in zip(step.pages, step.segments, step.segments[1:])
            for page, column in zip(
                row[step.positions[start:end] // PAGE_TOKENS], step.positions[start:end] % PAGE_TOKENS
            )
        ]
        assert len(written) == len(set(written)), "a place is written twice"
        pages = {page for page, _ in written}
        assert all(self.pages.users(page) == 1 for page in pages), "a page that others use is written"


class FakeTokenizer:
    """Pieces of nought to three letters from a small alphabet; a piece comes out one token late, as bytes would."""

    def __init__(self, vocab_size: int = VOCAB) -> None:
        self.vocab_size = vocab_size
        rng = np.random.default_rng(5)
        self.pieces = ["".join(rng.choice(list("abc "), rng.integers(0, 4))) for _ in range(VOCAB)][:vocab_size]

    def text(self, tokens: tuple[int, ...]) -> str:
        return "".join(self.pieces[t] for t in tokens if t < self.vocab_size)

    def id(self, token: str) -> int | None:
        return {"<think>": 50, "</think>": 51}.get(token)

    def stream(self, *, skip_special: bool) -> "FakeStream":
        return FakeStream(self.pieces)


class FakeStream:
    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        self._late = ""

    def add(self, token: int) -> str:
        text, self._late = self._late, self._pieces[token]
        return text

    def finish(self) -> str:
        text, self._late = self._late, ""
        return text


def expected_tokens(request: Request, max_tokens: int) -> tuple[tuple[int, ...], str]:
    """Tokens and finish reason of a request without stop strings: one token after another, no engine, no pages."""
    tokens, sampler = list(request.prompt), Sampler(request.sampling, request.prompt)
    stops = set(request.stop_ids) | (set() if request.ignore_eos else {EOS})
    for index in range(max_tokens):
        token = sampler.choose(logits_after(tokens), index)
        if token in stops:
            return tuple(tokens[len(request.prompt) :]), "stop"
        tokens.append(token)
        sampler.note(token)
    return tuple(tokens[len(request.prompt) :]), "length"


def always_draft(engine: Engine) -> None:
    """Draft at every step, whether it pays or not."""

    def draft() -> None:
        for sequence in engine._sequences.values():
            if sequence.decodes:
                sequence.propose(4)

    engine._draft = draft  # type: ignore[method-assign]
