"""Reranking: how well documents answer a query, read together with it; and other classifiers of texts."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.rerank.reranker import Ranked as Ranked
    from weft.rerank.reranker import Reranker as Reranker
    from weft.rerank.text_classifier import Classified as Classified
    from weft.rerank.text_classifier import TextClassifier as TextClassifier

_HOMES = {
    "Classified": "text_classifier",
    "Ranked": "reranker",
    "Reranker": "reranker",
    "TextClassifier": "text_classifier",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
