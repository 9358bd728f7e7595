"""How near documents are to a query: anything with `scores(query, documents)` can say so; a reranker, or an embedding
model by the similarity of its vectors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from weft.errors import TooLongError
from weft.serve.http.faults import fault_of
from weft.serve.models.reranker import RerankRunner
from weft.serve.work.embedding import check_count, check_tokens, embed_texts, too_long
from weft.serve.work.generating import lease_embedder, lease_scorer

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


class Reranking:
    """The scores of a reranker, which reads the query and a document together."""

    def __init__(self, context: Context, runner: RerankRunner, model: str, *, truncate: str | None, param: str) -> None:
        self._context = context
        self._runner = runner
        self._model = model
        self._truncate = truncate
        self._param = param
        self.tokens = self.dropped = 0

    async def scores(self, query: str, documents: Sequence[str]) -> list[float]:
        check_count(self._context, len(documents), self._param)
        call, metrics = self._context.call, self._context.serving.metrics
        try:
            pairs = await self._runner.token_pairs(query, documents, self._truncate)
        except TooLongError as error:
            raise too_long(error, self._param) from None
        self.tokens, self.dropped = sum(map(len, pairs.tokens)), sum(pairs.dropped)
        check_tokens(self._context, self.tokens, self._param)
        call.prompt_tokens, call.began = self.tokens, time.monotonic()
        metrics.count("te_request_count", model=self._model)
        try:
            found, waited = await self._runner.scores(pairs)
        except Exception as error:
            fault = fault_of(error)
            metrics.count("te_request_failure", model=self._model, err=fault.code or str(fault.status))
            raise
        metrics.count("te_request_success", model=self._model)
        metrics.observe("te_request_queue_duration", waited, model=self._model)
        metrics.observe("te_request_duration", call.age_s, model=self._model)
        call.finish_reason = "stop"
        return found


async def scorer_for(context: Context, model: str, *, truncate: str | None, param: str) -> Scorer:
    """What scores documents with `model`; `param` is the field that they came in."""
    runner = await lease_scorer(context, model)
    if isinstance(runner, RerankRunner):
        return Reranking(context, runner, model, truncate=truncate, param=param)
    return Similarity(context, model, truncate=truncate, param=param)


def scorer_name(context: Context, given: str | None) -> str | None:
    """The model that is named, else the first that reranks, if there is one."""
    models = context.serving.models
    return given or next((entry.name for entry in models if entry.kind == "rerank"), None)
