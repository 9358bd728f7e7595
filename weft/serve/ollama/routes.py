"""The routes of Ollama's API."""

from functools import partial

from weft.serve.http.routes import Route
from weft.serve.ollama import chat, embed, listing, pulling, schemas

_route = partial(Route, shape="ollama")

ROUTES = [
    _route("POST", "/api/chat", chat.chat, "Answer a conversation", body=schemas.ChatRequest, work="generate"),
    _route("POST", "/api/generate", chat.generate, "Answer a prompt", body=schemas.GenerateRequest, work="generate"),
    _route("POST", "/api/embed", embed.embed, "Vectors of texts", body=schemas.EmbedRequest, work="embed"),
    _route(
        "POST", "/api/embeddings", embed.embed_one, "The vector of a text", body=schemas.OldEmbedRequest, work="embed"
    ),
    _route("GET", "/api/tags", listing.tags, "The models"),
    _route("GET", "/api/ps", listing.running, "The models in memory"),
    _route("GET", "/api/version", listing.version, "weft's version"),
    _route("POST", "/api/show", listing.show, "The properties of a model", body=schemas.ShowRequest),
    _route("POST", "/api/pull", pulling.pull, "Download a model", body=schemas.PullRequest),
]
