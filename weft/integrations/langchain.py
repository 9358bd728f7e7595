"""LangChain: `WeftEmbeddings("all-MiniLM-L6-v2")` is an `Embeddings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings

from weft.integrations import embedder_of

if TYPE_CHECKING:
    from weft.embed import BaseEmbedder


class WeftEmbeddings(Embeddings):
    """Vectors of documents and queries, each with the model's own prompt; options are `weft.Embedder`'s."""

    def __init__(self, model: str | None = None, *, embedder: BaseEmbedder | None = None, **options: Any) -> None:
        self.model = model
        self.embedder = embedder_of(model, embedder, options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""
        found: list[list[float]] = self.embedder.encode_document(texts).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        found: list[float] = self.embedder.encode_query(text).tolist()
        return found

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text; the event loop goes on meanwhile."""
        found: list[list[float]] = (await self.embedder.aencode_document(texts)).tolist()
        return found

    async def aembed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        found: list[float] = (await self.embedder.aencode_query(text)).tolist()
        return found
