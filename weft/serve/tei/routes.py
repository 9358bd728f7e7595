"""The routes of TEI, and of reranking."""

from weft.serve.http.routes import Route
from weft.serve.tei import embed, rerank, schemas

ROUTES = [
    Route("POST", "/", embed.embed, "Vectors of texts", body=schemas.EmbedRequest, shape="tei", work="embed"),
    Route("POST", "/embed", embed.embed, "Vectors of texts", body=schemas.EmbedRequest, shape="tei", work="embed"),
    Route(
        "POST",
        "/similarity",
        embed.similarity,
        "Sentences compared with one",
        body=schemas.SimilarityRequest,
        shape="tei",
        work="embed",
    ),
    Route("GET", "/info", embed.info, "The model, its limits and its recipe", shape="tei"),
    Route(
        "POST", "/rerank", rerank.rerank, "Documents by score", body=schemas.RerankRequest, shape="tei", work="embed"
    ),
    Route("POST", "/v1/rerank", rerank.rerank, "Documents by score", body=schemas.RerankRequest, work="embed"),
    Route("POST", "/v2/rerank", rerank.rerank, "Documents by score", body=schemas.RerankRequest, work="embed"),
]
