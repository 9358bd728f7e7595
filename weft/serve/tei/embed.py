"""POST /embed, /embed_all and /similarity, GET /info."""

from __future__ import annotations

import asyncio

from weft.serve.http.faults import Fault, invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.models.classifier import ClassifyRunner
from weft.serve.models.generator import GenerateRunner
from weft.serve.models.reranker import RerankRunner
from weft.serve.openai.completions import split_inputs
from weft.serve.tei.schemas import EmbedAllRequest, EmbedRequest, SimilarityParameters, SimilarityRequest
from weft.serve.work.embedding import Asked, embed_inputs, embed_texts, embed_tokens
from weft.serve.work.generating import lease, wrong_kind
from weft.serve.work.scoring import first_of


def embedder_name(context: Context, given: str | None) -> str:
    """The given model, else the first embedding model."""
    found = given or first_of(context, "embed")
    if found is None:
        raise Fault(404, "this server has no embedding model", kind="not_found_error", code="model_not_found")
    return found


def kept(truncate: bool | None, direction: str | None) -> str | None:
    """Which part of a long text is kept; TEI names the side that is cut."""
    if not truncate:
        return None
    return "tail" if (direction or "").lower() == "left" else "head"


async def embed(context: Context, body: EmbedRequest) -> Answer:
    """One vector for each input."""
    model = embedder_name(context, body.model)
    asked = Asked(
        "inputs",
        dimensions=body.dimensions,
        truncate=kept(body.truncate, body.truncation_direction),
        prompt_name=body.prompt_name,
        remedy="truncate: true",
    )
    made = await embed_inputs(context, model, split_inputs(body.inputs, "inputs"), asked)
    normalised = made.fingerprint.normalise
    if body.normalize is False and normalised:
        raise invalid("cannot be false: this model always normalises its vectors", "normalize")
    if body.normalize is not False and not normalised:
        made = made.normalised()
    numbers = await asyncio.to_thread(made.vectors.tolist)
    return Json(numbers, headers=token_headers(made.tokens, sum(made.dropped)), large=True)


def token_headers(tokens: int, dropped: int) -> tuple[tuple[bytes, bytes], ...]:
    """Headers with the number of tokens computed, and of those cut off."""
    truncated = ((b"x-truncated-tokens", str(dropped).encode()),) if dropped else ()
    return ((b"x-compute-tokens", str(tokens).encode()), *truncated)


async def embed_all(context: Context, body: EmbedAllRequest) -> Answer:
    """A vector for each token of each input, special tokens included: the model's last hidden states."""
    model = embedder_name(context, body.model)
    asked = Asked(
        "inputs",
        truncate=kept(body.truncate, body.truncation_direction),
        prompt_name=body.prompt_name,
        remedy="truncate: true",
    )
    made = await embed_tokens(context, model, split_inputs(body.inputs, "inputs"), asked)
    numbers = await asyncio.to_thread(lambda: [states.tolist() for states in made.states])
    return Json(numbers, headers=token_headers(made.tokens, made.dropped), large=True)


async def similarity(context: Context, body: SimilarityRequest) -> Answer:
    """The similarity of each sentence to the source sentence, by the model's own measure."""
    model = embedder_name(context, body.model)
    how = body.parameters or SimilarityParameters()
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    truncate = kept(how.truncate, how.truncation_direction)
    asked = Asked("inputs", truncate=truncate, prompt_name=how.prompt_name, remedy="parameters.truncate: true")
    made = await embed_texts(context, model, texts, asked)
    return Json(made.runner.embedder.similarity(made.vectors[:1], made.vectors[1:])[0].tolist())


async def info(context: Context, _: None) -> Answer:
    """The model, its limits and its settings, so that clients can check how vectors and scores are computed."""
    from weft import __version__

    kinds = ("embed", "rerank", "classify")
    given = context.query.get("model") or next((name for kind in kinds if (name := first_of(context, kind))), None)
    name = embedder_name(context, given)
    runner = (await lease(context, name))[2]
    if isinstance(runner, GenerateRunner):
        raise wrong_kind(name, runner, "embed")
    found, limits = runner.info, context.serving.settings.limits
    facts = {
        "model_id": context.serving.models.find(name)[0].name,
        "model_sha": None,
        "model_dtype": str(found.get("compute", "f32")),
        "max_concurrent_requests": limits.waiting,
        "max_input_length": found["max_tokens"],
        "max_batch_tokens": limits.embed_tokens,
        "max_client_batch_size": limits.embed_inputs,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": __version__,
    }
    ids = found.get("label_ids", {})
    labels = {"id2label": {str(id): label for label, id in ids.items()}, "label2id": ids}
    if isinstance(runner, ClassifyRunner):
        named = list(enumerate(runner.labels))
        labels = {"id2label": {str(id): name for id, name in named}, "label2id": {name: id for id, name in named}}
        return Json({**facts, "model_type": {"classifier": labels}, "activation": runner.activation})
    if isinstance(runner, RerankRunner):
        return Json({**facts, "model_type": {"reranker": labels}, "method": found["method"]})
    recipe = {part: found[part] for part in ("dimension", "normalise", "prompts", "similarity")}
    return Json({**facts, "model_type": {"embedding": {"pooling": found["pooling"]}}, **recipe})
