"""POST /v1/embeddings: vectors of texts or ids, as numbers or as base64 of little-endian float32."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

from msgspec import UNSET

from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.openai import answers
from weft.serve.openai.completions import split_inputs
from weft.serve.openai.schemas import EmbeddingRequest
from weft.serve.work.embedding import embed_texts, embed_token_ids

if TYPE_CHECKING:
    import numpy as np


async def embed(context: Context, body: EmbeddingRequest) -> Answer:
    """One vector for each input."""
    inputs = split_inputs(body.input, "input")
    if inputs and isinstance(inputs[0], str):
        made = await embed_texts(
            context,
            body.model,
            inputs,
            adapter=body.adapter,
            truncate=body.truncate,
            prompt=body.prompt,
            prompt_name=body.prompt_name,
        )
    else:
        made = await embed_token_ids(context, body.model, inputs, adapter=body.adapter)  # type: ignore[arg-type]
    vectors = made.vectors if body.dimensions is None else shortened(made.vectors, body.dimensions)
    usage = answers.Usage(
        prompt_tokens=made.tokens, total_tokens=made.tokens, truncated_tokens=sum(made.dropped) or UNSET
    )
    write = _base64 if body.encoding_format == "base64" else _numbers

    def written() -> list[answers.Embedding]:
        return [answers.Embedding(index=i, embedding=write(vector)) for i, vector in enumerate(vectors)]

    data = await asyncio.to_thread(written)
    return Json(answers.Embeddings(data=data, model=body.model, usage=usage), large=True)


def _numbers(vector: np.ndarray) -> list[float]:
    found: list[float] = vector.tolist()
    return found


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def shortened(vectors: np.ndarray, dimensions: int, param: str = "dimensions") -> np.ndarray:
    """The first numbers of each vector, of length one again, as OpenAI does; for models trained to be cut."""
    import numpy as np

    if dimensions > vectors.shape[1]:
        raise invalid(f"{param} is {dimensions}, the model's vectors have {vectors.shape[1]}", param)
    if dimensions == vectors.shape[1]:
        return vectors
    cut = vectors[:, :dimensions]
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.float32(1e-12))
