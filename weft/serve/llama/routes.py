"""llama-server's own routes."""

from weft.serve.http.routes import Route
from weft.serve.llama import schemas, tokens

ROUTES = [
    Route("POST", "/tokenize", tokens.tokenize, "Tokens of texts", body=schemas.TokenizeRequest),
    Route("POST", "/detokenize", tokens.detokenize, "The text of tokens", body=schemas.DetokenizeRequest),
    Route("POST", "/apply-template", tokens.apply_template, "A conversation as text", body=schemas.TemplateRequest),
    Route("GET", "/props", tokens.props, "What the generator is set to"),
]
