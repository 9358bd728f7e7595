"""Embedding a batch of documents: in parallel slices where the embedder allows it, and without the documents it cannot
embed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Protocol

from weft.embed.stores.states import Reason
from weft.embed.stores.values import check_shape, check_vectors, one_line
from weft.embed.stores.work import Done, Waiting
from weft.errors import BackendError, FingerprintError, InputError, TooLongError

if TYPE_CHECKING:
    import numpy as np

DETAIL_LENGTH = 300  # characters of an error's text that are stored with a skip


class AnyEmbedder(Protocol):
    """What a store needs of an embedder: `weft.Embedder`, or an object with the same methods.

    If its attribute `concurrent` is true, it may be called from several threads at once.
    """

    @property
    def info(self) -> dict[str, Any]:
        """How vectors are made: "fingerprint" identifies all of it, "model" is a name for people."""

    @property
    def dimension(self) -> int: ...

    def encode_document(self, texts: list[str]) -> np.ndarray:
        """float32 [len(texts), dimension]"""


def fingerprint_of(embedder: AnyEmbedder) -> str:
    """The fingerprint of an embedder's vectors."""
    info = getattr(embedder, "info", None)
    if not isinstance(info, Mapping):
        raise InputError(
            "migrate", "must be a weft.Embedder, or an object with the same methods", field="embedder", given=embedder
        )
    found = info.get("fingerprint")
    if not isinstance(found, str) or not found:
        raise FingerprintError(
            "migrate", "has no info['fingerprint'], which tells vectors of different models apart", field="embedder"
        )
    return found


def skip_reason(error: Exception) -> Reason | None:
    """Why this model can never embed a document, or None if the error is not about the document."""
    if isinstance(error, TooLongError):
        return Reason.CONTENT_TOO_LARGE
    if isinstance(error, UnicodeError):
        return Reason.INVALID_ENCODING
    if isinstance(error, FingerprintError):  # the server answered with another model, for every document
        return None
    if isinstance(error, InputError) or getattr(error, "permanent", False):
        return Reason.PERMANENT_API_ERROR
    return None


class Embedding:
    """Runs an embedder in threads, so that the caller can renew its lease and react to Ctrl-C."""

    def __init__(self, embedder: AnyEmbedder, concurrency: int) -> None:
        self._embedder = embedder
        self._slices = concurrency if getattr(embedder, "concurrent", False) else 1
        self._threads = ThreadPoolExecutor(self._slices, thread_name_prefix="weft-migrate")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def start(self, batch: Sequence[Waiting]) -> list[Future[list[Done]]]:
        """Begin to embed; the results, concatenated, are in the order of the batch."""
        size = -(-len(batch) // self._slices) or 1
        slices = [batch[first : first + size] for first in range(0, len(batch), size)]
        return [self._threads.submit(self._embed, part) for part in slices]

    def _embed(self, part: Sequence[Waiting]) -> list[Done]:
        """Embed all in one call; if that fails because of a document, embed each in a call of its own."""
        readable = [document for document in part if document.text is not None]
        try:
            vectors = dict(zip(readable, self._vectors(readable)))
        except Exception as error:
            if skip_reason(error) is None:
                raise
            return [self._alone(document) for document in part]
        return [Done(d, vectors[d]) if d in vectors else self._alone(d) for d in part]

    def _alone(self, document: Waiting) -> Done:
        if document.text is None:
            return Done(document, reason=Reason.INVALID_ENCODING, detail="the stored text is not UTF-8")
        try:
            return Done(document, self._vectors([document])[0])
        except Exception as error:
            reason = skip_reason(error)
            if reason is None:
                raise
            return Done(document, reason=reason, detail=one_line(str(error), DETAIL_LENGTH))

    def _vectors(self, documents: Sequence[Waiting]) -> np.ndarray:
        vectors = self._embedder.encode_document([str(document.text) for document in documents])
        shape = (len(documents), self._embedder.dimension)
        try:
            vectors = check_shape(vectors, *shape)
        except InputError as error:  # the embedder's fault, not a document's
            first = f"{len(documents)} documents from {documents[0].id[:80]!r} on" if documents else "no documents"
            raise BackendError(
                "migrate", f"the embedder must return shape {list(shape)} for {first}", given=error.given
            ) from error
        # some models return zeros or NaN for a text of unknown words: that is the document's fault
        return check_vectors(vectors, *shape)


def waited(futures: Sequence[Future[list[Done]]], every_s: float, tick: Callable[[], object]) -> list[Done]:
    """The results in order; `tick` is called every `every_s` seconds until all are there."""
    at = time.monotonic() + every_s
    while wait(futures, max(0.0, at - time.monotonic())).not_done:
        if time.monotonic() >= at:
            tick()
            at = time.monotonic() + every_s
    return [done for future in futures for done in future.result()]
