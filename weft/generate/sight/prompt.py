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

    Their ids in the prompt are the model's placeholder. `deep` are arrays like `vectors` that are added after the first
    layers. With `grid`, rows and columns of the tokens, they are turned by these (multimodal rope), and the text after
    them goes on after the larger one. `whole`: they see each other both ways, and are computed in one step. Pages of
    the KV cache are shared by `digest`, which is of all this where none is given.
    """

    at: int
    vectors: np.ndarray
    digest: bytes = b""
    deep: tuple[np.ndarray, ...] = ()
    grid: tuple[int, int] | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        arrays = [np.ascontiguousarray(one) for one in (self.vectors, *self.deep)]
        for one in arrays:
            if one.ndim != 2 or one.dtype != np.float32 or not one.size or one.shape != arrays[0].shape:
                what = f"must have vectors of float32 [n, hidden], not {one.dtype} {one.shape}"
                raise InputError("request", what, field="pictures")
            if not np.isfinite(one).all():
                raise InputError("request", "have vectors that are not finite", field="pictures")
        if self.grid is not None and (min(self.grid) < 1 or self.grid[0] * self.grid[1] != len(arrays[0])):
            what = f"must have rows and columns of {len(arrays[0])} tokens, not {self.grid}"
            raise InputError("request", what, field="pictures")
        object.__setattr__(self, "vectors", arrays[0])
        object.__setattr__(self, "deep", tuple(arrays[1:]))
        object.__setattr__(self, "digest", self.digest or self._digest())

    def _digest(self) -> bytes:
        hashed = blake2b(self.vectors.tobytes(), digest_size=DIGEST_BYTES)
        for one in self.deep:
            hashed.update(one.tobytes())
        if self.grid is not None or self.whole:
            hashed.update(repr((len(self.deep), self.grid, self.whole)).encode())
        return hashed.digest()

    @property
    def end(self) -> int:
        """The place after its last token."""
        return self.at + len(self.vectors)

    @property
    def shift(self) -> int:
        """What is added to the positions of the text after it: less than 0 where it is turned by its grid."""
        return 0 if self.grid is None else max(self.grid) - len(self.vectors)


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


def step_vectors(parts: Sequence[tuple[int, int, Sequence[Seen]]]) -> dict[str, Any]:
    """The fields of a step over the tokens start to stop of each sequence, with its pictures: vectors [T, hidden], and
    1 in `types` [T] where a token is one; nothing where no token is. Also `deep`, `turns` and `reach`, of pictures that
    have them."""
    total = sum(stop - start for start, stop, _ in parts)
    given: dict[str, Any] = {}
    first = 0
    for start, stop, pictures in parts:
        for one in pictures:
            low, high = max(start, one.at), min(stop, one.end)
            if low < high:
                place = slice(first + low - start, first + high - start)
                _place(given, one, slice(low - one.at, high - one.at), place, total)
        first += stop - start
    if any(one.grid is not None and one.at < stop for _, stop, pictures in parts for one in pictures):
        given["turns"] = np.concatenate([turns(*part) for part in parts], axis=1)
    if any(one.whole and one.at < stop and one.end > start for start, stop, pictures in parts for one in pictures):
        given["reach"] = np.concatenate([reach(*part) for part in parts])
    return given


def _place(given: dict[str, Any], one: Seen, rows: slice, place: slice, total: int) -> None:
    """Put these rows of a picture at their place in a step of `total` tokens."""
    shape = total, one.vectors.shape[1]
    if "vectors" not in given:
        given["vectors"], given["types"] = np.zeros(shape, np.float32), np.zeros(total, np.int32)
    if one.deep and "deep" not in given:
        given["deep"] = tuple(np.zeros(shape, np.float32) for _ in one.deep)
    given["vectors"][place] = one.vectors[rows]
    given["types"][place] = 1
    for to, values in zip(given.get("deep", ()), one.deep):
        to[place] = values[rows]


def turns(start: int, stop: int, pictures: Sequence[Seen]) -> np.ndarray:
    """Time, row and column of the tokens start to stop of a sequence, int32 [3, n]. Those of texts are one number,
    which goes on after the largest one before; a picture has one time."""
    made = np.tile(np.arange(start, stop, dtype=np.int32), (3, 1))
    shift = 0
    for one in pictures:
        if one.at >= stop:
            break
        low, high = max(start, one.at), min(stop, one.end)
        if one.grid is not None and low < high:
            rows, cols = np.divmod(np.arange(low, high, dtype=np.int32) - one.at, one.grid[1])
            zeros = np.zeros_like(rows)
            made[:, low - start : high - start] = one.at + shift + np.stack([zeros, rows, cols])
        shift += one.shift
        after = max(one.end, start)
        made[:, after - start :] = np.arange(after, max(after, stop), dtype=np.int32) + shift
    return made


def reach(start: int, stop: int, pictures: Sequence[Seen]) -> np.ndarray:
    """The last position that each of the tokens start to stop of a sequence sees, int32 [n]."""
    made = np.arange(start, stop, dtype=np.int32)
    for one in pictures:
        if one.whole and one.at < stop and one.end > start:
            made[max(one.at - start, 0) : one.end - start] = one.end - 1
    return made
