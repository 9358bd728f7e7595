"""An embedder behind a cache: hits are read, misses computed in portions, results are in the caller's order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate
from typing import Protocol

from weft import digest
from weft.embed.cache.entries import Cache, NamingCache, Stored
from weft.embed.inputs import How, portions
from weft.embed.results import Embedded, EmbedInterrupted
from weft.errors import TooLongError
from weft.progress import shown


class Maker(Protocol):
    """What `through_cache` needs of an embedder: `weft.embed.base.BaseEmbedder` has it."""

    @property
    def dimension(self) -> int: ...

    def _make(self, texts: list[str], how: How) -> Embedded: ...

    def _identity(self, how: How) -> str: ...

    def _longest(self) -> int: ...

    def _portion_texts(self) -> int: ...


def key_of(fingerprint: str, text: str, *, prompt: str = "", truncate: str = "error", longest: int = 0) -> bytes:
    """32 bytes that stand for a text embedded in one way; no two ways or texts share them."""
    hashed = sha256()
    digest.add(hashed, fingerprint, prompt, f"{truncate} {longest}", text)
    return hashed.digest()


def through_cache(embedder: Maker, cache: Cache, texts: list[str], how: How) -> Embedded:
    """The embedder's vectors of `texts`; a text that occurs twice is computed once.

    Each portion is stored before the next is begun: an error or a kill loses at most one, and Ctrl-C none.
    """
    fingerprint = embedder._identity(how)
    about = {"prompt": how.prompt, "truncate": how.truncate, "longest": embedder._longest()}
    keys = [key_of(fingerprint, text, **about) for text in texts]  # type: ignore[arg-type]
    hits = cache.get(fingerprint, keys)
    found = {key: hit for key, hit in zip(keys, hits) if hit is not None}
    missing: dict[bytes, int] = {}  # the index of the first text with each key
    for i, key in enumerate(keys):
        if key not in found:
            missing.setdefault(key, i)
    if missing and isinstance(cache, NamingCache):
        cache.name_model(fingerprint, _name(embedder, how))
    interrupted = False
    try:
        for fresh in _made(embedder, texts, missing, how):
            found.update(fresh)
            cache.put(fingerprint, fresh)
    except KeyboardInterrupt:
        interrupted = True
    done = next((i for i, key in enumerate(keys) if key not in found), len(keys))
    stored = [found[key] for key in keys[:done]]
    dimension = len(stored[0].vector) if stored else embedder.dimension
    merged = _merged(stored, dimension, fingerprint).counting(sum(hit is not None for hit in hits[:done]))
    if interrupted:
        raise EmbedInterrupted(merged)
    return merged


def _made(
    embedder: Maker, texts: list[str], missing: dict[bytes, int], how: How
) -> Iterator[list[tuple[bytes, Stored]]]:
    """The entries of the missing texts, a portion at a time; an error's `index` is that in `texts`."""
    keys, places = list(missing), list(missing.values())
    parts = list(portions((texts[i] for i in places), embedder._portion_texts()))
    ends = list(accumulate(map(len, parts)))
    ranges = list(zip([0, *ends], ends))
    progress = how.progress
    if len(parts) > 1:
        how = replace(how, progress=False)  # one progress bar over all portions …
    else:
        progress = False  # … the embedder draws a finer one if there is only one
    for (first, last), part in zip(shown(ranges, len(keys), progress), parts):
        try:
            made = embedder._make(part, how)
        except TooLongError as error:
            raise error.but(index=places[first + error.index]) from None
        except EmbedInterrupted as error:
            yield list(zip(keys[first:last], _entries(error.done)))
            raise
        yield list(zip(keys[first:last], _entries(made)))


def _name(embedder: Maker, how: How) -> str:
    """The model's name and compute, for people; "" if the embedder has none."""
    name = getattr(embedder, "model", None)  # of a remote one: reading its `info` may send a request
    if name is None:
        info = getattr(embedder, "info", {})
        name = ", ".join(str(info[part]) for part in ("model", "compute") if part in info)
    return name if how.adapter is None else f"{name}, adapter {how.adapter.name}"


def _entries(made: Embedded) -> list[Stored]:
    """One entry for each text; vectors are copied, or one that stays in memory would keep all of them."""
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
