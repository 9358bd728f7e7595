"""POST /models/load and /models/unload, as llama-server's router has them: models in and out of memory by name."""

from __future__ import annotations

from msgspec import Struct

from weft.serve.admin.health import described
from weft.serve.http.faults import Fault
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.openai.schemas import Name


class ModelRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    model: Name


async def load(context: Context, body: ModelRequest) -> Answer:
    """Load a model and answer when it is ready; others may be unloaded to make room."""
    entry, _ = context.serving.models.find(body.model)
    async with context.serving.models.lease(entry):
        return Json({"success": True, "model": described(entry)})


async def unload(context: Context, body: ModelRequest) -> Answer:
    """Unload a model that no request uses."""
    entry, _ = context.serving.models.find(body.model)
    if not await context.serving.models.unload(entry) and entry.runner is not None:
        raise Fault(409, f"{entry.name} is in use; unload it when its requests have ended", code="model_in_use")
    return Json({"success": True, "model": described(entry)})
