"""Checks that an embedder fits a store's vectors: by its similarity measure, and by canary texts where its fingerprint
does not prove which weights it uses."""

from __future__ import annotations

from weft.embed.index.canaries import canary_texts, canary_vectors, check_canaries
from weft.embed.migrate.embedding import AnyEmbedder
from weft.embed.stores import Store
from weft.errors import InputError

LIKE_COSINE = ("dot", "euclidean")  # order unit vectors as cosine does
UNIT = 1e-3  # how far from 1 a norm may be


def check_measure(embedder: AnyEmbedder) -> None:
    """Refuse a model whose own similarity orders documents differently than cosine, which stores use."""
    measure = embedder.info.get("similarity") or "cosine"
    if measure == "cosine" or (measure in LIKE_COSINE and _is_of_unit_length(embedder)):
        return
    raise InputError(
        "migrate",
        f"stores compare by cosine, and this model's similarity is {measure}"
        + (" of vectors that are not of unit length" if measure in LIKE_COSINE else ""),
        advice="load it with normalise=True if that suits the model, or use a weft.Index",
    )


def _is_of_unit_length(embedder: AnyEmbedder) -> bool:
    import numpy as np

    if embedder.info.get("normalise"):
        return True
    norms = np.linalg.norm(canary_vectors(embedder, canary_texts(None)), axis=1)
    return bool((abs(norms - 1) < UNIT).all())


class Proof:
    """Checks each embedder that a process uses with a store, once.

    A server that does not report a fingerprint of its weights keeps the same fingerprint here when its model is
    replaced. So vectors of canary texts are stored with the generation, and compared before it is written or searched.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._done: set[str] = set()

    def give(self, embedder: AnyEmbedder, fingerprint: str, *, keep: bool = True) -> None:
        """Compare the embedder's canary vectors with the stored ones; with `keep`, store them if there are none."""
        if fingerprint in self._done:
            return
        if embedder.info.get("server_fingerprint", "") is None:
            known = self._store.canaries(fingerprint)
            if known is not None:
                check_canaries(embedder, *known, of="store")
            elif keep:
                texts = canary_texts(embedder)
                self._store.keep_canaries(fingerprint, texts, canary_vectors(embedder, texts))
            else:
                return
        self._done.add(fingerprint)
