"""The embedder: texts in, float32 vectors out, the same whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.embed.fingerprint import Fingerprint, tokenizer_digest, weights_digest
from weft.embed.recipe import Recipe, read_recipe
from weft.errors import InputError, TooLongError, UnsupportedError
from weft.runtime import Encoder, open_checkpoint
from weft.weights.sources import locate

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime import Adapters
    from weft.text import Tokenizer

BATCH_TOKENS = 512  # tokens of one step: enough rows for the products, few enough that activations stay in cache
LEAST_TOKENS = 64  # of a step that runs beside others; fewer are better shared by all threads
PROGRESS_FROM = 2000  # texts; shorter lists are done before a bar would be drawn
TRUNCATIONS = ("error", "head", "tail")


class TokenIds(NamedTuple):
    """Ids of texts, each int32 [n], and how many tokens of each were cut off."""

    ids: list[np.ndarray]
    dropped: list[int]


class Embedder:
    """An embedding model: `encode`, `encode_query`, `encode_document`, `similarity`.

    `model` is a catalogue name, `org/name[@revision]`, a folder or a file. An input longer than the model takes is an
    error that says the numbers, unless `truncate` is "head" (keep the beginning) or "tail" (keep the end). `compute`
    "bf16" rounds activations and weights to bfloat16 before their products: faster, and near the same vectors. "bf16x3"
    splits them in two bfloat16 each: on a machine with a matrix unit faster than "f32", within 3e-5 of its vectors.
    "int8" rounds activations, a scale a token, and weights, a scale a channel: the fastest; cosines of about 0.999.
    """

    def __init__(
        self,
        model: str,
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
        truncate: str = "error",
        compute: str = "f32",
        threads: int | None = None,
        offline: bool | None = None,
        progress: bool | None = None,
    ) -> None:
        self.truncate = _check_truncate(truncate)
        located = locate(str(model), offline=offline, progress=progress)
        checkpoint = open_checkpoint(located.path)
        self.recipe: Recipe = read_recipe(checkpoint, located.entry, pooling)
        self._normalise = self.recipe.normalise if normalise is None else normalise
        head = self.recipe.head(self._normalise)
        self._encoder = Encoder(self.recipe.with_dense(checkpoint), head, compute=compute, threads=threads)
        self._encoder.start()
        self._located = located

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._encoder.dimension

    @property
    def max_tokens(self) -> int:
        """The longest input in tokens, special tokens and prompt included."""
        return min(self.recipe.max_tokens, self._encoder.max_tokens)

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self._encoder.vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        return self._encoder.tokenizer

    @property
    def info(self) -> dict[str, Any]:
        """How vectors are made: model, pooling, prompts, normalising, limits, kernels."""
        return {
            "model": self._located.spec,
            "source": self._located.source,
            **self._encoder.info,
            "dimension": self.dimension,
            "pooling": self.recipe.pooling,
            "normalise": self._normalise,
            "prompts": dict(self.recipe.prompts),
            "max_tokens": self.max_tokens,
            "similarity": self.recipe.similarity,
            "recipe": self.recipe.source,
            "fingerprint": str(self.fingerprint),
            "fingerprint_parts": self.fingerprint.parts,
        }

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What makes these vectors and no others; `str()` of it is what stores keep beside them."""
        checkpoint = self._encoder.checkpoint
        return Fingerprint(
            weights=weights_digest(checkpoint),
            tokenizer=tokenizer_digest(None if checkpoint.make_tokenizer is None else self.tokenizer),
            pooling=self.recipe.pooling,
            dense=tuple(layer.activation for layer in self.recipe.dense),
            prompts={name: text for name, text in self.recipe.prompts.items() if text},
            dimension=self.dimension,
            normalise=self._normalise,
            compute=self._encoder.info["compute"],
        )

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: str | None = None,
        adapter: str | None = None,
        batch_tokens: int = BATCH_TOKENS,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Vectors of `texts`, float32 [len(texts), dimension]; one text alone gives [dimension].

        `prompt` is put before every text; `prompt_name` picks one of the model's own ("query", "document"). `adapter`
        is the name of a loaded one (`adapters.load`).
        """
        single = isinstance(texts, str)
        items = [texts] if isinstance(texts, str) else list(texts)
        ids = self.token_ids(items, prompt_name=prompt_name, prompt=prompt, truncate=truncate).ids
        vectors = self.encode_ids(ids, adapter=adapter, batch_tokens=batch_tokens, progress=progress)
        return vectors[0] if single else vectors

    def token_ids(
        self,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: str | None = None,
    ) -> TokenIds:
        """What `encode` computes with: the ids of each text, special tokens and prompt included."""
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"[embed] texts[{i}] is {type(text).__name__}; texts are strings")
        before = self._prompt(prompt_name, prompt)
        return self._token_ids([before + text for text in texts] if before else list(texts), truncate)

    def encode_ids(
        self,
        ids: Sequence[np.ndarray],
        *,
        adapter: str | None = None,
        batch_tokens: int = BATCH_TOKENS,
        progress: bool | None = False,
    ) -> np.ndarray:
        """Vectors of sequences of ids, each int32 [n] and taken as it is, float32 [len(ids), dimension]."""
        import numpy as np

        if batch_tokens < 1:
            raise InputError(f"[embed] batch_tokens is {batch_tokens}; at least 1 is needed")
        sequences = list(ids)
        vectors = np.empty((len(sequences), self.dimension), np.float32)
        ranges = list(_batches(sequences, self._budget(sequences, batch_tokens)))
        parts = [sequences[first:last] for first, last in ranges]
        made = self._encoder.vectors_each(parts) if adapter is None else self._adapted(parts, adapter)
        for first, last in _shown(ranges, len(sequences), progress):
            vectors[first:last] = next(made)
        return vectors

    @property
    def adapters(self) -> Adapters:
        """The LoRA adapters that `encode` may name: load, replace, blend, unload."""
        return self._encoder.adapters

    def _adapted(self, parts: list[list[np.ndarray]], name: str) -> Iterator[np.ndarray]:
        """The vectors of each part, all by the version that `name` stands for now."""
        import numpy as np

        held = self.adapters.hold(name)
        try:
            for part in parts:
                yield self._encoder.adapted_vectors(part, np.full(len(part), held.index, np.int32))
        finally:
            self.adapters.release(held)

    def encode_query(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` with the model's prompt for queries, where it has one."""
        return self.encode(texts, prompt_name="query", **options)

    def encode_document(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` with the model's prompt for documents, where it has one."""
        names = ("document", "passage", "corpus")  # what models call it, in sentence-transformers' order
        name = next((n for n in names if self.recipe.prompts.get(n)), None)
        return self.encode(texts, prompt_name=name or "document", **options)

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Similarity of each vector of `a` to each of `b` by the model's own measure, float32 [len(a), len(b)]."""
        import numpy as np

        left, right = (np.atleast_2d(np.asarray(v, np.float32)) for v in (a, b))
        if left.shape[1] != right.shape[1]:
            raise InputError(f"[similarity] vectors of {left.shape[1]} and {right.shape[1]} numbers do not compare")
        if self.recipe.similarity == "cosine":
            left, right = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (left, right))
        if self.recipe.similarity in ("cosine", "dot"):
            return left @ right.T
        order = 2 if self.recipe.similarity == "euclidean" else 1
        return np.stack([-np.linalg.norm(right - row, ord=order, axis=1) for row in left]).astype(np.float32)

    def hidden_states(self, ids: Sequence[int]) -> np.ndarray:
        """The last hidden state of every token of `ids`, float32 [len(ids), hidden]; ids as they are, nothing added."""
        return self._encoder.hidden_states(ids)

    def _budget(self, ids: list[np.ndarray], most: int) -> int:
        """Tokens of a step, at most `most`, such that every thread gets as many steps as the others."""
        share = -(-sum(map(len, ids)) // self._encoder.thread_plan.count)
        rounds = -(-share // most) or 1
        return min(most, max(LEAST_TOKENS, -(-share // rounds)))

    def _prompt(self, name: str | None, text: str | None) -> str:
        if text is not None:
            return text
        before = self.recipe.prompt(name)
        if before and not self.recipe.include_prompt:
            raise UnsupportedError("[embed] this model pools without its prompt's tokens (include_prompt false)")
        return before

    def _token_ids(self, texts: list[str], truncate: str | None) -> TokenIds:
        import numpy as np

        mode = self.truncate if truncate is None else _check_truncate(truncate)
        encoded: list[Any] = self.tokenizer.encode_batch(texts)
        limit = self.max_tokens
        dropped = [0] * len(encoded)
        for i, ids in enumerate(encoded):
            if len(ids) <= limit:
                continue
            if mode == "error":
                raise TooLongError(
                    f"[embed] text {i} has {len(ids)} tokens, the model takes {limit}; "
                    "shorten it or give truncate='head'",
                    length=len(ids),
                    limit=limit,
                )
            encoded[i] = self._cut(ids, limit, mode)
            dropped[i] = len(ids) - len(encoded[i])
        return TokenIds([np.asarray(ids, np.int32) for ids in encoded], dropped)

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """The special tokens that the model puts before and after a text."""
        plain, whole = self.tokenizer.encode("a", add_special=False), self.tokenizer.encode("a")
        at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
        return whole[:at], whole[at + len(plain) :]

    def _cut(self, ids: Sequence[int], limit: int, mode: str) -> np.ndarray:
        """The text's tokens cut to fit between the special tokens that frame it."""
        import numpy as np

        front, back = self._frame
        inner = list(ids)[len(front) : len(ids) - len(back)]
        room = limit - len(front) - len(back)
        kept = inner[:room] if mode == "head" else inner[len(inner) - room :]
        return np.asarray([*front, *kept, *back], np.int32)


def _check_truncate(mode: str) -> str:
    if mode not in TRUNCATIONS:
        raise InputError(f"[embed] truncate is {mode!r}; one of {', '.join(TRUNCATIONS)}")
    return mode


def _batches(ids: list[np.ndarray], budget: int) -> Iterator[tuple[int, int]]:
    """Ranges of texts with at most `budget` tokens together, or one text alone; order kept, nothing padded."""
    first, tokens = 0, 0
    for i, item in enumerate(ids):
        if i > first and tokens + len(item) > budget:
            yield first, i
            first, tokens = i, 0
        tokens += len(item)
    if first < len(ids):
        yield first, len(ids)


def _shown(batches: Sequence[tuple[int, int]], total: int, progress: bool | None) -> Iterator[tuple[int, int]]:
    """The batches, with a bar on the terminal for long lists or when asked for."""
    from weft import flags

    if progress is None:
        import sys

        progress = total >= PROGRESS_FROM and sys.stderr.isatty() and not flags.get("WEFT_NO_PROGRESS")
    if not progress:
        yield from batches
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("embedding", total=total)
        for first, last in batches:
            yield first, last
            bar.update(task, completed=last)
