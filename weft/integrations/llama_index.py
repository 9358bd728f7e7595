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

    Keywords are `weft.Embedder`'s or LlamaIndex's own (`embed_batch_size`, `num_workers` …); `options` is the former
    as a dictionary. What is written down, and what other processes are given, has the fingerprint: an embedder that
    would make other vectors from it is an error. One that was given as `embedder=` stays in its process.
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
        """What makes these vectors and no others: LlamaIndex's caches tell by it whether they have them."""
        return str(self._embedder.fingerprint)

    @classmethod
    def class_name(cls) -> str:
        return "WeftEmbedding"

    def __getstate__(self) -> dict[str, Any]:
        if self._given:
            raise InputError(
                "[llama_index] an embedder that was given as embedder= cannot go to another process; "
                "give model_name and its options, from which each process makes its own"
            )
        state: dict[str, Any] = super().__getstate__()
        fields = state["__dict__"]
        if "options" not in fields:  # LlamaIndex leaves out what cannot be pickled, and another model would be made
            raise InputError("[llama_index] the options hold what cannot be pickled; give names and numbers only")
        return {"__dict__": {**fields, "fingerprint": self.fingerprint}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["__dict__"])  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> WeftEmbedding:
        """A copy that has the same model and the same cache: neither can be copied, and both may be shared."""
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
