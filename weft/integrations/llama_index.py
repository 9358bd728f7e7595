"""LlamaIndex: `WeftEmbedding(model_name="all-MiniLM-L6-v2")` is a `BaseEmbedding`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import Field, PrivateAttr

from weft.integrations import embedder_of

if TYPE_CHECKING:
    from weft.embed import BaseEmbedder


class WeftEmbedding(BaseEmbedding):
    """Vectors of texts and queries, each with the model's own prompt; `options` are `weft.Embedder`'s."""

    options: dict[str, Any] = Field(default_factory=dict)
    _embedder: Any = PrivateAttr()

    def __init__(
        self,
        model_name: str | None = None,
        *,
        embedder: BaseEmbedder | None = None,
        options: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        made = embedder_of(model_name, embedder, dict(options or {}))
        name = model_name or str(getattr(made, "info", {}).get("model", "weft"))
        fields: dict[str, Any] = {"embed_batch_size": 256, "options": dict(options or {}), **more}
        super().__init__(model_name=name, **fields)
        self._embedder = made

    @classmethod
    def class_name(cls) -> str:
        return "WeftEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        found: list[float] = self._embedder.encode_query(query).tolist()
        return found

    def _get_text_embedding(self, text: str) -> list[float]:
        found: list[float] = self._embedder.encode_document(text).tolist()
        return found

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = self._embedder.encode_document(texts).tolist()
        return found

    async def _aget_query_embedding(self, query: str) -> list[float]:
        found: list[float] = (await self._embedder.aencode_query(query)).tolist()
        return found

    async def _aget_text_embedding(self, text: str) -> list[float]:
        found: list[float] = (await self._embedder.aencode_document(text)).tolist()
        return found

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = (await self._embedder.aencode_document(texts)).tolist()
        return found
