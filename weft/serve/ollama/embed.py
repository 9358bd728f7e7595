"""POST /api/embed, and /api/embeddings as it was before."""

from __future__ import annotations

import asyncio
from typing import Any

from weft.serve.http.routes import Answer, Context, Json
from weft.serve.ollama.chat import named
from weft.serve.ollama.schemas import EmbedRequest, OldEmbedRequest
from weft.serve.work.embedding import Asked, embed_texts
from weft.serve.work.generating import keep_loaded


async def embed(context: Context, body: EmbedRequest) -> Answer:
    """One vector for each text."""
    model = named(context, body.model)
    keep_loaded(context, model, body.keep_alive)
    texts = [body.input] if isinstance(body.input, str) else body.input
    truncate = "head" if body.truncate else None
    asked = Asked(dimensions=body.dimensions, truncate=truncate, remedy="truncate: true, which keeps its beginning")
    made = await embed_texts(context, model, texts, asked)
    answer: dict[str, Any] = {
        "model": body.model,
        "embeddings": await asyncio.to_thread(made.vectors.tolist),
        "total_duration": int(context.call.age_s * 1e9),
        "load_duration": 0,
        "prompt_eval_count": made.tokens,
    }
    if any(made.dropped):
        answer["truncated_tokens"] = sum(made.dropped)
    return Json(answer, large=True)


async def embed_one(context: Context, body: OldEmbedRequest) -> Answer:
    model = named(context, body.model)
    keep_loaded(context, model, body.keep_alive)
    made = await embed_texts(context, model, [body.prompt], Asked("prompt"))
    return Json({"embedding": made.vectors[0].tolist()})
