"""Pairs of texts as tokens, what was cut of them, and what every way of scoring them can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weft.errors import InputError, TooLongError
from weft.runtime import token_ranges

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime import Encoder, Tokens
    from weft.text import Tokenizer

TRUNCATIONS = ("error", "head", "tail")
BATCH_TOKENS = 512  # of one step, as for embeddings


class Pairs(NamedTuple):
    """The tokens of pairs of a query and a document, and how many of each were cut off."""

    tokens: list[Tokens]
    dropped: list[int]


class Scorer(Protocol):
    """A way of scoring pairs with one model."""

    max_tokens: int

    @property
    def info(self) -> dict[str, Any]: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def start(self) -> None:
        """Let other threads bind the weights while the caller goes on."""

    def memory_plan(self, tokens: int) -> dict[str, int]:
        """Bytes by use, with the working memory of a step of `tokens` tokens."""

    def tokens(self, pair: tuple[str, str], truncate: str) -> tuple[Tokens, int]:
        """The tokens of a query and a document, and how many were cut off; `truncate` is one of TRUNCATIONS."""

    def ranges(self, tokens: Sequence[Tokens]) -> list[tuple[int, int]]:
        """The parts (first, last) in which `scores` comes."""

    def scores(self, tokens: Sequence[Tokens]) -> Iterator[np.ndarray]:
        """One number per pair, float32, part by part, of which `activated` makes its score."""

    def activated(self, raw: np.ndarray, activation: str | None = None) -> np.ndarray:
        """Scores, float32; the higher, the better the document answers. `activation` is for classifiers alone."""


class WithEncoder:
    """What scorers that run an encoder have in common."""

    encoder: Encoder

    @property
    def tokenizer(self) -> Tokenizer:
        return self.encoder.tokenizer

    def start(self) -> None:
        self.encoder.start()

    def memory_plan(self, tokens: int) -> dict[str, int]:
        return self.encoder.memory_plan(tokens)

    def ranges(self, tokens: Sequence[Tokens]) -> list[tuple[int, int]]:
        return list(token_ranges(tokens, BATCH_TOKENS))

    def scores(self, tokens: Sequence[Tokens]) -> Iterator[np.ndarray]:
        batches = [tokens[first:last] for first, last in self.ranges(tokens)]
        return map(self.score, self.encoder.vectors_each(batches))

    def score(self, vectors: np.ndarray) -> np.ndarray:
        """The numbers float32 [n] that scores are made of, from what the encoder's head gave."""
        raise NotImplementedError


def sigmoid(raw: np.ndarray) -> np.ndarray:
    import numpy as np

    return (1.0 / (1.0 + np.exp(-raw.astype(np.float64)))).astype(np.float32)


def check_truncate(mode: str) -> str:
    if mode not in TRUNCATIONS:
        raise InputError("rerank", f"truncate is {mode!r}; one of {', '.join(TRUNCATIONS)}")
    return mode


def excess(length: int, limit: int, truncate: str) -> int:
    """How many tokens of a pair have to go; an error where nothing may be cut."""
    if length > limit and truncate == "error":
        raise TooLongError(
            "rerank",
            f"it has {length} tokens, the model takes {limit}; shorten it or give truncate='head'",
            length=length,
            limit=limit,
        )
    return max(length - limit, 0)


def framed(
    before: list[int], document: list[int], after: list[int], limit: int, truncate: str
) -> tuple[list[int], int]:
    """A document between what is said before and after it, cut where it does not fit, and by how many tokens."""
    cut = excess(len(before) + len(document) + len(after), limit, truncate)
    if cut > len(document):
        length = len(before) + len(after)
        raise TooLongError(
            "rerank",
            f"the query takes {length} tokens with what surrounds it, the model {limit}; shorten it",
            length=length,
            limit=limit,
        )
    kept = document[cut:] if truncate == "tail" else document[: len(document) - cut]
    return [*before, *kept, *after], cut
