"""A reranker in a server: pairs of many requests share its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.errors import UnsupportedError
from weft.serve.models.steps import StepRunner

if TYPE_CHECKING:
    import numpy as np

    from weft.rerank import Reranker
    from weft.rerank.pairs import Pairs
    from weft.rerank.text_classifier import Text
    from weft.runtime import Adapters, Tokens


class RerankRunner(StepRunner):
    """One loaded reranker."""

    kind = "rerank"

    def __init__(self, reranker: Reranker, *, waiting: int) -> None:
        self.reranker = reranker
        super().__init__(reranker, self._raw, width=1, waiting=waiting)

    @property
    def adapters(self) -> Adapters:
        raise UnsupportedError("rerank", "adapters are not supported for rerankers in a server")

    @property
    def labels(self) -> list[str] | None:
        """The label of a classifier that has only one; None for models that do not classify."""
        names = self.reranker.labels
        return names if len(names) == 1 else None

    @property
    def activation(self) -> str:
        """The activation of that label's score in a classification, whatever the model's is for reranking."""
        return "sigmoid"

    async def token_texts(self, texts: Sequence[Text], truncate: str | None) -> Pairs:
        """The tokens of each text or pair, computed by another thread."""
        return await self.tokenized(lambda: self.reranker.token_texts(texts, truncate=truncate))

    async def logits(self, pairs: Pairs) -> tuple[np.ndarray, float]:
        """The logits of the label, float32 [n, 1], and the seconds spent waiting."""
        return await self._steps.rows(pairs.tokens)

    async def token_pairs(self, pairs: Sequence[tuple[str, str]], truncate: str | None) -> Pairs:
        """The tokens of each pair, computed by another thread."""
        return await self.tokenized(lambda: self.reranker.token_pairs(pairs, truncate=truncate))

    def _raw(self, tokens: list[Tokens], _adapter: str | None) -> np.ndarray:
        """Scores before the activation, since requests that share a step may ask for different ones."""
        from weft.rerank.pairs import Pairs

        return self.reranker.raw_scores(Pairs(tokens, [0] * len(tokens)), progress=False)[:, None]

    async def scores(self, pairs: Pairs, activation: str | None = None) -> tuple[list[float], float]:
        """A score for each pair, and the seconds spent waiting."""
        raw, waited = await self._steps.rows(pairs.tokens)
        found: list[float] = self.reranker.activated(raw[:, 0], activation).tolist()
        return found, waited
