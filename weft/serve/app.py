"""The application: the routes of every API, behind the guard."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from weft.serve.admin import routes as admin
from weft.serve.admin.openapi import openapi_route
from weft.serve.anthropic import routes as anthropic
from weft.serve.http.bodies import Receive
from weft.serve.http.endpoint import Endpoint
from weft.serve.http.guard import Guard
from weft.serve.http.routes import Route, Scope, Send
from weft.serve.llama import routes as llama
from weft.serve.models.pool import Entry
from weft.serve.ollama import routes as ollama
from weft.serve.openai import routes as openai
from weft.serve.responses import routes as responses
from weft.serve.serving import Serving
from weft.serve.settings import Settings
from weft.serve.tei import routes as tei
from weft.serve.training import routes as training
from weft.serve.versions import routes as versions
from weft.serve.versions.following import entry_for, registry_folder


class App:
    """The ASGI application of a server; `serving` is its state."""

    def __init__(self, settings: Settings, entries: list[Entry] | None = None) -> None:
        if entries is None:
            folder = registry_folder(settings)
            entries = [entry_for(spec, folder) for spec in settings.models]
        self.serving = Serving(settings, entries)
        self.routes = all_routes()
        served = [
            StarletteRoute(route.path, Endpoint(route, self.serving), methods=[route.method]) for route in self.routes
        ]
        self._router = Router(_by_path(served), redirect_slashes=False, lifespan=self.serving.lifespan)
        self._guarded = Guard(self._router, self.serving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # makes starlette's router raise for an unknown path instead of answering by itself
        await self._guarded(scope, receive, send)


def _by_path(routes: list[StarletteRoute]) -> Sequence[StarletteRoute]:
    """Routes with fixed paths first: a path with a parameter would match theirs."""
    return sorted(routes, key=lambda route: "{" in route.path)


def all_routes() -> list[Route]:
    """Every route, and the one that documents them; a new API is one entry here."""
    routes = [
        *admin.ROUTES,
        *openai.ROUTES,
        *anthropic.ROUTES,
        *ollama.ROUTES,
        *tei.ROUTES,
        *llama.ROUTES,
        *responses.ROUTES,
        *versions.ROUTES,
        *training.ROUTES,
    ]
    return [*routes, openapi_route(routes)]
