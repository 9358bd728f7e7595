"""Embedding classes of other people's frameworks: `from weft.integrations.langchain import WeftEmbeddings`, for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    from weft.embed import BaseEmbedder


def embedder_of(model: str | None, embedder: BaseEmbedder | None, options: dict[str, Any]) -> BaseEmbedder:
    """The embedder that was given, or a new one of `model`; texts that are too long are cut unless told otherwise.

    Frameworks embed whatever a splitter gave them and have no way to ask back, so an error would end an ingestion of
    hours for one chunk. `truncate="chunk"` loses nothing of it.
    """
    if (model is None) == (embedder is None) or (embedder is not None and options):
        raise InputError("[integrations] give a model and its options, or an embedder alone")
    if embedder is not None:
        return embedder
    from weft.embed import Embedder

    return Embedder(str(model), **{"truncate": "chunk", **options})
