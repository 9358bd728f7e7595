"""What callers give: texts, options and vectors, checked once and in one place."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, TooLongError
from weft.frozen import frozen

if TYPE_CHECKING:
    from threading import Event

    import numpy as np

STREAM_TEXTS = 1024  # of a stream that are in memory at once …
STREAM_CHARACTERS = 4 << 20  # … unless they are long


def check_count(count: Any, name: str) -> None:
    """A number of things, one or more, or None where it is left open."""
    if count is not None and (type(count) is not int or count < 1):
        raise InputError(f"[embed] {name} is {count!r}; a whole number from 1 on is wanted")


@frozen
class Limits:
    """The most that one call takes: texts, and bytes of UTF-8 in each before a prompt is put in front.

    None is no limit, and the default: a library's caller has the memory it has, and a document of a megabyte is what
    `truncate` is for. A service wants SERVICE_LIMITS or its own; `weft serve` has limits of its own.
    """

    texts: int | None = None
    text_bytes: int | None = None

    def __post_init__(self) -> None:
        check_count(self.texts, "Limits.texts")
        check_count(self.text_bytes, "Limits.text_bytes")

    def check(self, texts: Sequence[str]) -> None:
        if self.texts is not None and len(texts) > self.texts:
            raise InputError(f"[embed] {len(texts)} texts, the most in one call is {self.texts}; make several calls")
        if self.text_bytes is None:
            return
        for i, text in enumerate(texts):
            size = len(text.encode("utf-8", "surrogatepass")) if len(text) * 4 > self.text_bytes else 0
            if size > self.text_bytes:
                message = f"[embed] text {i} has {size} bytes, the most is {self.text_bytes}; cut it into several"
                raise TooLongError(message, length=size, limit=self.text_bytes, index=i)


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
    """`given`, which has several texts in an order: a list, a tuple, an array, a generator. One string is not it."""
    if isinstance(given, (bytes, bytearray)):
        raise InputError(f"[embed] {name} is {_kind(given)}; texts are strings: decode it")
    if isinstance(given, str):
        raise InputError(f"[embed] {name} is one string; give a list of them")
    single = getattr(given, "ndim", 1) == 0  # an array of no dimension says that it can be gone through
    if isinstance(given, (Set, Mapping)) or not isinstance(given, Iterable) or single:
        raise InputError(f"[embed] {name} is {_kind(given)}; give a list of strings, whose order vectors have")
    return given


def texts_of(given: str | Iterable[str], name: str = "texts") -> list[str]:
    """The texts of a call as a list; one string is one text."""
    items = [given] if isinstance(given, str) else list(many_texts(given, name))
    check_texts(items, name=name)
    return items


def check_texts(texts: Sequence[Any], first: int = 0, name: str = "texts") -> None:
    """Each is a string of Unicode; `first` is the place of the first of them in what the caller gave."""
    for i, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputError(f"[embed] {name}[{i}] is {_kind(text)}; texts are strings")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InputError(
                    f"[embed] {name}[{i}] has half of a surrogate pair at character {error.start}, which is no text; "
                    "read the file it is from as UTF-8, or leave such characters out"
                ) from None


class Gathering:
    """Texts until they are `count`, or have `characters` together and few more."""

    def __init__(self, count: int = STREAM_TEXTS, characters: int = STREAM_CHARACTERS) -> None:
        self._count, self._characters = count, characters
        self._texts: list[str] = []
        self._size = 0

    def add(self, text: str) -> list[str]:
        """All of them, where there are enough now; none otherwise."""
        self._texts.append(text)
        self._size += len(text) if isinstance(text, str) else 0
        return self.rest() if len(self._texts) == self._count or self._size >= self._characters else []

    def rest(self) -> list[str]:
        """Those that are left."""
        texts, self._texts, self._size = self._texts, [], 0
        return texts


def portions(
    texts: Iterable[str], count: int = STREAM_TEXTS, characters: int = STREAM_CHARACTERS
) -> Iterator[list[str]]:
    """The texts in lists that Gathering makes. Where reading fails, what was read comes before the error."""
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
    """`portions` of what comes asynchronously."""
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
    """True, False, or None where the model decides: other values would count as one of them, silently."""
    if given is not None and type(given) is not bool:
        raise InputError(f"[embed] {name} is {given!r}; True, False or None is wanted")


def check_ids(given: Any) -> list[np.ndarray]:
    """Sequences of ids, each with one or more whole numbers, as arrays."""
    import numpy as np

    made: list[np.ndarray] = []
    for i, ids in enumerate(many_texts(given, "ids")):
        try:
            found = np.asarray(ids)
        except ValueError:  # rows of different lengths
            found = np.empty(0, object)
        if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
            kind = f"{_kind(ids)} {found.dtype} {found.shape}"
            raise InputError(f"[embed] ids[{i}] is {kind}; a sequence of one or more whole numbers is wanted")
        made.append(found)
    return made


def similarities(a: Any, b: Any, measure: str, dimension: Callable[[], int]) -> np.ndarray:
    """Of each vector of `a` to each of `b`, float32 [len(a), len(b)]: cosine, dot, or distances with a minus.

    Bytes are vectors of one bit a number, as `output_dtype="binary"` makes them: each bit counts as 1 or -1, and
    `dimension` is asked how many of them count.
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
        raise InputError(f"[similarity] {_kind(vectors)} {found.dtype} {found.shape} is no vector, nor a list of them")
    if found.dtype == np.int8 and measure != "cosine":
        raise InputError(f"[similarity] int8 vectors have a scale each, which {measure} needs; compare float32 vectors")
    found = np.atleast_2d(found)
    if found.dtype == np.uint8:
        found = np.unpackbits(found, axis=1)[:, : dimension()].astype(np.float32) * 2 - 1
    return found.astype(np.float32)


def _kind(given: Any) -> str:
    return "None" if given is None else type(given).__name__
