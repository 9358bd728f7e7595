"""GET /v1/registry and /v1/registry/{name}; POST …/promote, …/rollback, …/evaluate, …/shadow; DELETE …/shadow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import asdict

from weft.errors import InvalidTransitionError
from weft.serve.http.faults import Fault, message_of, unavailable
from weft.serve.http.routes import Answer, Context, Json

if TYPE_CHECKING:
    from weft.registry import Registry
    from weft.serve.versions.following import Following
    from weft.serve.versions.schemas import EvaluateRequest, PromoteRequest, RollbackRequest, ShadowRequest

EVENTS = 100  # of a name that are shown

T = TypeVar("T")


def _following(context: Context) -> Following:
    found = context.serving.following
    if found is None:
        raise Fault(403, "this server has no registry; start it with --registry FOLDER", code="registry_off")
    return found


async def _asked(context: Context, work: Callable[[Registry], T]) -> T:
    """What the registry answers, in another thread; a move that is not allowed is a 409."""
    registry = _following(context).registry
    try:
        return await asyncio.to_thread(work, registry)
    except InvalidTransitionError as error:
        raise Fault(409, message_of(error), code="refused") from None


async def names(context: Context, _: None) -> Answer:
    """All names with their aliases, and how they are served here."""
    following = _following(context)
    found = await _asked(context, lambda registry: registry.names())
    rows = [
        {
            "name": one.name,
            "kind": one.kind,
            "aliases": dict(one.aliases),
            "versions": [version.version for version in one.versions],
            "served": following.served(one.name),
        }
        for one in found
    ]
    return Json({"object": "list", "data": rows})


async def show(context: Context, _: None) -> Answer:
    """One name: its versions with their measures, the last shadow run, and what happened."""
    name = context.path["name"]

    def read(registry: Registry) -> dict[str, Any]:
        found, run = registry.named(name), registry.shadow(name)
        return {
            "name": found.name,
            "kind": found.kind,
            "aliases": dict(found.aliases),
            "versions": [version.as_dict() for version in found.versions],
            "shadow": None if run is None else run.as_dict(),
            "events": [event.as_dict() for event in registry.events(name, limit=EVENTS)],
        }

    answer = await _asked(context, read)
    return Json({**answer, "served": _following(context).served(name)}, large=True)


async def promote(context: Context, body: PromoteRequest) -> Answer:
    """Let an alias mean a version; answers when this server serves it."""
    name = context.path["name"]
    move = await _asked(
        context, lambda registry: registry.promote(f"{name}@{body.version}", to=body.alias, force=body.force)
    )
    return await _moved(context, name, move.as_dict())


async def rollback(context: Context, body: RollbackRequest) -> Answer:
    """Let an alias mean what it meant before; answers when this server serves it."""
    name = context.path["name"]
    move = await _asked(context, lambda registry: registry.rollback(name, alias=body.alias))
    return await _moved(context, name, move.as_dict())


async def _moved(context: Context, name: str, move: dict[str, Any]) -> Answer:
    following = _following(context)
    await following.update(name, retry=True)
    if following.failed(name):
        message = (
            f"{name}@{move['alias']} is {move['version']} now, but this server cannot load it and serves the old one"
        )
        raise unavailable(f"{message}; its log says why", "not_swapped", retry_after_s=None)
    return Json({**move, "served": following.served(name)})


async def evaluate(context: Context, body: EvaluateRequest) -> Answer:
    """Record measures of a version."""
    which = f"{context.path['name']}@{body.version}"
    found = await _asked(context, lambda registry: registry.evaluate(which, body.metrics, data=body.data))
    return Json(found.as_dict())


async def start_shadow(context: Context, body: ShadowRequest) -> Answer:
    """Begin a shadow run."""
    limits = {name: value for name, value in asdict(body).items() if name != "candidate"}
    which = f"{context.path['name']}@{body.candidate}"
    found = await _asked(context, lambda registry: registry.start_shadow(which, **limits))
    return Json(found.as_dict())


async def stop_shadow(context: Context, _: None) -> Answer:
    """End a shadow run; its candidate has not passed."""
    found = await _asked(context, lambda registry: registry.stop_shadow(context.path["name"]))
    return Json(found.as_dict())
