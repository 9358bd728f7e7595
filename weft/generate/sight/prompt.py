"""A prompt of which some tokens are vectors, not ids: what the tower of pictures has made of a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.frozen import frozen
from weft.runtime.paged.pages import PAGE_TOKENS
from weft.runtime.paged.prefix import token_bytes

DIGEST_BYTES = 32
_PAGE_BYTES = 4 * PAGE_TOKENS


@frozen(eq=False)
class Seen:
    """Tokens of a prompt that are vectors: from place `at` on, as many as `vectors` (float32 [n, hidden]) has rows.

    Their ids in the prompt are the model's placeholder. Pages of the KV cache are shared by `digest`, which is of the
    vectors where none is given.
    """

    at: int
    vectors: np.ndarray
    digest: bytes = b""

    def __post_init__(self) -> None:
        vectors = np.ascontiguousarray(self.vectors)
        if vectors.ndim != 2 or vectors.dtype != np.float32 or not vectors.size:
            what = f"must have vectors of float32 [n, hidden], not {vectors.dtype} {vectors.shape}"
            raise InputError("request", what, field="pictures")
        if not np.isfinite(vectors).all():
            raise InputError("request", "have vectors that are not finite", field="pictures")
        object.__setattr__(self, "vectors", vectors)
        object.__setattr__(self, "digest", self.digest or blake2b(vectors.tobytes(), digest_size=DIGEST_BYTES).digest())

    @property
    def end(self) -> int:
        """The place after its last token."""
        return self.at + len(self.vectors)


class Prompt(list[int]):
    """The ids of a prompt, and the pictures among them. `make_request` and `Request` take both from it."""

    def __init__(self, ids: Iterable[int] = (), pictures: Sequence[Seen] = ()) -> None:
        super().__init__(ids)
        self.pictures = tuple(pictures)


def checked(pictures: Any, tokens: int) -> tuple[Seen, ...]:
    """Pictures of a prompt of so many tokens, in order; InputError where they do not lie in it one after another."""
    found = tuple(pictures)
    if not all(isinstance(one, Seen) for one in found):
        raise InputError("request", "must be weft.generate.Seen", field="pictures", given=pictures)
    found = tuple(sorted(found, key=lambda one: one.at))
    end = 0
    for one in found:
        if one.at < end or one.end > tokens:
            what = f"must lie one after another in the {tokens} tokens of the prompt: {one.at} to {one.end}"
            raise InputError("request", what, field="pictures")
        end = one.end
    return found


def keyed(tokens: Sequence[int], pictures: Sequence[Seen], first: int = 0) -> bytes:
    """Tokens from place `first` on, a page's first one, as they are hashed and compared in the prefix cache.

    A full page with tokens of pictures has the digest of its ids and of what its pictures hold there, twice, which
    fills it: page by page these bytes are the same only where ids and pictures are.
    """
    text = token_bytes(tokens)
    if not any(one.at < first + len(tokens) and one.end > first for one in pictures):
        return text
    parts = [text[start : start + _PAGE_BYTES] for start in range(0, len(text), _PAGE_BYTES)]
    for index, part in enumerate(parts):
        start = first + index * PAGE_TOKENS
        inside = [one for one in pictures if one.at < start + PAGE_TOKENS and one.end > start]
        if inside and len(part) == _PAGE_BYTES:
            hashed = blake2b(part, digest_size=_PAGE_BYTES // 2)
            for one in inside:
                hashed.update((one.at - start).to_bytes(8, "little", signed=True) + one.digest)
            parts[index] = 2 * hashed.digest()
    return b"".join(parts)


def step_vectors(parts: Sequence[tuple[int, int, Sequence[Seen]]]) -> dict[str, np.ndarray]:
    """The fields of a step over the tokens start to stop of each sequence, with its pictures: vectors [T, hidden], and
    1 in `types` [T] where a token is one; nothing where no token is."""
    total = sum(stop - start for start, stop, _ in parts)
    given: dict[str, np.ndarray] = {}
    first = 0
    for start, stop, pictures in parts:
        for one in pictures:
            low, high = max(start, one.at), min(stop, one.end)
            if low >= high:
                continue
            if not given:
                given["vectors"] = np.zeros((total, one.vectors.shape[1]), np.float32)
                given["types"] = np.zeros(total, np.int32)
            place = slice(first + low - start, first + high - start)
            given["vectors"][place] = one.vectors[low - one.at : high - one.at]
            given["types"][place] = 1
        first += stop - start
    return given
