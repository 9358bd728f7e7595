"""Whether an embedder may meet the vectors of a store: by its own measure, and, where its fingerprint does not prove
what made them, by what comes out of it."""

from __future__ import annotations

from weft.embed.index.canaries import canary_texts, canary_vectors, check_canaries
from weft.embed.migrate.embedding import AnyEmbedder
from weft.embed.stores import Store
from weft.errors import InputError

LIKE_COSINE = ("dot", "euclidean")  # put vectors of unit length in the same order
UNIT = 1e-3  # how far from it a norm may be


def check_measure(embedder: AnyEmbedder) -> None:
    """Refuse a model whose nearest documents are others than those of cosine, by which a store compares."""
    measure = embedder.info.get("similarity") or "cosine"
    if measure == "cosine" or (measure in LIKE_COSINE and _is_of_unit_length(embedder)):
        return
    raise InputError(
        f"[migrate] a store compares by cosine, and this model's own measure is {measure}"
        + (" of vectors that are not of unit length" if measure in LIKE_COSINE else "")
        + "; give it normalise=True where that is right for it, or keep its vectors in a weft.Index"
    )


def _is_of_unit_length(embedder: AnyEmbedder) -> bool:
    import numpy as np

    if embedder.info.get("normalise"):
        return True
    norms = np.linalg.norm(canary_vectors(embedder, canary_texts(None)), axis=1)
    return bool((abs(norms - 1) < UNIT).all())


class Proof:
    """What a process has found out about the embedders that it uses with a store.

    A server that says nothing of its weights has the same fingerprint after its model was replaced. Vectors of known
    texts are kept with its generation, and compared before anything of it is written or asked.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._done: set[str] = set()

    def give(self, embedder: AnyEmbedder, fingerprint: str, *, keep: bool = True) -> None:
        """Compare what the embedder makes with what it made, once; with `keep`, where nobody knows that, what it makes
        is what others are compared with."""
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
