"""GET and DELETE /weft/streams/{id}: rejoin a kept stream after a lost connection, or stop it."""

from __future__ import annotations

from weft.serve.http.rejoining import Rejoined, last_seen
from weft.serve.http.routes import Answer, Context, Json


async def rejoin(context: Context, _: None) -> Answer:
    """The events after Last-Event-ID, or `starting_after` of the query."""
    kept = context.serving.kept.find(context.path["id"], context.call.tenant)
    return Rejoined(kept, last_seen(context))


async def stop(context: Context, _: None) -> Answer:
    """End a stream's generation."""
    kept = context.serving.kept.find(context.path["id"], context.call.tenant)
    kept.stop()
    return Json({"id": kept.id, "stopped": True})
