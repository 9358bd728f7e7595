"""How near documents are to a query: anything with `scores(query, documents)` can say so; here an embedding model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from weft.serve.work.embedding import embed_texts
from weft.serve.work.generating import lease_embedder

if TYPE_CHECKING:
    from weft.serve.http.routes import Context

DOCUMENT_PROMPTS = ("document", "passage", "corpus")


class Scorer(Protocol):
    """Scores of documents, in their order; afterwards how many tokens that took, and how many were cut off."""

    tokens: int
    dropped: int

    async def scores(self, query: str, documents: Sequence[str]) -> list[float]: ...


class Similarity:
    """The similarity of an embedding model, with the model's own prompts for queries and documents."""

    def __init__(self, context: Context, model: str, *, truncate: str | None, param: str) -> None:
        self._context = context
        self._model = model
        self._truncate = truncate
        self._param = param  # the field that the documents came in
        self.tokens = self.dropped = 0

    async def scores(self, query: str, documents: Sequence[str]) -> list[float]:
        runner, _ = await lease_embedder(self._context, self._model)
        prompts = runner.embedder.recipe.prompts
        query_prompt = "query" if prompts.get("query") else None
        document_prompt = next((name for name in DOCUMENT_PROMPTS if prompts.get(name)), None)
        vectors = []
        for texts, prompt, param in (([query], query_prompt, "query"), (documents, document_prompt, self._param)):
            made = await embed_texts(
                self._context, self._model, texts, prompt_name=prompt, param=param, truncate=self._truncate
            )
            self.tokens += made.tokens
            self.dropped += sum(made.dropped)
            vectors.append(made.vectors)
        found: list[float] = runner.embedder.similarity(*vectors)[0].tolist()
        return found
