"""The reranker: a query and documents in, a score for each out, the same whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, TooLongError, UnsupportedError
from weft.frozen import frozen
from weft.progress import shown
from weft.rerank.pairs import Pairs, Scorer, check_truncate
from weft.runtime import Checkpoint, open_checkpoint, read_object
from weft.weights.sources import Located, locate

if TYPE_CHECKING:
    import numpy as np

    from weft.text import Tokenizer

PROGRESS_FROM = 32  # pairs: each is read by the whole model
METHODS = ("classifier", "yes-no", "likelihood")


@frozen
class Ranked:
    """A document's place in the list that was given, its score, and its text."""

    index: int
    score: float
    document: str


class Reranker:
    """A model that scores documents against a query: `rank` and `scores`.

    `model` is `org/name[@revision]`, a folder or a file. `method` is how it scores: "classifier" for cross-encoders,
    "yes-no" for Qwen3-Reranker, "likelihood" for any generator (the query's, given the document); which of them, the
    files of cross-encoders and of Qwen3-Reranker say themselves. `label` chooses among several of a classifier,
    `instruction` tells Qwen3-Reranker what an answer is. A pair longer than the model takes is an error that says the
    numbers, unless `truncate` is "head" (keep the beginning) or "tail" (keep the end). `compute` as for Embedder; a
    generator has its own default.
    """

    def __init__(
        self,
        model: str,
        *,
        method: str | None = None,
        label: str | int | None = None,
        instruction: str | None = None,
        truncate: str = "error",
        compute: str | None = None,
        threads: int | None = None,
        offline: bool | None = None,
        progress: bool | None = None,
    ) -> None:
        self.truncate = check_truncate(truncate)
        self._located = locate(str(model), offline=offline, progress=progress)
        checkpoint = open_checkpoint(self._located.path)
        self.method = method_of(checkpoint, self._located, method)
        given = {"label": label, "instruction": instruction, "compute": compute, "threads": threads}
        self._scorer = scorer_of(checkpoint, self.method, **{k: v for k, v in given.items() if v is not None})
        self._scorer.start()

    @property
    def max_tokens(self) -> int:
        """The longest pair in tokens, with all that surrounds it."""
        return self._scorer.max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self._scorer.tokenizer

    @property
    def info(self) -> dict[str, Any]:
        """How scores are made: model, method, limits, kernels."""
        named = {"model": self._located.spec, "source": self._located.source}
        return {**self._scorer.info, **named, "method": self.method, "max_tokens": self.max_tokens}

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        truncate: str | None = None,
        progress: bool | None = None,
    ) -> list[Ranked]:
        """The documents in falling order of their score, the `top_k` best where that is given; equals stay in order.

        `progress` draws a bar, or none; left out, one is drawn on a terminal while many documents are read.
        """
        if top_k is not None and (type(top_k) is not int or top_k < 1):
            raise InputError("rerank", f"top_k is {top_k!r}; a whole number from 1 on is wanted")
        if not isinstance(query, str):
            raise InputError("rerank", f"query is {type(query).__name__}; one string is ranked for")
        texts = _listed(documents, "documents")
        found = self.scores(query, texts, truncate=truncate, progress=progress).tolist()
        order = sorted(range(len(found)), key=lambda i: (-found[i], i))
        return [Ranked(i, found[i], texts[i]) for i in order[:top_k]]

    async def arank(
        self, query: str, documents: Iterable[str], top_k: int | None = None, **options: Any
    ) -> list[Ranked]:
        """`rank` in another thread; the event loop goes on meanwhile."""
        import asyncio

        return await asyncio.to_thread(self.rank, query, documents, top_k, **options)

    def scores(
        self,
        query: str | Sequence[tuple[str, str]],
        documents: Iterable[str] | None = None,
        *,
        truncate: str | None = None,
        progress: bool | None = None,
    ) -> np.ndarray:
        """A score for each document, float32 [n]; or for each of a list of pairs of a query and a document."""
        if isinstance(query, str) != (documents is not None):
            raise InputError("rerank", "give a query and documents, or pairs of both alone")
        if isinstance(query, str):
            pairs = [(query, text) for text in _listed(documents, "documents")]
        else:
            pairs = _listed(query, "pairs")
        return self.score_tokens(self.token_pairs(pairs, truncate=truncate), progress=progress)

    def token_pairs(self, pairs: Sequence[tuple[str, str]], *, truncate: str | None = None) -> Pairs:
        """What `scores` computes with: the tokens of each pair, and how many were cut off."""
        mode = self.truncate if truncate is None else check_truncate(truncate)
        made = []
        for i, pair in enumerate(pairs):
            two = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
            if not two or not all(isinstance(text, str) for text in pair):
                raise InputError("rerank", f"pairs[{i}] is not a query and a document; both are strings")
            try:
                made.append(self._scorer.tokens((pair[0], pair[1]), mode))
            except TooLongError as error:
                said = f"[rerank] pair {i}: {str(error).removeprefix('[rerank] ')}"
                raise TooLongError(said, length=error.length, limit=error.limit, index=i) from None
        return Pairs([tokens for tokens, _ in made], [dropped for _, dropped in made])

    def score_tokens(self, pairs: Pairs, *, progress: bool | None = None) -> np.ndarray:
        """The scores of what `token_pairs` gave, float32 [len(pairs.tokens)]."""
        return self.activated(self.raw_scores(pairs, progress=progress))

    def raw_scores(self, pairs: Pairs, *, progress: bool | None = None) -> np.ndarray:
        """What `activated` makes the scores of, float32 [len(pairs.tokens)]; of a classifier its logits."""
        import numpy as np

        tokens = pairs.tokens
        found = np.empty(len(tokens), np.float32)
        parts = shown(self._scorer.ranges(tokens), len(tokens), progress, "reranking", PROGRESS_FROM)
        for (first, last), scores in zip(parts, self._scorer.scores(tokens)):
            found[first:last] = scores
        return found

    def activated(self, raw: np.ndarray, activation: str | None = None) -> np.ndarray:
        """The scores of what `raw_scores` gave: through the activation that the model's files say, or, of a classifier,
        through `activation`: "sigmoid", or "identity" for logits."""
        if activation is not None and self.method != "classifier":
            raise InputError("rerank", f"activation is {activation!r:.40}; only a classifier's scores have several")
        return self._scorer.activated(raw, activation)


def _listed(given: Any, name: str) -> list[Any]:
    """What has an order, as a list; one string is not its letters."""
    if isinstance(given, (str, bytes, Set, Mapping)) or not isinstance(given, Iterable):
        raise InputError("rerank", f"{name} is {type(given).__name__}; a query and a list of documents are wanted")
    return list(given)


def scorer_of(checkpoint: Checkpoint, method: str, **options: Any) -> Scorer:
    """What scores pairs by `method`; no weight has been read, but those of a generator."""
    if "label" in options and method != "classifier":
        raise InputError("rerank", "a label is chosen of a classifier; this model has none")
    if "instruction" in options and method != "yes-no":
        raise InputError("rerank", "only Qwen3-Reranker takes an instruction")
    if method == "classifier":
        from weft.rerank.classifier import Classifier

        return Classifier(checkpoint, **options)
    if method == "yes-no":
        from weft.rerank.yes_no import YesNo

        return YesNo(checkpoint, **options)
    from weft.generate import load
    from weft.rerank.likelihood import Likelihood

    return Likelihood(load(str(checkpoint.path), offline=True, **options))


def method_of(checkpoint: Checkpoint, located: Located, method: str | None = None) -> str:
    """How the model scores: the caller's word, else what its files say."""
    if method is not None and method not in METHODS:
        raise InputError("rerank", f"method is {method!r}; one of {', '.join(METHODS)}")
    found = method or stated_method(checkpoint, located)
    if found is None and "score.weight" in checkpoint.tensors:
        raise UnsupportedError(
            "rerank",
            f"{located.spec} is a {checkpoint.model_type} that scores by a layer of its own, score.weight, "
            "which weft has for encoders alone",
        )
    if found is None:
        raise UnsupportedError(
            "rerank",
            f"{located.spec} does not say how it scores; a generator takes method='likelihood' (--method), "
            "and 'yes-no' if it was trained as Qwen3-Reranker was; weft.Embedder ranks by an embedding model",
        )
    return found


def stated_method(checkpoint: Checkpoint, located: Located) -> str | None:
    """How the model's files say that it scores; None where they do not say that it is a reranker."""
    from weft.rerank.classifier import is_classifier

    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    modules = read_object(folder / "modules.json", kind=list, missing=[])
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules if isinstance(module, dict)]
    if "Pooling" in kinds or (located.entry is not None and located.entry.kind == "embed"):
        return None
    if is_classifier(checkpoint):
        return "classifier"
    names = f"{located.spec} {checkpoint.path.name}".lower()
    return "yes-no" if "qwen3-reranker" in names or "LogitScore" in kinds else None
