"""Embedding classes of other people's frameworks: `from weft.integrations.langchain import WeftEmbeddings`, for one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.errors import FingerprintError, InputError, NotFoundError

if TYPE_CHECKING:
    from weft.embed import BaseEmbedder


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Imports of a framework that comes with `package`; where it is missing the error says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"[integrations] {error.name} is not installed; `pip install {package}` has it"
        raise NotFoundError(message) from error


def embedder_of(
    model: str | os.PathLike[str] | None, embedder: BaseEmbedder | None, options: Mapping[str, Any]
) -> BaseEmbedder:
    """The embedder that was given, or a new one of `model`; texts that are too long are cut unless told otherwise.

    Frameworks embed whatever a splitter gave them and have no way to ask back, so an error would end an ingestion of
    hours for one chunk. `truncate="chunk"` loses nothing of it.
    """
    check_choice(model, embedder, options)
    if embedder is not None:
        return embedder
    from weft.embed import Embedder

    return Embedder(str(model), **{"truncate": "chunk", **options})


def check_choice(
    model: str | os.PathLike[str] | None, embedder: BaseEmbedder | None, options: Mapping[str, Any]
) -> None:
    """A model with options that there are, or an embedder alone."""
    from inspect import signature

    from weft.embed import Embedder

    if (model is None) == (embedder is None) or (embedder is not None and options):
        named = {"model": model, "embedder": embedder}
        got = ", ".join([*(name for name, value in named.items() if value is not None), *options]) or "neither"
        raise InputError(f"[integrations] give a model and its options, or an embedder alone: got {got}")
    if embedder is not None and not hasattr(embedder, "encode_document"):
        raise InputError(f"[integrations] embedder is {type(embedder).__name__}; one of weft's is wanted")
    known = [name for name in signature(Embedder).parameters if name not in ("model", "precision")]
    if unknown := [name for name in options if name not in (*known, "precision")]:
        raise InputError(f"[integrations] no option is called {unknown[0]!r}; there are {', '.join(known)}")


def name_of(model: str | None, embedder: Any) -> str:
    """What to call the model: `model`, as the caller did, or for None so that it is found from any folder."""
    from weft.embed import Embedder
    from weft.embed.pipeline.indexing import lasting_name

    if model is not None:
        return model
    if isinstance(embedder, Embedder):
        return lasting_name(embedder)
    return str(getattr(embedder, "info", {}).get("model", "weft"))


def check_fingerprint(wanted: str | None, embedder: BaseEmbedder, name: str) -> None:
    """`wanted` is that of vectors which are kept somewhere, None where nobody knows it."""
    found = None if wanted is None else str(embedder.fingerprint)
    if wanted != found:
        raise FingerprintError(
            f"[integrations] {name} makes vectors of {found}, and those that are kept are of {wanted}; "
            "give the model and the options of then, or embed the documents again"
        )
