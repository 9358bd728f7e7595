"""POST /v1/embeddings: vectors of texts, ids or pictures, as numbers or as base64 of little-endian float32."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET

from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.openai import answers
from weft.serve.openai.completions import split_inputs
from weft.serve.openai.schemas import EmbeddingItem, EmbeddingRequest, ImageUrl
from weft.serve.pictures.embedding import embed_items
from weft.serve.pictures.reading import Sent, is_data_url
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
    items = _items(body)
    if any(isinstance(item, Sent) for item in items):
        made = await embed_items(context, body.model, items, asked)
    else:
        made = await embed_inputs(context, body.model, cast("list[str] | list[list[int]]", items), asked)
    usage = answers.Usage(
        prompt_tokens=made.tokens, total_tokens=made.tokens, truncated_tokens=sum(made.dropped) or UNSET
    )
    write = _base64 if body.encoding_format == "base64" else _numbers

    def written() -> list[answers.Embedding]:
        return [answers.Embedding(index=i, embedding=write(vector)) for i, vector in enumerate(made.vectors)]

    data = await asyncio.to_thread(written)
    return Json(answers.Embeddings(data=data, model=body.model, usage=usage), large=True)


def _items(body: EmbeddingRequest) -> list[Any]:
    """The inputs: texts, lists of token ids, or texts and pictures."""
    alone = isinstance(body.input, (str, EmbeddingItem))
    given: list[Any] = [body.input] if alone else list(cast("list[Any]", body.input))
    pictures = body.modality == "image" or (body.modality is None and any(map(is_data_url, given)))
    if not pictures and not any(isinstance(item, EmbeddingItem) for item in given):
        return split_inputs(given, "input")
    if not all(isinstance(item, (str, EmbeddingItem)) for item in given):
        raise invalid("mixes token ids with pictures or objects; send one kind", "input", code="invalid_value")
    places = ["input"] if alone else [f"input[{i}]" for i in range(len(given))]
    return [_item(item, where, body.modality) for item, where in zip(given, places)]


def _item(item: str | EmbeddingItem, where: str, modality: str | None) -> str | Sent:
    if isinstance(item, str):
        picture = modality == "image" or (modality is None and is_data_url(item))
        return Sent(item, where) if picture else item
    named = {name: value for name in ("text", "image", "image_url") if (value := getattr(item, name)) is not None}
    if len(named) != 1:
        raise invalid('must have one of "text", "image" and "image_url": a vector is of one of them', where)
    ((name, value),) = named.items()
    if item.type is not None and ("text" in item.type) != (name == "text"):
        raise invalid(f"is {item.type!r}, but the item has {name}", f"{where}.type")
    if name == "text":
        return cast("str", value)
    return Sent(value.url, f"{where}.image_url.url") if isinstance(value, ImageUrl) else Sent(value, f"{where}.{name}")


def _numbers(vector: np.ndarray) -> list[float]:
    found: list[float] = vector.tolist()
    return found


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
