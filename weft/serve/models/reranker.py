"""A reranker in a server: pairs of many requests share its steps, as the texts of an embedder do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.serve.models.embedder import EmbedRunner

if TYPE_CHECKING:
    import numpy as np

    from weft.rerank import Reranker
    from weft.rerank.pairs import Pairs
    from weft.runtime import Adapters, Tokens
    from weft.text import Tokenizer


@frozen
class _Rows:
    """Scores as what an EmbedRunner makes steps of: a vector of one number for each pair."""

    reranker: Reranker
    dimension: int = 1

    def encode_ids(self, tokens: Sequence[Tokens], adapter: str | None = None) -> np.ndarray:
        from weft.rerank.pairs import Pairs

        return self.reranker.score_tokens(Pairs(list(tokens), [0] * len(tokens)), progress=False)[:, None]


class RerankRunner:
    """One loaded reranker."""

    kind = "rerank"

    def __init__(self, reranker: Reranker, *, waiting: int) -> None:
        self.reranker = reranker
        self._steps = EmbedRunner(cast(Any, _Rows(reranker)), waiting=waiting)
        self._texts = ThreadPoolExecutor(1, "weft-tokens")

    @property
    def info(self) -> dict[str, Any]:
        return self.reranker.info

    @property
    def max_tokens(self) -> int:
        return self.reranker.max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self.reranker.tokenizer

    @property
    def adapters(self) -> Adapters:
        raise UnsupportedError("[rerank] a reranker takes no adapters in a server")

    @property
    def waiting(self) -> int:
        return self._steps.waiting

    @property
    def failure(self) -> BaseException | None:
        return None

    async def token_pairs(self, query: str, documents: Sequence[str], truncate: str | None) -> Pairs:
        """The tokens of each pair, made by another thread."""
        pairs = [(query, document) for document in documents]
        return await asyncio.get_running_loop().run_in_executor(
            self._texts, lambda: self.reranker.token_pairs(pairs, truncate=truncate)
        )

    async def scores(self, pairs: Pairs) -> tuple[list[float], float]:
        """A score for each pair, and the seconds that they waited."""
        found, waited = await self._steps.vectors(cast(Any, pairs.tokens))
        return found[:, 0].tolist(), waited

    async def close(self) -> None:
        await self._steps.close()
        self._texts.shutdown()
