"""POST /rerank, /v1/rerank, /v2/rerank: documents ranked by their relevance to a query."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.tei.embed import embedder_name, kept, token_headers
from weft.serve.tei.schemas import Document, RerankRequest
from weft.serve.work.scoring import Wanted, first_of, scorer_for


async def rerank(context: Context, body: RerankRequest) -> Answer:
    """The documents in descending order of score, in the shape that belongs to the body."""
    if (body.documents is None) == (body.texts is None):
        raise invalid("or texts is needed, and not both", "documents")
    given = body.texts if body.texts is not None else body.documents or []
    param = "texts" if body.texts is not None else "documents"
    texts = [item.text if isinstance(item, Document) else item for item in given]
    model = embedder_name(context, body.model or first_of(context, "rerank"))
    wanted = Wanted(
        param,
        truncate=kept(body.truncate, body.truncation_direction),
        document_tokens=body.max_tokens_per_doc,
        raw=body.raw_scores,
    )
    scorer = await scorer_for(context, model, wanted)
    scores = await scorer.scores(body.query, texts)
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: body.top_n]
    with_texts = body.return_text or body.return_documents
    if body.texts is not None:
        shown = [{"index": i, "score": scores[i], **({"text": texts[i]} if with_texts else {})} for i in order]
        return Json(shown, headers=token_headers(scorer.tokens, scorer.dropped))
    results = [
        {"index": i, "relevance_score": scores[i], **({"document": {"text": texts[i]}} if with_texts else {})}
        for i in order
    ]
    usage: dict[str, Any] = {"prompt_tokens": scorer.tokens, "total_tokens": scorer.tokens}
    if scorer.dropped:
        usage["truncated_tokens"] = scorer.dropped
    return Json({"id": f"rerank-{uuid4().hex}", "model": model, "results": results, "usage": usage})
