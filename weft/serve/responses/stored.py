"""GET, DELETE and cancel of stored responses, and their input items; for the key that made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.serve.http.faults import Fault, invalid
from weft.serve.http.rejoining import Rejoined, last_seen
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.responses.store import Stored

if TYPE_CHECKING:
    from weft.serve.work.kept import Kept

MOST_ITEMS = 100  # of one page of input items


def _found(context: Context) -> Stored:
    return context.serving.responses.find(context.path["id"], context.call.tenant)


async def show(context: Context, _: None) -> Answer:
    """A response as it stands; with `stream=true` its events after `starting_after`, and those to come."""
    response = _found(context).response
    if context.query.get("stream", "false").lower() not in ("true", "1"):
        return Json(response)
    if not response["background"]:
        raise invalid("is only for responses made with background: true", "stream")
    return Rejoined(_events(context), last_seen(context))


def _events(context: Context) -> Kept:
    """The events of a response in the background: a kept stream with the response's id."""
    return context.serving.kept.find(context.path["id"], context.call.tenant)


async def delete(context: Context, _: None) -> Answer:
    """Forget a response, and stop it if it is still generated."""
    stored = _found(context)
    context.serving.responses.delete(stored.id)
    if stored.response["status"] == "in_progress":
        _events(context).stop("the response was deleted")
    return Json({"id": stored.id, "object": "response", "deleted": True})


async def cancel(context: Context, _: None) -> Answer:
    """Stop a response that is generated in the background, and answer when it has stopped."""
    response = _found(context).response
    if not response["background"]:
        raise invalid("can be cancelled only if it was made with background: true", "response_id")
    if response["status"] == "in_progress":
        kept = _events(context)
        kept.stop("the response was cancelled")
        await kept.ended()
    return Json(_found(context).response)


async def input_items(context: Context, _: None) -> Answer:
    """The items that a response answered, newest first unless `order=asc`; `after` is the id of the last one seen."""
    items = list(_found(context).items)
    query = context.query
    order, limit = query.get("order", "desc"), query.get("limit", "20")
    if order not in ("asc", "desc"):
        raise invalid("must be asc or desc", "order")
    if not limit.isdigit() or not 1 <= int(limit) <= MOST_ITEMS:
        raise invalid(f"must be 1 to {MOST_ITEMS}", "limit")
    items = items if order == "asc" else items[::-1]
    after = query.get("after")
    if after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise Fault(404, f"no item has the id {after!r:.80}", kind="not_found_error", param="after")
        items = items[place + 1 :]
    page: list[dict[str, Any]] = items[: int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return Json({"object": "list", "data": page, **ends, "has_more": len(items) > len(page)})
