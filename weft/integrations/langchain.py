"""LangChain: `WeftEmbeddings("all-MiniLM-L6-v2")` is an `Embeddings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.integrations import check_fingerprint, embedder_of, name_of, needs

with needs("langchain-core"):
    from langchain_core.embeddings import Embeddings

if TYPE_CHECKING:
    from weft.embed import BaseEmbedder


class WeftEmbeddings(Embeddings):
    """Vectors of documents and queries, each with the model's own prompt; options are `weft.Embedder`'s.

    A pickle holds the model's name, the options and the fingerprint, from which the model is loaded again; an embedder
    given as `embedder=` cannot be pickled. Copies share the model.
    """

    def __init__(self, model: str | None = None, *, embedder: BaseEmbedder | None = None, **options: Any) -> None:
        self.model, self._options = model, options
        self.embedder = embedder_of(model, embedder, options)
        self._lasting = name_of(None, self.embedder)

    def __getstate__(self) -> dict[str, Any]:
        if self.model is None:
            raise InputError(
                "langchain",
                "cannot be sent to another process",
                field="embedder",
                advice="give a model and its options, from which each process loads its own",
            )
        fingerprint = str(self.embedder.fingerprint)
        return {"model": self._lasting, "options": self._options, "fingerprint": fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["model"], **state["options"])  # type: ignore[misc]
        check_fingerprint(state["fingerprint"], self.embedder, state["model"])

    def __copy__(self) -> WeftEmbeddings:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> WeftEmbeddings:
        return self.__copy__()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""
        found: list[list[float]] = self.embedder.encode_document(_several(texts)).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        found: list[float] = self.embedder.encode_query(_one(text)).tolist()
        return found

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text, computed in another thread."""
        found: list[list[float]] = (await self.embedder.aencode_document(_several(texts))).tolist()
        return found

    async def aembed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        found: list[float] = (await self.embedder.aencode_query(_one(text))).tolist()
        return found


def _one(text: Any) -> str:
    if not isinstance(text, str):
        what = f"must be one string, not {type(text).__name__}"
        raise InputError("langchain", what, field="text", advice="use embed_documents for a list")
    return text


def _several(texts: Any) -> list[str]:
    from weft.embed.inputs import texts_of

    if isinstance(texts, str):
        what = "must be a list of strings, not one string"
        raise InputError("langchain", what, given=texts, field="texts", advice="use embed_query for one")
    return texts_of(texts)
