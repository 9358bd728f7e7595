"""The routes of OpenAI's API."""

from weft.serve.http.routes import Route
from weft.serve.openai import answers, schemas
from weft.serve.openai.chat import chat
from weft.serve.openai.completions import complete
from weft.serve.openai.embeddings import embed
from weft.serve.openai.listing import list_models, show_model

ROUTES = [
    Route("GET", "/v1/models", list_models, "The models, and the state of each", answer=answers.ModelList),
    Route("GET", "/v1/models/{model:path}", show_model, "One model", answer=answers.ModelCard),
    Route(
        "POST",
        "/v1/chat/completions",
        chat,
        "Answer a conversation",
        body=schemas.ChatRequest,
        answer=answers.ChatCompletion,
        work="generate",
    ),
    Route(
        "POST",
        "/v1/completions",
        complete,
        "Continue a text",
        body=schemas.CompletionRequest,
        answer=answers.TextCompletion,
        work="generate",
    ),
    Route(
        "POST",
        "/v1/embeddings",
        embed,
        "Vectors of texts and pictures",
        body=schemas.EmbeddingRequest,
        answer=answers.Embeddings,
        work="embed",
    ),
]
