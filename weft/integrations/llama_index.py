"""LlamaIndex: `WeftEmbedding(model_name="all-MiniLM-L6-v2")` is a `BaseEmbedding`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.integrations import check_fingerprint, embedder_of, name_of, needs

with needs("llama-index-core"):
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from pydantic import Field, PrivateAttr, computed_field

if TYPE_CHECKING:
    from weft.embed import BaseEmbedder


class WeftEmbedding(BaseEmbedding):
    """Vectors of texts and queries, each with the model's own prompt.

    Keywords are `weft.Embedder`'s or LlamaIndex's own (`embed_batch_size`, `num_workers` …); `options` are the former
    as a dictionary. Its serialised form and its pickle include the fingerprint: loading another model from them is an
    error. An embedder given as `embedder=` cannot be pickled.
    """

    options: dict[str, Any] = Field(default_factory=dict)
    _embedder: Any = PrivateAttr()
    _given: bool = PrivateAttr()

    def __init__(
        self,
        model_name: str | None = None,
        *,
        embedder: BaseEmbedder | None = None,
        options: dict[str, Any] | None = None,
        fingerprint: str | None = None,
        **more: Any,
    ) -> None:
        fields = {name: more.pop(name) for name in list(more) if name in type(self).model_fields}
        chosen = {**(options or {}), **more}
        made = embedder_of(model_name, embedder, chosen)
        name = name_of(model_name, made)
        check_fingerprint(fingerprint, made, name)
        super().__init__(**{"model_name": name, "embed_batch_size": 256, "options": chosen, **fields})
        self._embedder, self._given = made, embedder is not None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def fingerprint(self) -> str:
        """The embedder's fingerprint: LlamaIndex's caches use it in their keys."""
        return str(self._embedder.fingerprint)

    @classmethod
    def class_name(cls) -> str:
        return "WeftEmbedding"

    def __getstate__(self) -> dict[str, Any]:
        if self._given:
            raise InputError(
                "llama_index",
                "cannot be sent to another process",
                field="embedder",
                advice="give model_name and its options, from which each process loads its own",
            )
        state: dict[str, Any] = super().__getstate__()
        fields = state["__dict__"]
        if "options" not in fields:  # LlamaIndex drops values that cannot be pickled: another model would be loaded
            what = "has a value that cannot be pickled"
            raise InputError("llama_index", what, field="options", advice="give only strings, numbers and the like")
        return {"__dict__": {**fields, "fingerprint": self.fingerprint}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["__dict__"])  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> WeftEmbedding:
        """A copy with the same model and cache: neither can be copied, and both can be shared."""
        seen = {} if memo is None else memo
        seen.update({id(one): one for one in (self._embedder, self.options.get("cache"))})
        copied: WeftEmbedding = super().__deepcopy__(seen)
        return copied

    def _get_query_embedding(self, query: str) -> list[float]:
        found: list[float] = self._embedder.encode_query(query).tolist()
        return found

    def _get_text_embedding(self, text: str) -> list[float]:
        found: list[float] = self._embedder.encode_document(text).tolist()
        return found

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = self._embedder.encode_document(texts).tolist()
        return found

    async def _aget_query_embedding(self, query: str) -> list[float]:
        found: list[float] = (await self._embedder.aencode_query(query)).tolist()
        return found

    async def _aget_text_embedding(self, text: str) -> list[float]:
        found: list[float] = (await self._embedder.aencode_document(text)).tolist()
        return found

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = (await self._embedder.aencode_document(texts)).tolist()
        return found
