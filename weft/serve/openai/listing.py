"""GET /v1/models: the models and adapters, and the state of each."""

from __future__ import annotations

from weft.serve.http.routes import Answer, Context, Json
from weft.serve.models.pool import Entry
from weft.serve.openai import answers


def cards(entry: Entry) -> list[answers.ModelCard]:
    """A model's card, and one for each of its adapters."""
    same = {
        "created": entry.created,
        "kind": entry.kind,
        "state": entry.state,
        "max_model_len": entry.outline.max_tokens,
        "parameters": entry.facts.parameters,
        "quantisation": entry.facts.quantisation,
        "licence": entry.facts.licence,
        "file_bytes": entry.facts.file_bytes,
    }
    own = answers.ModelCard(id=entry.name, root=entry.name, bytes=entry.outline.total_bytes, **same)  # type: ignore[arg-type]
    adapters = [
        answers.ModelCard(id=name, root=name, parent=entry.name, bytes=0, **same)  # type: ignore[arg-type]
        for name in entry.adapters
    ]
    return [own, *adapters]


async def list_models(context: Context, _: None) -> Answer:
    return Json(answers.ModelList(data=[card for entry in context.serving.models for card in cards(entry)]))


async def show_model(context: Context, _: None) -> Answer:
    name = context.path["model"]
    entry, _adapter = context.serving.models.find(name)
    return Json(next(card for card in cards(entry) if card.id == name))
