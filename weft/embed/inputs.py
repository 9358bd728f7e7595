"""What callers give: texts, options and vectors, checked once and in one place."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, TooLongError
from weft.frozen import frozen

if TYPE_CHECKING:
    from threading import Event

    import numpy as np

STREAM_TEXTS = 1024  # texts of a stream in memory at once …
STREAM_CHARACTERS = 4 << 20  # … or fewer, if they have this many characters together


def check_count(count: Any, name: str) -> None:
    """Refuse a count that is not an int from 1 on; None is allowed."""
    if count is not None and (type(count) is not int or count < 1):
        raise InputError("embed", "must be a whole number from 1 on", given=count, field=name)


@frozen
class Limits:
    """The most that one call accepts: texts, and bytes of UTF-8 in each, without the prompt.

    None, the default, means no limit; `truncate` handles texts that are too long for the model. A service should set
    SERVICE_LIMITS or its own; `weft serve` has its own limits.
    """

    texts: int | None = None
    text_bytes: int | None = None

    def __post_init__(self) -> None:
        check_count(self.texts, "Limits.texts")
        check_count(self.text_bytes, "Limits.text_bytes")

    def check(self, texts: Sequence[str]) -> None:
        if self.texts is not None and len(texts) > self.texts:
            what = f"must be at most {self.texts} in one call, not {len(texts)}"
            raise InputError("embed", what, field="texts", advice="make several calls")
        if self.text_bytes is None:
            return
        for i, text in enumerate(texts):
            size = len(text.encode("utf-8", "surrogatepass")) if len(text) * 4 > self.text_bytes else 0
            if size > self.text_bytes:
                raise TooLongError(
                    "embed",
                    f"has {size} bytes, at most {self.text_bytes} are allowed",
                    advice="split it into several texts",
                    field="text",
                    index=i,
                    length=size,
                    limit=self.text_bytes,
                )


@frozen
class How:
    """How one call embeds its texts; `prompt` is the text itself, `adapter` the version loaded under its name when the
    call began."""

    prompt: str = ""
    truncate: str = "error"
    adapter: Any = None
    batch_tokens: int | None = None
    progress: bool | None = False
    stop: Event | None = None  # checked between steps: once it is set, the call ends with what it has

    @property
    def stopped(self) -> bool:
        return self.stop is not None and self.stop.is_set()


SERVICE_LIMITS = Limits(texts=1000, text_bytes=32_768)


def many_texts(given: Iterable[str], name: str = "texts") -> Iterable[str]:
    """`given`, if it holds texts in an order: a list, a tuple, an array, a generator. One string is refused."""
    if isinstance(given, (bytes, bytearray)):
        raise InputError("embed", f"must be strings, not {_kind(given)}", field=name, advice="decode the bytes first")
    if isinstance(given, str):
        raise InputError("embed", "must be a list of strings, not one string", given=given, field=name)
    single = getattr(given, "ndim", 1) == 0  # an array without dimensions claims to be iterable
    if isinstance(given, (Set, Mapping)) or not isinstance(given, Iterable) or single:
        raise InputError("embed", f"must be a list of strings, not {_kind(given)}", field=name)
    return given


def texts_of(given: str | Iterable[str], name: str = "texts") -> list[str]:
    """The texts of a call as a list; one string is one text."""
    items = [given] if isinstance(given, str) else list(many_texts(given, name))
    check_texts(items, name=name)
    return items


def check_texts(texts: Sequence[Any], first: int = 0, name: str = "texts") -> None:
    """Refuse items that are not strings of valid Unicode; `first` is the index of the first in the caller's list."""
    for i, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputError("embed", "must be a string", given=text, field=name.removesuffix("s"), index=i)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InputError(
                    "embed",
                    f"has half of a surrogate pair at character {error.start}, which is not valid Unicode",
                    field=name.removesuffix("s"),
                    index=i,
                    advice="read its file as UTF-8, or remove such characters",
                ) from None


class Gathering:
    """Collects texts until there are `count` of them, or they have `characters` or slightly more together."""

    def __init__(self, count: int = STREAM_TEXTS, characters: int = STREAM_CHARACTERS) -> None:
        self._count, self._characters = count, characters
        self._texts: list[str] = []
        self._size = 0

    def add(self, text: str) -> list[str]:
        """Add a text; returns all collected texts once there are enough, else an empty list."""
        self._texts.append(text)
        self._size += len(text) if isinstance(text, str) else 0
        return self.rest() if len(self._texts) == self._count or self._size >= self._characters else []

    def rest(self) -> list[str]:
        """The texts collected since the last full list."""
        texts, self._texts, self._size = self._texts, [], 0
        return texts


def portions(
    texts: Iterable[str], count: int = STREAM_TEXTS, characters: int = STREAM_CHARACTERS
) -> Iterator[list[str]]:
    """The texts in the lists that Gathering makes. If reading fails, texts read before come first, then the error."""
    gathering = Gathering(count, characters)
    try:
        for text in texts:
            if full := gathering.add(text):
                yield full
    except Exception:
        if rest := gathering.rest():
            yield rest
        raise
    if rest := gathering.rest():
        yield rest


async def portions_async(texts: AsyncIterable[str], count: int = STREAM_TEXTS) -> AsyncIterator[list[str]]:
    """`portions` of an async iterable."""
    gathering = Gathering(count)
    try:
        async for text in texts:
            if full := gathering.add(text):
                yield full
    except Exception:
        if rest := gathering.rest():
            yield rest
        raise
    if rest := gathering.rest():
        yield rest


def check_choice(given: Any, name: str) -> None:
    """Refuse values that are not True, False or None, which would silently count as one of them."""
    if given is not None and type(given) is not bool:
        raise InputError("embed", "must be True, False or None", given=given, field=name)


def check_ids(given: Any) -> list[np.ndarray]:
    """Sequences of ids as arrays; each must have one or more integers."""
    import numpy as np

    made: list[np.ndarray] = []
    for i, ids in enumerate(many_texts(given, "ids")):
        try:
            found = np.asarray(ids)
        except ValueError:  # rows of different lengths
            found = np.empty(0, object)
        if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
            what = f"must be a sequence of one or more integers, not {_kind(ids)} {found.dtype} {found.shape}"
            raise InputError("embed", what, field="ids", index=i)
        made.append(found)
    return made


def similarities(a: Any, b: Any, measure: str, dimension: Callable[[], int]) -> np.ndarray:
    """The similarity of each vector of `a` to each of `b`, float32 [len(a), len(b)]: cosine, dot or negative distances.

    uint8 vectors have one bit per number (`output_dtype="binary"`): each of the first `dimension()` bits counts as 1
    or -1.
    """
    from weft import vectors

    left, right = (_rows(given, measure, dimension) for given in (a, b))
    distances = {"cosine": vectors.cosine, "dot": vectors.dot, "manhattan": vectors.manhattan}
    found: np.ndarray = distances.get(measure, vectors.euclidean)(left, right)
    return found if measure in ("cosine", "dot") else -found


def _rows(vectors: Any, measure: str, dimension: Callable[[], int]) -> np.ndarray:
    import numpy as np

    try:
        found = np.asarray(vectors)
    except ValueError:  # rows of different lengths
        found = np.empty(0, object)
    if found.dtype.kind not in "fiu" or found.ndim not in (1, 2) or not found.shape[-1]:
        kind = f"{_kind(vectors)} {found.dtype} {found.shape}"
        raise InputError("similarity", f"{kind} is not a vector [d] or vectors [n, d] of numbers")
    if found.dtype == np.int8 and measure != "cosine":
        what = f"int8 vectors cannot be compared by {measure}, which needs the scale of each"
        raise InputError("similarity", what, advice="compare float32 vectors")
    found = np.atleast_2d(found)
    if found.dtype == np.uint8:
        found = np.unpackbits(found, axis=1)[:, : dimension()].astype(np.float32) * 2 - 1
    return found.astype(np.float32)


def _kind(given: Any) -> str:
    return "None" if given is None else type(given).__name__
