"""Chroma: `WeftEmbeddingFunction("all-MiniLM-L6-v2")` for `create_collection(embedding_function=…)`.

Importing this module registers it, so that a collection that was made with it opens with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
from chromadb.utils.embedding_functions import register_embedding_function

from weft.errors import InputError
from weft.integrations import embedder_of

if TYPE_CHECKING:
    import numpy as np

SPACES: dict[str, Space] = {"cosine": "cosine", "dot": "ip", "euclidean": "l2"}


@register_embedding_function
class WeftEmbeddingFunction(EmbeddingFunction[Documents]):
    """Vectors of documents and queries, each with the model's own prompt; options are `weft.Embedder`'s.

    The configuration that Chroma stores has the fingerprint: a collection is not opened with a model that makes other
    vectors under the same name.
    """

    def __init__(self, model: str, fingerprint: str | None = None, **options: Any) -> None:
        self.model = model
        self.options = options
        self.embedder = embedder_of(model, None, options)
        if fingerprint is not None and fingerprint != str(self.embedder.fingerprint):
            raise InputError(
                f"[chroma] {model} is not what made this collection's vectors ({fingerprint}); re-embed it"
            )

    def __call__(self, input: Documents) -> Embeddings:
        return _rows(self.embedder.encode_document(list(input)))

    def embed_query(self, input: Documents) -> Embeddings:
        return _rows(self.embedder.encode_query(list(input)))

    @staticmethod
    def name() -> str:
        return "weft"

    def default_space(self) -> Space:
        return SPACES.get(self.embedder.similarity_name, "cosine")

    def supported_spaces(self) -> list[Space]:
        return ["cosine", "l2", "ip"]

    def get_config(self) -> dict[str, Any]:
        return {"model": self.model, "fingerprint": str(self.embedder.fingerprint), **self.options}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> WeftEmbeddingFunction:
        return WeftEmbeddingFunction(**config)

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        if old_config.get("fingerprint") != new_config.get("fingerprint"):
            raise ValueError("a collection keeps the model that made its vectors; make a new one and re-embed")

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        if not isinstance(config.get("model"), str):
            raise ValueError("the configuration names no model")


def _rows(vectors: np.ndarray) -> Embeddings:
    return list(vectors)
