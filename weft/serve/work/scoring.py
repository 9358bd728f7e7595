"""Scores of documents for a query: by a reranker, or by the similarity of an embedding model's vectors."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from weft.errors import TooLongError
from weft.frozen import frozen
from weft.serve.http.faults import fault_of, invalid
from weft.serve.models.embedder import EmbedRunner
from weft.serve.models.reranker import RerankRunner
from weft.serve.work.embedding import Asked, check_count, check_tokens, embed_texts, too_long
from weft.serve.work.generating import lease_scorer, offer

if TYPE_CHECKING:
    import numpy as np

    from weft.serve.http.routes import Context
    from weft.text import Tokenizer

T = TypeVar("T")

DOCUMENT_PROMPTS = ("document", "passage", "corpus")
REMEDY = "truncate: true"  # every body of reranking has it


@frozen
class Wanted:
    """What a request asks for; `param` is the field of its documents."""

    param: str
    truncate: str | None = None  # which part of a long text is kept
    document_tokens: int | None = None  # that are kept of each document
    raw: bool | None = None  # before the activation or, if False, through a sigmoid; None: as the model's files say


class Scorer(ABC):
    """Scores documents; afterwards `tokens` is the number of tokens computed, and `dropped` of those cut off."""

    _runner: EmbedRunner | RerankRunner

    def __init__(self, context: Context, runner: EmbedRunner | RerankRunner, model: str, wanted: Wanted) -> None:
        self._context = context
        self._runner = runner
        self._model = model
        self._wanted = wanted
        self.tokens = self.dropped = 0

    async def scores(self, query: str, documents: Sequence[str]) -> list[float]:
        check_count(self._context, len(documents), self._wanted.param)
        most = self._wanted.document_tokens
        if most is not None:
            tokenizer, from_end = self._runner.tokenizer, self._wanted.truncate == "tail"
            documents, self.dropped = await asyncio.to_thread(_shortened, tokenizer, documents, most, from_end)
        return await self._scores(query, documents)

    async def pair_scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The score of each pair."""
        check_count(self._context, len(pairs), self._wanted.param)
        return await self._pair_scores(pairs)

    @abstractmethod
    async def _scores(self, query: str, documents: Sequence[str]) -> list[float]: ...

    @abstractmethod
    async def _pair_scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]: ...


class Similarity(Scorer):
    """Scores by the similarity of an embedding model, with the model's own prompts for queries and documents."""

    _runner: EmbedRunner

    async def _scores(self, query: str, documents: Sequence[str]) -> list[float]:
        embedder, wanted = self._runner.embedder, self._wanted
        prompts = embedder.recipe.prompts
        query_prompt = "query" if prompts.get("query") else None
        document_prompt = next((name for name in DOCUMENT_PROMPTS if prompts.get(name)), None)
        vectors = []
        for texts, prompt, param in (([query], query_prompt, "query"), (documents, document_prompt, wanted.param)):
            asked = Asked(param, truncate=wanted.truncate, prompt_name=prompt, remedy=REMEDY)
            made = await embed_texts(self._context, self._model, texts, asked)
            self.tokens += made.tokens
            self.dropped += sum(made.dropped)
            vectors.append(made.vectors)
        found: list[float] = embedder.similarity(*vectors)[0].tolist()
        return found

    async def _pair_scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The cosine of each pair's vectors: the two texts have the same part in it, so neither gets a prompt."""
        import numpy as np

        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        asked = Asked(self._wanted.param, truncate=self._wanted.truncate, remedy=REMEDY)
        made = (await embed_texts(self._context, self._model, texts, asked)).normalised()
        self.tokens, self.dropped = made.tokens, sum(made.dropped)
        place = {text: i for i, text in enumerate(texts)}
        left, right = (made.vectors[[place[pair[side]] for pair in pairs]] for side in (0, 1))
        found: list[float] = np.einsum("ij,ij->i", left, right).tolist()
        return found


class Reranking(Scorer):
    """Scores of a reranker, which reads the query and a document together."""

    _runner: RerankRunner

    async def _scores(self, query: str, documents: Sequence[str]) -> list[float]:
        return await self._pair_scores([(query, document) for document in documents])

    async def _pair_scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        wanted = self._wanted
        try:
            tokens = await self._runner.token_pairs(pairs, wanted.truncate)
        except TooLongError as error:
            if wanted.truncate is not None:  # the query alone leaves no room
                raise
            raise too_long(error, f"{wanted.param}: the query with text", wanted.param, REMEDY) from None
        self.tokens, self.dropped = sum(map(len, tokens.tokens)), self.dropped + sum(tokens.dropped)
        check_tokens(self._context, self.tokens, wanted.param)
        found = await counted(self._context, self.tokens, self._runner.scores(tokens, self._activation))

        async def compute(runner: RerankRunner) -> tuple[np.ndarray, np.ndarray]:
            import numpy as np

            scores, _ = await runner.scores(await runner.token_pairs(pairs, wanted.truncate), self._activation)
            return np.argsort(scores)[-1:], np.asarray(scores)

        offer(self._context, self._model, compute)
        return found

    @property
    def _activation(self) -> str | None:
        if self._wanted.raw is None or not _classifies(self._runner):
            return None
        return "identity" if self._wanted.raw else "sigmoid"


async def counted(context: Context, tokens: int, work: Awaitable[tuple[T, float]]) -> T:
    """The result of a scorer's or classifier's work, which also returns the seconds it waited; records its metrics."""
    call, metrics = context.call, context.serving.metrics
    call.prompt_tokens, call.began = tokens, time.monotonic()
    metrics.count("te_request_count", model=call.model)
    try:
        found, waited = await work
    except Exception as error:
        fault = fault_of(error)
        metrics.count("te_request_failure", model=call.model, err=fault.code or str(fault.status))
        raise
    metrics.count("te_request_success", model=call.model)
    metrics.observe("te_request_queue_duration", waited, model=call.model)
    metrics.observe("te_request_duration", call.age_s, model=call.model)
    call.finish_reason = "stop"
    return found


def _shortened(tokenizer: Tokenizer, texts: Sequence[str], most: int, from_end: bool) -> tuple[list[str], int]:
    """The first or last `most` tokens of each text, as text, and the number of tokens left out."""
    kept, dropped = [], 0
    for text in texts:
        places = tokenizer.encode_offsets(text, add_special=False).offsets
        over = len(places) - most
        if over > 0:  # a character that would be split is dropped whole
            text = text[int(places[over - 1][1]) :] if from_end else text[: int(places[most][0])]
            dropped += over
        kept.append(text)
    return kept, dropped


def _classifies(runner: RerankRunner | EmbedRunner) -> bool:
    return isinstance(runner, RerankRunner) and runner.reranker.method == "classifier"


async def scorer_for(context: Context, model: str, wanted: Wanted) -> Scorer:
    """The scorer for `model`."""
    runner = await lease_scorer(context, model)
    if wanted.raw and not _classifies(runner):
        raise invalid(f"needs a cross-encoder; {model} is not one", "raw_scores")
    made = Reranking if isinstance(runner, RerankRunner) else Similarity
    return made(context, runner, model, wanted)


def first_of(context: Context, kind: str) -> str | None:
    """The first model of a kind, if there is one."""
    return next((entry.name for entry in context.serving.models if entry.kind == kind), None)
