"""POST /embed and /similarity, GET /info."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from weft.serve.http.faults import Fault, invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.openai.completions import split_inputs
from weft.serve.tei.schemas import EmbedRequest, SimilarityRequest
from weft.serve.work.embedding import embed_texts, embed_token_ids


def embedder_name(context: Context, given: str | None) -> str:
    """The model that is meant: the one that is named, else the first that embeds."""
    if given is not None:
        return given
    found = next((entry.name for entry in context.serving.models if entry.kind == "embed"), None)
    if found is None:
        raise Fault(404, "this server has no model that embeds", kind="not_found_error", code="model_not_found")
    return found


def kept(truncate: bool | None, direction: str | None) -> str | None:
    """TEI says from which side tokens are cut, weft which part is kept."""
    if not truncate:
        return None
    return "tail" if (direction or "").lower() == "left" else "head"


async def embed(context: Context, body: EmbedRequest) -> Answer:
    """One vector for each input."""
    model = embedder_name(context, body.model)
    inputs = split_inputs(body.inputs, "inputs")
    if isinstance(inputs[0], str):
        how: dict[str, Any] = {"truncate": kept(body.truncate, body.truncation_direction)}
        texts = cast("list[str]", inputs)
        made = await embed_texts(context, model, texts, prompt_name=body.prompt_name, param="inputs", **how)
    else:
        made = await embed_token_ids(context, model, cast("list[list[int]]", inputs), param="inputs")
    normalised = bool(made.runner.info["normalise"])
    if body.normalize is False and normalised:
        raise invalid("the model's own recipe makes vectors of length one; normalize cannot be false", "normalize")
    if body.normalize is not False and not normalised:
        made = made.normalised()
    if body.dimensions is not None:
        made = made.shortened(body.dimensions)
    dropped = sum(made.dropped)
    told = ((b"x-truncated-tokens", str(dropped).encode()),) if dropped else ()
    numbers = await asyncio.to_thread(made.vectors.tolist)
    return Json(numbers, headers=((b"x-compute-tokens", str(made.tokens).encode()), *told), large=True)


async def similarity(context: Context, body: SimilarityRequest) -> Answer:
    """How near each sentence is to the source sentence, by the model's own measure."""
    model = embedder_name(context, body.model)
    how = body.parameters
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    made = await embed_texts(
        context,
        model,
        texts,
        truncate=kept(how.truncate, how.truncation_direction) if how is not None else None,
        prompt_name=how.prompt_name if how is not None else None,
        param="inputs",
    )
    return Json(made.runner.embedder.similarity(made.vectors[:1], made.vectors[1:])[0].tolist())


async def info(context: Context, _: None) -> Answer:
    """The embedder, its limits and its recipe, so that clients can check how vectors are made."""
    from weft import __version__

    entry, _adapter = context.serving.models.find(embedder_name(context, context.query.get("model")))
    runner = await context.call.stack.enter_async_context(context.serving.models.lease(entry))
    found, limits = runner.info, context.serving.settings.limits
    return Json(
        {
            "model_id": entry.name,
            "model_sha": None,
            "model_dtype": str(found.get("compute", "f32")),
            "model_type": {"embedding": {"pooling": found["pooling"]}},
            "max_concurrent_requests": limits.waiting,
            "max_input_length": found["max_tokens"],
            "max_batch_tokens": limits.embed_tokens,
            "max_client_batch_size": limits.embed_inputs,
            "auto_truncate": False,
            "tokenization_workers": 1,
            "version": __version__,
            "dimension": found["dimension"],
            "normalise": found["normalise"],
            "prompts": found["prompts"],
            "similarity": found["similarity"],
        }
    )
