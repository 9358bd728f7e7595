"""The routes of Anthropic's API."""

from weft.serve.anthropic.messages import count_tokens, create
from weft.serve.anthropic.schemas import CountRequest, MessagesRequest
from weft.serve.http.routes import Route

ROUTES = [
    Route(
        "POST",
        "/v1/messages",
        create,
        "Answer a conversation",
        body=MessagesRequest,
        shape="anthropic",
        work="generate",
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "Tokens of a conversation",
        body=CountRequest,
        shape="anthropic",
    ),
]
