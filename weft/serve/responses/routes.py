"""The routes of OpenAI's responses API."""

from weft.serve.http.routes import Route
from weft.serve.responses import stored
from weft.serve.responses.respond import respond
from weft.serve.responses.schemas import ResponsesRequest

ROUTES = [
    Route("POST", "/v1/responses", respond, "Answer with a list of items", body=ResponsesRequest, work="generate"),
    Route("GET", "/v1/responses/{id}", stored.show, "A stored response"),
    Route("DELETE", "/v1/responses/{id}", stored.delete, "Forget a response"),
    Route("POST", "/v1/responses/{id}/cancel", stored.cancel, "Stop a response in the background"),
    Route("GET", "/v1/responses/{id}/input_items", stored.input_items, "The items a response answered"),
]
