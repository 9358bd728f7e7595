"""POST /rerank, /v1/rerank, /v2/rerank: documents by how near they are to a query.

The scores are the similarity of an embedding model, with the model's own prompts for queries and documents.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.tei.embed import embedder_name, kept
from weft.serve.tei.schemas import Document, RerankRequest
from weft.serve.work.embedding import embed_texts
from weft.serve.work.generating import lease_embedder

DOCUMENT_PROMPTS = ("document", "passage", "corpus")


async def rerank(context: Context, body: RerankRequest) -> Answer:
    """The documents in falling order of their score, in the shape of the body that was sent."""
    if (body.documents is None) == (body.texts is None):
        raise invalid("give documents, or texts as TEI has it", "documents")
    given = body.texts if body.texts is not None else body.documents or []
    param = "texts" if body.texts is not None else "documents"
    texts = [item.text if isinstance(item, Document) else item for item in given]
    model = embedder_name(context, body.model)
    runner, _ = await lease_embedder(context, model)
    prompts = runner.embedder.recipe.prompts
    how: dict[str, Any] = {"truncate": kept(body.truncate, body.truncation_direction)}
    query_prompt = "query" if prompts.get("query") else None
    document_prompt = next((name for name in DOCUMENT_PROMPTS if prompts.get(name)), None)
    query = await embed_texts(context, model, [body.query], prompt_name=query_prompt, param="query", **how)
    found = await embed_texts(context, model, texts, prompt_name=document_prompt, param=param, **how)
    scores = runner.embedder.similarity(query.vectors, found.vectors)[0].tolist()
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
    tokens = query.tokens + found.tokens
    usage: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens}
    dropped = sum(query.dropped) + sum(found.dropped)
    if dropped:
        usage["truncated_tokens"] = dropped
    return Json({"id": f"rerank-{uuid4().hex}", "model": model, "results": results, "usage": usage})
