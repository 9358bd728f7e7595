"""Pairs of texts as tokens, truncation, and the interface of all scorers."""

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
    """The tokens of pairs of a query and a document, and how many tokens of each were cut off."""

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
        """Begin to bind the weights in other threads."""

    def memory_plan(self, tokens: int) -> dict[str, int]:
        """Bytes by purpose, including the working memory of a step of `tokens` tokens."""

    def tokens(self, pair: tuple[str, str], truncate: str) -> tuple[Tokens, int]:
        """The tokens of a query and a document, and how many were cut off; `truncate` is one of TRUNCATIONS."""

    def ranges(self, tokens: Sequence[Tokens]) -> list[tuple[int, int]]:
        """The parts (first, last) in which `scores` yields."""

    def scores(self, tokens: Sequence[Tokens]) -> Iterator[np.ndarray]:
        """One number per pair, float32, part by part; `activated` turns them into scores."""

    def activated(self, raw: np.ndarray, activation: str | None = None) -> np.ndarray:
        """Scores, float32: higher means more relevant. `activation` is for classifiers only."""


class WithEncoder:
    """Base of scorers that run an encoder."""

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
        """The raw scores, float32 [n], from the output of the encoder's head."""
        raise NotImplementedError


def sigmoid(raw: np.ndarray) -> np.ndarray:
    import numpy as np

    return (1.0 / (1.0 + np.exp(-raw.astype(np.float64)))).astype(np.float32)


def check_truncate(mode: str) -> str:
    if mode not in TRUNCATIONS:
        raise InputError("rerank", f"must be one of {', '.join(TRUNCATIONS)}", given=mode, field="truncate")
    return mode


def excess(length: int, limit: int, truncate: str) -> int:
    """How many tokens of a pair must be cut; TooLongError if `truncate` is "error"."""
    if length > limit and truncate == "error":
        raise TooLongError(
            "rerank",
            f"has {length} tokens, the model takes {limit}",
            advice="shorten it, or give truncate='head'",
            field="pair",
            length=length,
            limit=limit,
        )
    return max(length - limit, 0)


def framed(
    before: list[int], document: list[int], after: list[int], limit: int, truncate: str
) -> tuple[list[int], int]:
    """The ids of a document between those before and after it, cut to `limit`, and how many tokens were cut."""
    cut = excess(len(before) + len(document) + len(after), limit, truncate)
    if cut > len(document):
        length = len(before) + len(after)
        raise TooLongError(
            "rerank",
            f"has a query of {length} tokens with the text around it, the model takes {limit}",
            advice="shorten the query",
            field="pair",
            length=length,
            limit=limit,
        )
    kept = document[cut:] if truncate == "tail" else document[: len(document) - cut]
    return [*before, *kept, *after], cut
