"""Haystack: `WeftTextEmbedder` for queries and `WeftDocumentEmbedder` for documents, two components.

Haystack loads a serialised pipeline only if this module is allowed:
`Pipeline.loads(text, allowed_modules=["weft.integrations.haystack"])`. Annotations are evaluated in this module:
Haystack connects components by the types of `run`.
"""

from typing import Any

from weft.embed import BaseEmbedder
from weft.errors import InputError
from weft.integrations import check_choice, check_fingerprint, embedder_of, name_of, needs

with needs("haystack-ai"):
    from haystack import Document, component, default_from_dict, default_to_dict


class _Lazy:
    """A model that is loaded by `warm_up` or when it is first used; a failed load is not retried.

    `fingerprint` is that of stored vectors, None if it is unknown; another model is an error.
    """

    def __init__(
        self, model: str | None, embedder: BaseEmbedder | None, options: dict[str, Any], fingerprint: str | None
    ) -> None:
        check_choice(model, embedder, options)
        self._model, self._options, self._fingerprint = model, options, fingerprint
        self._given, self._embedder = embedder is not None, embedder
        self._failure: Exception | None = None

    def get(self) -> BaseEmbedder:
        if self._failure is not None:
            raise self._failure
        if self._embedder is None:
            try:
                made = embedder_of(self._model, None, self._options)
                check_fingerprint(self._fingerprint, made, str(self._model))
                self._embedder = made
            except Exception as error:
                self._failure = error
                raise
        return self._embedder

    def written(self) -> dict[str, Any]:
        """Its part of a serialised pipeline: with the fingerprint, once the model is loaded."""
        if self._given:
            raise InputError(
                "haystack", "cannot be serialised", field="embedder", advice="give a model and its options instead"
            )
        found = self._fingerprint if self._embedder is None else str(self._embedder.fingerprint)
        return {"model": self._model, "options": self._options, "fingerprint": found}

    def meta(self) -> dict[str, Any]:
        embedder = self.get()
        return {"model": name_of(self._model, embedder), "fingerprint": str(embedder.fingerprint)}


@component
class WeftTextEmbedder:
    """The vector of a query; keywords are `weft.Embedder`'s, and `options` the same as a dictionary.

    If it is serialised after the model was loaded, its `fingerprint` is included: when it is read again, it makes the
    same vectors or raises an error.
    """

    def __init__(
        self,
        model: str | None = None,
        options: dict[str, Any] | None = None,
        *,
        embedder: BaseEmbedder | None = None,
        fingerprint: str | None = None,
        **more: Any,
    ) -> None:
        self.model, self.options = model, {**(options or {}), **more}
        self._lazy = _Lazy(model, embedder, self.options, fingerprint)

    def warm_up(self) -> None:
        """Load the model."""
        self._lazy.get()

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, **self._lazy.written())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "WeftTextEmbedder":
        return default_from_dict(cls, data)

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """`embedding`, and in `meta` the model and its fingerprint."""
        if not isinstance(text, str):
            raise TypeError(f"a query is a text: got {type(text).__name__}; WeftDocumentEmbedder takes documents")
        return {"embedding": self._lazy.get().encode_query(text).tolist(), "meta": self._lazy.meta()}


@component
class WeftDocumentEmbedder:
    """Documents with vectors: of the fields in `meta_fields_to_embed` and the content, joined by `separator`.

    Other keywords are `weft.Embedder`'s, and `options` the same as a dictionary. If it is serialised after the model
    was loaded, its `fingerprint` is included: when it is read again, it makes the same vectors or raises an error.
    """

    def __init__(
        self,
        model: str | None = None,
        options: dict[str, Any] | None = None,
        meta_fields_to_embed: list[str] | None = None,
        separator: str = "\n",
        *,
        embedder: BaseEmbedder | None = None,
        fingerprint: str | None = None,
        **more: Any,
    ) -> None:
        self.meta_fields_to_embed = list(meta_fields_to_embed or [])
        self.separator = separator
        self.model, self.options = model, {**(options or {}), **more}
        self._lazy = _Lazy(model, embedder, self.options, fingerprint)

    def warm_up(self) -> None:
        """Load the model."""
        self._lazy.get()

    def to_dict(self) -> dict[str, Any]:
        fields = {"meta_fields_to_embed": self.meta_fields_to_embed, "separator": self.separator}
        return default_to_dict(self, **self._lazy.written(), **fields)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "WeftDocumentEmbedder":
        return default_from_dict(cls, data)

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """`documents`, copies with their vectors, and in `meta` the model and its fingerprint."""
        from dataclasses import replace

        if not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
            raise TypeError("documents are a list of Document; WeftTextEmbedder takes a query")
        texts = [self._text(one) for one in documents]
        vectors = self._lazy.get().encode_document(texts)
        made = [replace(one, embedding=vector.tolist()) for one, vector in zip(documents, vectors)]
        return {"documents": made, "meta": self._lazy.meta()}

    def _text(self, document: Document) -> str:
        fields = [document.meta.get(name) for name in self.meta_fields_to_embed]
        given = [str(value) for value in fields if value is not None]
        if document.content is None and not given:
            raise InputError("haystack", f"the document {document.id} has no content to embed")
        return self.separator.join([*given, document.content or ""])
