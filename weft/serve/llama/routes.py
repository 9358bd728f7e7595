"""llama-server's own routes."""

from weft.serve.http.routes import Route
from weft.serve.llama import completion, schemas, tokens

ROUTES = [
    Route("POST", "/tokenize", tokens.tokenize, "Tokens of texts", body=schemas.TokenizeRequest),
    Route("POST", "/detokenize", tokens.detokenize, "The text of tokens", body=schemas.DetokenizeRequest),
    Route("POST", "/apply-template", tokens.apply_template, "A conversation as text", body=schemas.TemplateRequest),
    *(
        Route(
            "POST",
            path,
            completion.complete,
            "Continue a text, in llama-server's form",
            body=schemas.CompletionRequest,
            work="generate",
        )
        for path in ("/completion", "/completions")
    ),
    Route(
        "POST",
        "/infill",
        completion.infill,
        "Fill in the text between two others",
        body=schemas.InfillRequest,
        work="generate",
    ),
    Route("GET", "/props", tokens.props, "What the generator is set to"),
]
