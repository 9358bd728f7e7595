"""POST /rerank, /v1/rerank, /v2/rerank: documents by how near they are to a query."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.tei.embed import embedder_name, kept
from weft.serve.tei.schemas import Document, RerankRequest
from weft.serve.work.scoring import scorer_for, scorer_name


async def rerank(context: Context, body: RerankRequest) -> Answer:
    """The documents in falling order of their score, in the shape of the body that was sent."""
    if (body.documents is None) == (body.texts is None):
        raise invalid("give documents, or texts as TEI has it", "documents")
    given = body.texts if body.texts is not None else body.documents or []
    param = "texts" if body.texts is not None else "documents"
    texts = [item.text if isinstance(item, Document) else item for item in given]
    model = embedder_name(context, scorer_name(context, body.model))
    truncate = kept(body.truncate, body.truncation_direction)
    scorer = await scorer_for(context, model, truncate=truncate, param=param)
    scores = await scorer.scores(body.query, texts)
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))
    if body.texts is not None:
        shown = [{"index": i, "score": scores[i], **({"text": texts[i]} if body.return_text else {})} for i in order]
        return Json(shown)
    results = [
        {
            "index": i,
            "relevance_score": scores[i],
            **({"document": {"text": texts[i]}} if body.return_documents else {}),
        }
        for i in order[: body.top_n]
    ]
    usage: dict[str, Any] = {"prompt_tokens": scorer.tokens, "total_tokens": scorer.tokens}
    if scorer.dropped:
        usage["truncated_tokens"] = scorer.dropped
    return Json({"id": f"rerank-{uuid4().hex}", "model": model, "results": results, "usage": usage})
