"""What every embedder does, wherever its vectors are made: roles, caches, ranking, streams, async forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from weft.embed.cutting import check_truncate
from weft.embed.outputs import check_output, converted
from weft.embed.results import Embedded, EmbedInterrupted, Ranked
from weft.errors import InputError, TooLongError, UnsupportedError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.cache import Cache

T = TypeVar("T")

STREAM_TEXTS = 1024  # of a stream that are in memory at once …
STREAM_CHARACTERS = 4 << 20  # … unless they are long
DOCUMENT_NAMES = ("document", "passage", "corpus")  # what models call it, in sentence-transformers' order


@frozen
class Limits:
    """The most that one call takes: texts, and bytes of UTF-8 in each before a prompt is put in front.

    None is no limit, and the default: a library's caller has the memory it has, and a document of a megabyte is what
    `truncate` is for. A service wants SERVICE_LIMITS or its own; `weft serve` has limits of its own.
    """

    texts: int | None = None
    text_bytes: int | None = None

    def check(self, texts: Sequence[str]) -> None:
        if self.texts is not None and len(texts) > self.texts:
            raise InputError(f"[embed] {len(texts)} texts, the most in one call is {self.texts}; make several calls")
        if self.text_bytes is None:
            return
        for i, text in enumerate(texts):
            size = len(text.encode("utf-8", "surrogatepass")) if len(text) * 4 > self.text_bytes else 0
            if size > self.text_bytes:
                message = f"[embed] text {i} has {size} bytes, the most is {self.text_bytes}; cut it into several"
                raise TooLongError(message, length=size, limit=self.text_bytes)


SERVICE_LIMITS = Limits(texts=1000, text_bytes=32_768)


@frozen
class How:
    """How the texts of one call become vectors; `prompt` is the text itself, `adapter` the version that its name stood
    for when the call began."""

    prompt: str = ""
    truncate: str = "error"
    adapter: Any = None
    batch_tokens: int | None = None
    progress: bool | None = False


class BaseEmbedder(ABC):
    """`encode`, `encode_query`, `encode_document`, `similarity`, `rank`, their async forms, and streams.

    A subclass says how vectors are made (`_make`), what made them (`fingerprint`), and which prompts there are.
    """

    truncate: str = "error"
    cache: Cache | None = None
    limits: Limits = Limits()

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    @abstractmethod
    def fingerprint(self) -> Any:
        """What makes these vectors and no others; `str()` of it is what stores keep beside them."""

    @property
    @abstractmethod
    def prompts(self) -> Mapping[str, str]:
        """What is put before a text, by the name of its role."""

    @abstractmethod
    def _make(self, texts: list[str], how: How) -> Embedded:
        """Vectors float32 of texts; raises EmbedInterrupted with the first of them after Ctrl-C."""

    def _identity(self, how: How) -> str:
        """The fingerprint of what `how` asks for."""
        return str(self.fingerprint)

    def _adapter(self, name: str | None) -> Any:
        """What the adapter of this name is now; an embedder without any refuses a name."""
        if name is not None:
            raise UnsupportedError(f"[embed] {type(self).__name__} has no adapters; leave {name!r} out")
        return None

    def _longest(self) -> int:
        """Where texts are cut: decides a vector when they are."""
        return 0

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: str | None = None,
        adapter: str | None = None,
        output_dtype: str = "f32",
        batch_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Embedded:
        """What `encode` gives and how it was made: tokens, what was cut, the fingerprint. Row i is text i.

        `prompt` is put before every text; `prompt_name` picks one of the model's own ("query", "document"). `adapter`
        is the name of a loaded one (`adapters.load`). `output_dtype` is f32, f16, int8 or binary (weft/embed/outputs.py
        has the formulas). Ctrl-C raises EmbedInterrupted, a KeyboardInterrupt that carries what is done.
        """
        items = [texts] if isinstance(texts, str) else list(texts)
        check_texts(items)
        self.limits.check(items)
        check_output(output_dtype)
        mode = self.truncate if truncate is None else check_truncate(truncate)
        how = How(self._prompt(prompt_name, prompt), mode, self._adapter(adapter), batch_tokens, progress)
        try:
            made = self._made(items, how)
        except EmbedInterrupted as error:
            raise EmbedInterrupted(converted(error.done, output_dtype)) from None
        assert len(made) == len(items), "a vector for every text"
        return converted(made, output_dtype)

    def _made(self, texts: list[str], how: How) -> Embedded:
        if self.cache is None:
            return self._make(texts, how)
        from weft.embed.cache import through_cache

        return through_cache(self, self.cache, texts, how)

    def encode(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """Vectors of `texts`, float32 [len(texts), dimension]; one text alone gives [dimension]. Options: `embed`'s."""
        vectors = self.embed(texts, **options).vectors
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_query(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` with the model's prompt for queries, where it has one."""
        return self.encode(texts, prompt_name="query", **options)

    def encode_document(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` with the model's prompt for documents, where it has one."""
        return self.encode(texts, prompt_name=self.document_prompt_name, **options)

    @property
    def document_prompt_name(self) -> str:
        """What this model calls the prompt of a document."""
        return next((name for name in DOCUMENT_NAMES if self.prompts.get(name)), "document")

    def encode_stream(self, texts: Iterable[str], **options: Any) -> Iterator[np.ndarray]:
        """A vector [dimension] for each of `texts`, in order, as they come: any number of texts in bounded memory.

        EmbedInterrupted holds the vectors that were made and not given yet.
        """
        for part in portions(texts):
            for vector in self.encode(part, **{"progress": False, **options}):
                yield vector.copy()  # a row that is kept must not keep its neighbours

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Similarity of each vector of `a` to each of `b` by the model's own measure, float32 [len(a), len(b)]."""
        import numpy as np

        left, right = (np.atleast_2d(np.asarray(v, np.float32)) for v in (a, b))
        if left.shape[1] != right.shape[1]:
            raise InputError(f"[similarity] vectors of {left.shape[1]} and {right.shape[1]} numbers do not compare")
        measure = self.similarity_name
        if measure == "cosine":
            left, right = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (left, right))
        if measure in ("cosine", "dot"):
            return left @ right.T
        order = 2 if measure == "euclidean" else 1
        return np.stack([-np.linalg.norm(right - row, ord=order, axis=1) for row in left]).astype(np.float32)

    @property
    def similarity_name(self) -> str:
        """The model's own measure: cosine, dot, euclidean or manhattan."""
        return "cosine"

    def rank(self, query: str, documents: Sequence[str], top_k: int | None = None, **options: Any) -> list[Ranked]:
        """The documents nearest to the query, best first, all or `top_k` of them; equal ones in the order given."""
        import numpy as np

        if top_k is not None and top_k < 1:
            raise InputError(f"[rank] top_k is {top_k}; at least 1 is needed")
        items = list(documents)
        if not items:
            return []
        scores = self.similarity(self.encode_query(query, **options), self.encode_document(items, **options))[0]
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [Ranked(int(i), float(scores[i])) for i in order]

    async def aembed(self, texts: str | Sequence[str], **options: Any) -> Embedded:
        """`embed` in another thread; the event loop goes on meanwhile."""
        return await _in_thread(self.embed, texts, **options)

    async def aencode(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` in another thread."""
        return await _in_thread(self.encode, texts, **options)

    async def aencode_query(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode_query` in another thread."""
        return await _in_thread(self.encode_query, texts, **options)

    async def aencode_document(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode_document` in another thread."""
        return await _in_thread(self.encode_document, texts, **options)

    async def arank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, **options: Any
    ) -> list[Ranked]:
        """`rank` in another thread."""
        return await _in_thread(self.rank, query, documents, top_k, **options)

    def _prompt(self, name: str | None, text: str | None) -> str:
        return text if text is not None else self.prompts.get(name or "", "")


async def _in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    import asyncio  # 30 ms that only those who await have to spend

    return await asyncio.to_thread(function, *arguments, **options)


def check_texts(texts: Sequence[Any]) -> None:
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"[embed] texts[{i}] is {type(text).__name__}; texts are strings")


def portions(
    texts: Iterable[str], count: int = STREAM_TEXTS, characters: int = STREAM_CHARACTERS
) -> Iterator[list[str]]:
    """The texts in lists of at most `count`, and of not many more than `characters` together."""
    part: list[str] = []
    size = 0
    for text in texts:
        part.append(text)
        size += len(text) if isinstance(text, str) else 0
        if len(part) == count or size >= characters:
            yield part
            part, size = [], 0
    if part:
        yield part
