"""Haystack: `WeftTextEmbedder` for queries and `WeftDocumentEmbedder` for documents, two components.

Annotations are evaluated here: Haystack reads the types of `run` to connect components.
"""

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict

from weft.errors import InputError
from weft.integrations import embedder_of


class _Lazy:
    """A model that is loaded by `warm_up`, or when it is first needed; a load that failed is not tried again."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._model, self._options = model, options
        self._embedder: Any = None
        self._failure: Exception | None = None

    def get(self) -> Any:
        if self._failure is not None:
            raise self._failure
        if self._embedder is None:
            try:
                self._embedder = embedder_of(self._model, None, self._options)
            except Exception as error:
                self._failure = error
                raise
        return self._embedder


@component
class WeftTextEmbedder:
    """The vector of a query; `options` are `weft.Embedder`'s."""

    def __init__(self, model: str, options: dict[str, Any] | None = None) -> None:
        self.model = model
        self.options = dict(options or {})
        self._lazy = _Lazy(model, self.options)

    def warm_up(self) -> None:
        """Load the model."""
        self._lazy.get()

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, model=self.model, options=self.options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "WeftTextEmbedder":
        return default_from_dict(cls, data)

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """`embedding`, and in `meta` what made it."""
        if not isinstance(text, str):
            raise TypeError(f"a query is a text: got {type(text).__name__}; WeftDocumentEmbedder takes documents")
        embedder = self._lazy.get()
        return {"embedding": embedder.encode_query(text).tolist(), "meta": _meta(self.model, embedder)}


@component
class WeftDocumentEmbedder:
    """Documents with vectors: of the fields in `meta_fields_to_embed` and the content, joined by `separator`."""

    def __init__(
        self,
        model: str,
        options: dict[str, Any] | None = None,
        meta_fields_to_embed: list[str] | None = None,
        separator: str = "\n",
    ) -> None:
        self.model = model
        self.options = dict(options or {})
        self.meta_fields_to_embed = list(meta_fields_to_embed or [])
        self.separator = separator
        self._lazy = _Lazy(model, self.options)

    def warm_up(self) -> None:
        """Load the model."""
        self._lazy.get()

    def to_dict(self) -> dict[str, Any]:
        names = ("model", "options", "meta_fields_to_embed", "separator")
        return default_to_dict(self, **{name: getattr(self, name) for name in names})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "WeftDocumentEmbedder":
        return default_from_dict(cls, data)

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """`documents`, copies with their vectors, and in `meta` what made them."""
        if not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
            raise TypeError("documents are a list of Document; WeftTextEmbedder takes a query")
        embedder = self._lazy.get()
        vectors = embedder.encode_document([self._text(one) for one in documents])
        made = [_with_vector(one, vector.tolist()) for one, vector in zip(documents, vectors)]
        return {"documents": made, "meta": _meta(self.model, embedder)}

    def _text(self, document: Document) -> str:
        given = [document.meta.get(name) for name in self.meta_fields_to_embed]
        return self.separator.join([*(str(value) for value in given if value is not None), document.content or ""])


def _with_vector(document: Document, vector: list[float]) -> Document:
    from dataclasses import replace

    if document.content is None:
        raise InputError(f"[haystack] the document {document.id} has no content to embed")
    return replace(document, embedding=vector)


def _meta(model: str, embedder: Any) -> dict[str, Any]:
    return {"model": model, "fingerprint": str(embedder.fingerprint)}
