"""GET /openapi.json: every route, written from the schemas that check its body."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.serve.fields.client_settings import settings_for
from weft.serve.http.routes import Answer, Context, Json, Route
from weft.serve.openai.answers import Error

# The part of weft.serve that a route's handler is in, and the name of its group.
_TAGS = {
    "openai": "OpenAI",
    "anthropic": "Anthropic",
    "ollama": "Ollama",
    "tei": "TEI",
    "llama": "llama-server",
    "admin": "Server",
}
_PAGES = ("/", "/docs", "/metrics")  # answered as text
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REFUSALS = {
    "400": "The request is invalid; the message says why",
    "401": "An API key is required",
    "403": "The Host, the Origin or the operation is not allowed",
    "404": "The model does not exist",
    "409": "Another version is loaded than expected, a name is taken, or a model is in use",
    "410": "The events of the stream are no longer kept",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "429": "Too many requests; Retry-After says when to try again",
    "503": "The model or the server is not ready",
}


def openapi_route(others: Sequence[Route]) -> Route:
    """The route that documents `others` and itself."""

    async def openapi(context: Context, _: None) -> Answer:
        kinds = {entry.name: entry.kind for entry in context.serving.models}
        return Json(document([*others, own], kinds))

    own = Route("GET", "/openapi.json", openapi, "This document")
    return own


def document(routes: Sequence[Route], models: Mapping[str, str]) -> dict[str, Any]:
    """The OpenAPI document of `routes`; `models` maps each model's name to its kind."""
    from weft import __version__

    kinds = [kind for route in routes for kind in (route.body, route.answer) if kind is not None]
    unique = list(dict.fromkeys([*kinds, Error]))
    schemas, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    found = dict(zip(unique, schemas))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, found)
        _name_models(route, found, components, models)
        _add_settings(route, found, components)
    tags = dict.fromkeys([*_TAGS.values(), *map(_tag, routes)])
    return {
        "openapi": "3.1.0",
        "info": {"title": "weft", "version": __version__, "description": "Models over HTTP."},
        "tags": [{"name": tag} for tag in tags if any(_tag(route) == tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _name_models(route: Route, schemas: dict[Any, Any], components: dict[str, Any], models: Mapping[str, str]) -> None:
    """List the models that a body may name, if it must name one."""
    if route.body is None:
        return
    body = components[schemas[route.body]["$ref"].rsplit("/", 1)[1]]
    if "model" in body.get("required", ()):
        kind = route.work or "generate"
        body["properties"]["model"] = {"enum": [name for name, own in models.items() if own == kind]}


def _add_settings(route: Route, schemas: dict[Any, Any], components: dict[str, Any]) -> None:
    """List the settings of other servers that a body may have."""
    if route.body is None:
        return
    body = components[schemas[route.body]["$ref"].rsplit("/", 1)[1]]
    for name, row in settings_for(route.path).items():
        about = {
            "read": f"another name of {row.field}",
            "ignored": f"has no effect here: {row.note}",
            "refused": f"not supported: {row.note}",
        }[row.treatment]
        inside = name.startswith("options.")  # of Ollama's routes
        owner = components["Options"] if inside else body
        owner["properties"].setdefault(name.removeprefix("options."), {"description": about})


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    answer = schemas[route.answer] if route.answer is not None else {}
    made: dict[str, Any] = {
        "summary": route.summary,
        "tags": [_tag(route)],
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "responses": {"200": _response("Done", answer, route)},
        "security": [] if route.open else [{"key": []}, {}],
    }
    for status, why in _REFUSALS.items():
        shape = schemas[Error] if route.shape == "openai" else {}
        made["responses"][status] = {"description": why, "content": {"application/json": {"schema": shape}}}
    names = _PARAMETER.findall(route.path)
    if names:
        text = {"type": "string", "minLength": 1}
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    if route.body is not None:
        content = {"application/json": {"schema": schemas[route.body]}}
        made["requestBody"] = {"required": not route.optional_body, "content": content}
    return made


def _tag(route: Route) -> str:
    part = route.handler.__module__.removeprefix("weft.serve.").partition(".")[0]
    return _TAGS.get(part, part)


def _response(description: str, schema: Any, route: Route) -> dict[str, Any]:
    """The response of a route; routes that stream or send files have other media types as well."""
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if route.method == "POST":
        content |= {"text/event-stream": {}, "application/x-ndjson": {}}
    elif route.path in _PAGES or route.path.startswith("/page/"):
        content = {kind: {} for kind in ("text/html", "text/plain", "text/javascript", "text/css", "image/svg+xml")}
    return {"description": description, "content": content}
