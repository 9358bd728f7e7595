"""Chroma: `WeftEmbeddingFunction("all-MiniLM-L6-v2")` for `create_collection(embedding_function=…)`.

Importing this module registers it, so that a collection that was made with it opens with it; a process that has not
imported it is told `Embedding function weft not found`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from weft.errors import FingerprintError, InputError
from weft.integrations import check_fingerprint, embedder_of, name_of, needs

with needs("chromadb"):
    from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
    from chromadb.utils.embedding_functions import register_embedding_function

if TYPE_CHECKING:
    import numpy as np

    from weft.embed import BaseEmbedder

SPACES: dict[str, Space] = {"cosine": "cosine", "dot": "ip", "euclidean": "l2"}
GIVEN = "embedder"  # in the configuration of a function whose embedder the caller made


@register_embedding_function
class WeftEmbeddingFunction(EmbeddingFunction[Documents]):
    """Vectors of documents and queries, each with the model's own prompt; options are `weft.Embedder`'s.

    Collections compare by the model's own measure, or by `space` ("cosine", "l2", "ip").
    The configuration that Chroma keeps has the model, every option and the fingerprint. A function that Chroma builds
    from it, for a collection that is opened by name alone, makes the same vectors or none. A function that is given to
    `get_collection` Chroma compares by name only, "weft", whatever its model: `check(collection)` compares the rest.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        fingerprint: str | None = None,
        *,
        embedder: BaseEmbedder | None = None,
        space: Space | None = None,
        **options: Any,
    ) -> None:
        self._kept, self._space = _kept(options), space
        self.embedder = embedder_of(model, embedder, options)
        self.model, self.options = name_of(None, self.embedder), options
        if embedder is not None:
            self._kept[GIVEN] = "given"
        if space is not None:
            self._kept["space"] = space
        if fingerprint is None:  # else there is a collection, which has its space
            self._check_space()
        check_fingerprint(fingerprint, self.embedder, self.model)

    def _check_space(self) -> None:
        """Here, since what `default_space` raises Chroma takes for a function without a configuration."""
        measure = self.embedder.similarity_name
        if self._space is None and measure not in SPACES:
            raise InputError(
                f"[chroma] the measure of {self.model} is {measure}, which Chroma has not; say which of its own comes "
                'next, as space="l2", or use weft.Index, which has it'
            )
        if self._space is not None and self._space not in SPACES.values():
            raise InputError(f"[chroma] space is {self._space!r}; Chroma has {', '.join(SPACES.values())}")

    @property
    def fingerprint(self) -> str:
        """What makes these vectors and no others; `fingerprint_of(collection)` is that of a collection's."""
        return str(self.embedder.fingerprint)

    def check(self, collection: Any) -> None:
        """Raise FingerprintError where the collection's vectors are not such as this makes."""
        check_fingerprint(fingerprint_of(collection), self.embedder, self.model)

    def __call__(self, input: Documents) -> Embeddings:
        return _rows(self.embedder.encode_document(_several(input)))

    def embed_query(self, input: Documents) -> Embeddings:
        return _rows(self.embedder.encode_query(_several(input)))

    @staticmethod
    def name() -> str:
        return "weft"

    def is_legacy(self) -> bool:
        return False  # Chroma would build another function, and load the model again, to find that out

    def default_space(self) -> Space:
        return self._space or SPACES.get(self.embedder.similarity_name, "cosine")

    def supported_spaces(self) -> list[Space]:
        return ["cosine", "l2", "ip"]

    def get_config(self) -> dict[str, Any]:
        return {"model": self.model, "fingerprint": self.fingerprint, **self._kept}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> WeftEmbeddingFunction:
        from weft.embed import Limits

        if GIVEN in config:
            raise InputError(
                f"[chroma] the collection was made with an embedder of the caller's ({config.get('model')}); open it "
                "with embedding_function=WeftEmbeddingFunction(embedder=…), and check(collection)"
            )
        options = dict(config)
        if isinstance(options.get("limits"), Mapping):
            options["limits"] = Limits(**options["limits"])
        return WeftEmbeddingFunction(**options)

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        if old_config.get("fingerprint") != new_config.get("fingerprint"):
            raise FingerprintError(
                f"[chroma] the collection keeps the model that made its vectors, {old_config.get('model')}: "
                f"got {new_config.get('model')} or other options; make a new collection and embed the documents again"
            )

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        if not isinstance(config.get("model"), str):
            raise InputError("[chroma] the configuration names no model")


def fingerprint_of(collection: Any) -> str:
    """Of the vectors in a collection that was made with a WeftEmbeddingFunction, without loading its model."""
    kept = (collection.configuration_json.get("embedding_function") or {}).get("config") or {}
    if "fingerprint" not in kept:
        raise InputError(f"[chroma] the collection {collection.name!r} was not made with a WeftEmbeddingFunction")
    return str(kept["fingerprint"])


def _kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as JSON has them. What it has not is refused here: Chroma would keep no configuration at all."""
    from weft.embed import Limits

    kept = {}
    for name, value in options.items():
        plain = asdict(value) if isinstance(value, Limits) else dict(value) if isinstance(value, Mapping) else value
        kept[name] = os.fspath(plain) if isinstance(plain, os.PathLike) else plain
        try:
            json.dumps(kept[name])
        except (TypeError, ValueError):
            raise InputError(
                f"[chroma] {name} is a {type(value).__name__}, which a collection's configuration cannot keep; "
                f"give embedder=weft.Embedder(…, {name}=…) instead"
            ) from None
    return kept


def _several(texts: Any) -> list[str]:
    from weft.embed.inputs import many_texts, texts_of

    return texts_of(many_texts(texts, "input"), "input")


def _rows(vectors: np.ndarray) -> Embeddings:
    return list(vectors)
