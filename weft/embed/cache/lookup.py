"""An embedder behind a cache: what is there is taken, all else is made in one call, and the order is the caller's."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from weft.embed.cache.entries import Cache, Stored
from weft.embed.results import Embedded, EmbedInterrupted

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder, How


def key_of(fingerprint: str, text: str, *, prompt: str = "", truncate: str = "error", longest: int = 0) -> bytes:
    """32 bytes that stand for a text embedded in one way; no two ways or texts share them.

    Each part goes in with its length before it, so that no part can pass for two.
    """
    hashed = sha256()
    for part in (fingerprint, prompt, f"{truncate} {longest}", text):
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)
    return hashed.digest()


def through_cache(embedder: BaseEmbedder, cache: Cache, texts: list[str], how: How) -> Embedded:
    """What the embedder makes of `texts`; a text that is there twice is made once."""
    fingerprint = embedder._identity(how)
    about = {"prompt": how.prompt, "truncate": how.truncate, "longest": embedder._longest()}
    keys = [key_of(fingerprint, text, **about) for text in texts]  # type: ignore[arg-type]
    hits = cache.get(fingerprint, keys)
    found = {key: hit for key, hit in zip(keys, hits) if hit is not None}
    missing = {key: text for key, text in zip(keys, texts) if key not in found}
    interrupted = False
    if missing:
        try:
            made = embedder._make(list(missing.values()), how)
        except EmbedInterrupted as error:
            made, interrupted = error.done, True
        fresh = list(zip(missing, _entries(made)))
        cache.put(fingerprint, fresh)
        found.update(fresh)
    done = next((i for i, key in enumerate(keys) if key not in found), len(keys))
    stored = [found[key] for key in keys[:done]]
    dimension = len(stored[0].vector) if stored else embedder.dimension
    merged = _merged(stored, dimension, fingerprint).counting(sum(hit is not None for hit in hits[:done]))
    if interrupted:
        raise EmbedInterrupted(merged)
    return merged


def _entries(made: Embedded) -> list[Stored]:
    """One for each text, sharing no memory with the others: those that stay must not keep all."""
    numbers = zip(made.tokens.tolist(), made.dropped.tolist(), made.windows.tolist())
    return [Stored(vector.copy(), *about) for vector, about in zip(made.vectors, numbers)]


def _merged(stored: list[Stored], dimension: int, fingerprint: str) -> Embedded:
    import numpy as np

    vectors = np.empty((len(stored), dimension), np.float32)
    for i, entry in enumerate(stored):
        vectors[i] = entry.vector
    numbers = np.array([entry[1:] for entry in stored], np.int32).reshape(len(stored), 3)
    tokens, dropped, windows = numbers.T.copy()
    return Embedded(vectors, tokens, dropped, windows, lambda: fingerprint)
