"""Reranking: how well documents answer a query, read together with it."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.rerank.reranker import Ranked as Ranked
    from weft.rerank.reranker import Reranker as Reranker

_HOMES = {"Ranked": "reranker", "Reranker": "reranker"}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
