"""Embedding classes for frameworks, such as `from weft.integrations.langchain import WeftEmbeddings`."""

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
    """Around imports of a framework: if it is missing, the error says how to install `package`."""
    try:
        yield
    except ModuleNotFoundError as error:
        advice = f"pip install {package}"
        raise NotFoundError("integrations", f"{error.name} is not installed", advice=advice) from error


def embedder_of(
    model: str | os.PathLike[str] | None, embedder: BaseEmbedder | None, options: Mapping[str, Any]
) -> BaseEmbedder:
    """`embedder`, or a new one of `model` with truncate="chunk", unless `options` set another.

    Frameworks embed whatever a splitter made and cannot react to an error, which would end an ingestion of hours for
    one long chunk; windows lose nothing of it.
    """
    check_choice(model, embedder, options)
    if embedder is not None:
        return embedder
    from weft.embed import Embedder

    return Embedder(str(model), **{"truncate": "chunk", **options})


def check_choice(
    model: str | os.PathLike[str] | None, embedder: BaseEmbedder | None, options: Mapping[str, Any]
) -> None:
    """Refuse anything but a model with valid options, or an embedder alone."""
    from inspect import signature

    from weft.embed import Embedder

    if (model is None) == (embedder is None) or (embedder is not None and options):
        named = {"model": model, "embedder": embedder}
        got = ", ".join([*(name for name, value in named.items() if value is not None), *options]) or "neither"
        raise InputError("integrations", f"give a model and its options, or an embedder alone: got {got}")
    if embedder is not None and not hasattr(embedder, "encode_document"):
        raise InputError("integrations", "must be an embedder of weft", given=embedder, field="embedder")
    known = [name for name in signature(Embedder).parameters if name not in ("model", "precision")]
    if unknown := [name for name in options if name not in (*known, "precision")]:
        what = f"there is no option {unknown[0]!r}"
        raise InputError("integrations", what, field=None, advice=f"the options are {', '.join(known)}")


def name_of(model: str | None, embedder: Any) -> str:
    """The model's name: `model`, or if that is None, a name by which it is found from any working directory."""
    from weft.embed import Embedder

    if model is not None:
        return model
    if isinstance(embedder, Embedder):
        return embedder.lasting_name
    return str(getattr(embedder, "info", {}).get("model", "weft"))


def check_fingerprint(wanted: str | None, embedder: BaseEmbedder, name: str) -> None:
    """Refuse an embedder whose fingerprint is not `wanted`, that of stored vectors; None if it is unknown."""
    found = None if wanted is None else str(embedder.fingerprint)
    if wanted != found:
        raise FingerprintError(
            "integrations",
            f"{name} is not the model of the stored vectors, or its files or options have changed: "
            f"fingerprint {found}, stored {wanted}",
            advice="load the model with the options that made them, or embed the documents again",
        )
