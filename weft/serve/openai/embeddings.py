"""POST /v1/embeddings: vectors of texts or ids, as numbers or as base64 of little-endian float32."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

from msgspec import UNSET

from weft.serve.http.routes import Answer, Context, Json
from weft.serve.openai import answers
from weft.serve.openai.completions import split_inputs
from weft.serve.openai.schemas import EmbeddingRequest
from weft.serve.work.embedding import Asked, embed_inputs

if TYPE_CHECKING:
    import numpy as np


async def embed(context: Context, body: EmbeddingRequest) -> Answer:
    """One vector for each input."""
    asked = Asked(
        dimensions=body.dimensions,
        adapter=body.adapter,
        truncate=body.truncate,
        prompt=body.prompt,
        prompt_name=body.prompt_name,
        remedy='truncate: "head" or "tail", the part that is kept',
    )
    made = await embed_inputs(context, body.model, split_inputs(body.input, "input"), asked)
    usage = answers.Usage(
        prompt_tokens=made.tokens, total_tokens=made.tokens, truncated_tokens=sum(made.dropped) or UNSET
    )
    write = _base64 if body.encoding_format == "base64" else _numbers

    def written() -> list[answers.Embedding]:
        return [answers.Embedding(index=i, embedding=write(vector)) for i, vector in enumerate(made.vectors)]

    data = await asyncio.to_thread(written)
    return Json(answers.Embeddings(data=data, model=body.model, usage=usage), large=True)


def _numbers(vector: np.ndarray) -> list[float]:
    found: list[float] = vector.tolist()
    return found


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
