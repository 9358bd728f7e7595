"""POST /predict, as TEI has it; /classify and /v1/classify, as vLLM has them: the labels of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from weft.serve.http.faults import Fault, invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.openai.events import now
from weft.serve.tei.embed import kept, token_headers
from weft.serve.tei.schemas import ClassifyRequest, PredictRequest
from weft.serve.work.classifying import Labelled, classify
from weft.serve.work.scoring import first_of

if TYPE_CHECKING:
    from weft.rerank.text_classifier import Text


def _model(context: Context, given: str | None) -> str:
    """The given model, else the first classifier, else the first reranker."""
    found = given or first_of(context, "classify") or first_of(context, "rerank")
    if found is None:
        raise Fault(404, "this server has no model that classifies texts", kind="not_found_error", code="no_classifier")
    return found


async def predict(context: Context, body: PredictRequest) -> Answer:
    """The labels of each input by descending score. A list of strings is one input, a text or a pair, as in TEI."""
    inputs = body.inputs
    alone = isinstance(inputs, str) or all(isinstance(one, str) for one in inputs)
    if not isinstance(inputs, str) and alone and len(inputs) > 2:
        raise invalid(f"has {len(inputs)} strings; write [[…], […]] for several texts", "inputs")
    given: list[Any] = [inputs] if alone else list(inputs)
    texts: list[Text] = [one if isinstance(one, str) else _text(one) for one in given]
    truncate = kept(body.truncate, body.truncation_direction)
    model = _model(context, body.model)
    found = await classify(context, model, texts, "inputs", truncate=truncate, raw=bool(body.raw_scores))
    rows = [_ordered(found, row) for row in found.scores]
    return Json(rows[0] if alone else rows, headers=token_headers(found.tokens, found.dropped))


def _text(given: list[str]) -> Text:
    return given[0] if len(given) == 1 else (given[0], given[1])


def _ordered(found: Labelled, row: list[float]) -> list[dict[str, Any]]:
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    return [{"score": row[i], "label": found.labels[i]} for i in order]


async def classify_texts(context: Context, body: ClassifyRequest) -> Answer:
    """The best label of each input, and the scores of all labels in the model's order; null where a classifier that
    weft has trained abstains."""
    texts: list[Text] = [body.input] if isinstance(body.input, str) else list(body.input)
    model = _model(context, body.model)
    truncate = kept(body.truncate or body.truncate_prompt_tokens == -1, body.truncation_direction)
    raw = body.use_activation is False or body.activation is False
    found = await classify(context, model, texts, "input", truncate=truncate, raw=raw)
    data = []
    for index, row in enumerate(found.scores):
        best = max(range(len(row)), key=lambda i: row[i])
        data.append(
            {
                "index": index,
                "label": found.labels[best] if row[best] >= found.threshold else None,
                "probs": row,
                "num_classes": len(row),
            }
        )
    return Json(
        {
            "id": f"classify-{uuid4().hex}",
            "object": "list",
            "created": now(),
            "model": model,
            "data": data,
            "usage": usage(found.tokens, found.dropped),
        }
    )


def usage(tokens: int, dropped: int) -> dict[str, Any]:
    """The tokens of a request that generates none."""
    counts = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    return {**counts, "truncated_tokens": dropped} if dropped else counts
