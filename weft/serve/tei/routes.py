"""The routes of TEI, and of reranking."""

from weft.serve.http.routes import Route
from weft.serve.tei import classify, embed, rerank, schemas, score

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
    Route(
        "POST",
        "/embed_all",
        embed.embed_all,
        "A vector of each token",
        body=schemas.EmbedAllRequest,
        shape="tei",
        work="embed",
    ),
    Route(
        "POST",
        "/predict",
        classify.predict,
        "The labels of texts",
        body=schemas.PredictRequest,
        shape="tei",
        work="embed",
    ),
    *(
        Route("POST", path, classify.classify_texts, "The labels of texts", body=schemas.ClassifyRequest, work="embed")
        for path in ("/classify", "/v1/classify")
    ),
    *(
        Route("POST", path, score.score, "Scores of pairs of texts", body=schemas.ScoreRequest, work="embed")
        for path in ("/score", "/v1/score")
    ),
    Route("GET", "/info", embed.info, "The model, its limits and its recipe", shape="tei"),
    Route(
        "POST", "/rerank", rerank.rerank, "Documents by score", body=schemas.RerankRequest, shape="tei", work="embed"
    ),
    Route("POST", "/v1/rerank", rerank.rerank, "Documents by score", body=schemas.RerankRequest, work="embed"),
    Route("POST", "/v2/rerank", rerank.rerank, "Documents by score", body=schemas.RerankRequest, work="embed"),
]
