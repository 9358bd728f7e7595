"""Chroma: `WeftEmbeddingFunction("all-MiniLM-L6-v2")` for `create_collection(embedding_function=…)`.

Importing this module registers the function with Chroma, so that collections made with it can be opened by name; in a
process that has not imported it Chroma says `Embedding function weft not found`.
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
    Chroma stores the model, every option and the fingerprint in a collection's configuration. A function that it builds
    from that makes the same vectors, or raises an error. For a function given to `get_collection` Chroma compares only
    the name, "weft", whatever its model: call `check(collection)` to compare the fingerprints.
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
        if fingerprint is None:  # otherwise the collection exists and has a space
            self._check_space()
        check_fingerprint(fingerprint, self.embedder, self.model)

    def _check_space(self) -> None:
        """Checked here because Chroma ignores errors of `default_space`, and stores no configuration then."""
        measure = self.embedder.similarity_name
        if self._space is None and measure not in SPACES:
            raise InputError(
                "chroma",
                f"must be given, since Chroma does not have {measure}, the similarity measure of {self.model}",
                field="space",
                advice='choose another, such as space="l2", or use weft.Index',
            )
        if self._space is not None and self._space not in SPACES.values():
            raise InputError("chroma", f"must be one of {', '.join(SPACES.values())}", given=self._space, field="space")

    @property
    def fingerprint(self) -> str:
        """The embedder's fingerprint; `fingerprint_of(collection)` gives that of a collection."""
        return str(self.embedder.fingerprint)

    def check(self, collection: Any) -> None:
        """Raise FingerprintError if the collection's vectors were made by another model."""
        check_fingerprint(fingerprint_of(collection), self.embedder, self.model)

    def __call__(self, input: Documents) -> Embeddings:
        return _rows(self.embedder.encode_document(_several(input)))

    def embed_query(self, input: Documents) -> Embeddings:
        return _rows(self.embedder.encode_query(_several(input)))

    @staticmethod
    def name() -> str:
        return "weft"

    def is_legacy(self) -> bool:
        return False  # without this Chroma builds another function, and loads the model again, to find out

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
                "chroma",
                f"the collection was made with embedder= ({config.get('model')}), which its configuration cannot store",
                advice="open it with embedding_function=WeftEmbeddingFunction(embedder=…) and call check(collection)",
            )
        options = dict(config)
        if isinstance(options.get("limits"), Mapping):
            options["limits"] = Limits(**options["limits"])
        return WeftEmbeddingFunction(**options)

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        if old_config.get("fingerprint") != new_config.get("fingerprint"):
            raise FingerprintError(
                "chroma",
                f"the model of a collection cannot be changed from {old_config.get('model')} to "
                f"{new_config.get('model')}, nor its options",
                advice="make a new collection and embed the documents again",
            )

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        if not isinstance(config.get("model"), str):
            raise InputError(
                "chroma", "must be a string in the configuration", given=config.get("model"), field="model"
            )


def fingerprint_of(collection: Any) -> str:
    """The fingerprint of a collection made with a WeftEmbeddingFunction; its model is not loaded."""
    kept = (collection.configuration_json.get("embedding_function") or {}).get("config") or {}
    if "fingerprint" not in kept:
        raise InputError("chroma", f"the collection {collection.name!r} was not made with a WeftEmbeddingFunction")
    return str(kept["fingerprint"])


def _kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as JSON values; others are refused, because Chroma would then store no configuration at all."""
    from weft.embed import Limits

    kept = {}
    for name, value in options.items():
        plain = asdict(value) if isinstance(value, Limits) else dict(value) if isinstance(value, Mapping) else value
        kept[name] = os.fspath(plain) if isinstance(plain, os.PathLike) else plain
        try:
            json.dumps(kept[name])
        except (TypeError, ValueError):
            raise InputError(
                "chroma",
                f"is a {type(value).__name__}, which a collection's configuration cannot store",
                field=name,
                advice=f"give embedder=weft.Embedder(…, {name}=…) instead",
            ) from None
    return kept


def _several(texts: Any) -> list[str]:
    from weft.embed.inputs import many_texts, texts_of

    return texts_of(many_texts(texts, "input"), "input")


def _rows(vectors: np.ndarray) -> Embeddings:
    return list(vectors)
