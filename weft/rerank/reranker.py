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
    """A document's index in the caller's list, its score, and its text."""

    index: int
    score: float
    document: str


class Reranker:
    """A model that scores documents against a query: `rank` and `scores`.

    `model` is `org/name[@revision]`, a folder or a file. `method` is how it scores: "classifier" for cross-encoders,
    "yes-no" for Qwen3-Reranker, "likelihood" for any generator (that of the query, given the document); for
    cross-encoders and Qwen3-Reranker it is found from the files. `label` chooses one of a classifier's labels,
    `instruction` describes to Qwen3-Reranker what counts as an answer. A pair longer than the model takes is a
    TooLongError, unless `truncate` is "head" (keep the beginning) or "tail" (keep the end). `parse_special`, for
    cross-encoders, reads special tokens in texts, such as "[SEP]", as such; by default they are text. `compute` is that
    of Embedder; a generator has its own default.
    """

    def __init__(
        self,
        model: str,
        *,
        method: str | None = None,
        label: str | int | None = None,
        instruction: str | None = None,
        truncate: str = "error",
        parse_special: bool | None = None,
        compute: str | None = None,
        threads: int | None = None,
        offline: bool | None = None,
        progress: bool | None = None,
    ) -> None:
        self.truncate = check_truncate(truncate)
        self._located = locate(str(model), offline=offline, progress=progress).alone("rerank")
        checkpoint = open_checkpoint(self._located.path)
        self.method = method_of(checkpoint, self._located, method)
        given = {"label": label, "instruction": instruction, "parse_special": parse_special}
        given |= {"compute": compute, "threads": threads}
        self._scorer = scorer_of(checkpoint, self.method, **{k: v for k, v in given.items() if v is not None})
        self._scorer.start()

    @property
    def max_tokens(self) -> int:
        """The longest pair in tokens, special tokens and instructions included."""
        return self._scorer.max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self._scorer.tokenizer

    @property
    def parse_special(self) -> bool:
        """Whether special tokens in texts are read as such; may be set for a cross-encoder."""
        return bool(getattr(self._scorer, "parse_special", False))

    @parse_special.setter
    def parse_special(self, parses: bool) -> None:
        from weft.rerank.classifier import Classifier

        if not isinstance(self._scorer, Classifier):
            what = f"can only be set for a cross-encoder; this model scores by {self.method}"
            raise InputError("rerank", what, given=parses, field="parse_special", advice="leave it out")
        self._scorer.parse_special = parses

    @property
    def info(self) -> dict[str, Any]:
        """How scores are made: model, method, limits, kernels."""
        named = {"model": self._located.spec, "source": self._located.source}
        return {**self._scorer.info, **named, "method": self.method, "max_tokens": self.max_tokens}

    @property
    def labels(self) -> list[str]:
        """The names of a classifier's labels; none for models that score in another way."""
        return list(getattr(self._scorer, "names", ()))

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        truncate: str | None = None,
        progress: bool | None = None,
    ) -> list[Ranked]:
        """The documents by descending score, all or the best `top_k`; those with equal scores keep their order.

        `progress` draws a progress bar; None draws one on a terminal if there are many documents.
        """
        if top_k is not None and (type(top_k) is not int or top_k < 1):
            raise InputError("rerank", "must be a whole number from 1 on", given=top_k, field="top_k")
        if not isinstance(query, str):
            raise InputError("rerank", "must be one string", given=query, field="query")
        texts = _listed(documents, "documents")
        found = self.scores(query, texts, truncate=truncate, progress=progress).tolist()
        order = sorted(range(len(found)), key=lambda i: (-found[i], i))
        return [Ranked(i, found[i], texts[i]) for i in order[:top_k]]

    async def arank(
        self, query: str, documents: Iterable[str], top_k: int | None = None, **options: Any
    ) -> list[Ranked]:
        """`rank` in another thread."""
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
        """The score of each document, or of each (query, document) pair if `query` is a list of them; float32 [n]."""
        if isinstance(query, str) != (documents is not None):
            raise InputError("rerank", "give a query and documents, or only a list of (query, document) pairs")
        if isinstance(query, str):
            pairs = [(query, text) for text in _listed(documents, "documents")]
        else:
            pairs = _listed(query, "pairs")
        return self.score_tokens(self.token_pairs(pairs, truncate=truncate), progress=progress)

    def token_pairs(self, pairs: Sequence[tuple[str, str]], *, truncate: str | None = None) -> Pairs:
        """The tokens of each pair that `scores` computes with, and how many were cut off."""
        mode = self.truncate if truncate is None else check_truncate(truncate)
        made = []
        for i, pair in enumerate(pairs):
            two = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
            if not two or not all(isinstance(text, str) for text in pair):
                what = "must be a query and a document, both strings"
                raise InputError("rerank", what, given=pair, field="pair", index=i)
            try:
                made.append(self._scorer.tokens((pair[0], pair[1]), mode))
            except TooLongError as error:
                raise error.but(index=i) from None
        return Pairs([tokens for tokens, _ in made], [dropped for _, dropped in made])

    def token_texts(self, texts: Sequence[str | tuple[str, str]], *, truncate: str | None = None) -> Pairs:
        """As `token_pairs`, for a classifier and for single texts too."""
        from weft.rerank.classifier import Labels
        from weft.rerank.text_classifier import token_texts

        if not isinstance(self._scorer, Labels):
            raise UnsupportedError("rerank", f"a model that scores by {self.method} takes pairs of texts only")
        return token_texts(self._scorer, texts, self.truncate if truncate is None else check_truncate(truncate))

    def score_tokens(self, pairs: Pairs, *, progress: bool | None = None) -> np.ndarray:
        """The scores of tokenized pairs, float32 [len(pairs.tokens)]."""
        return self.activated(self.raw_scores(pairs, progress=progress))

    def raw_scores(self, pairs: Pairs, *, progress: bool | None = None) -> np.ndarray:
        """Raw scores for `activated`, float32 [len(pairs.tokens)]; a classifier's logits."""
        import numpy as np

        tokens = pairs.tokens
        found = np.empty(len(tokens), np.float32)
        parts = shown(self._scorer.ranges(tokens), len(tokens), progress, "reranking", PROGRESS_FROM)
        for (first, last), scores in zip(parts, self._scorer.scores(tokens)):
            found[first:last] = scores
        return found

    def activated(self, raw: np.ndarray, activation: str | None = None) -> np.ndarray:
        """Raw scores through the activation in the model's files; for a classifier, `activation` overrides it:
        "sigmoid", or "identity" for logits."""
        if activation is not None and self.method != "classifier":
            what = "can only be set for a cross-encoder"
            raise InputError("rerank", what, given=activation, field="activation", advice="leave it out")
        return self._scorer.activated(raw, activation)


def _listed(given: Any, name: str) -> list[Any]:
    """`given` as a list; a string, a set and other things without items in order are refused."""
    if isinstance(given, (str, bytes, Set, Mapping)) or not isinstance(given, Iterable):
        raise InputError("rerank", f"must be a list, not {type(given).__name__}", field=name)
    return list(given)


def scorer_of(checkpoint: Checkpoint, method: str, **options: Any) -> Scorer:
    """The scorer for `method`; only a generator's weights are read already."""
    if "label" in options and method != "classifier":
        what = f"can only be set for a cross-encoder; this model scores by {method}"
        raise InputError("rerank", what, given=options["label"], field="label", advice="leave it out")
    if "parse_special" in options and method != "classifier":
        what = f"can only be set for a cross-encoder; this model scores by {method}"
        raise InputError("rerank", what, given=options["parse_special"], field="parse_special", advice="leave it out")
    if "instruction" in options and method != "yes-no":
        what = f"can only be set for Qwen3-Reranker (method 'yes-no'); this model scores by {method}"
        raise InputError("rerank", what, given=options["instruction"], field="instruction", advice="leave it out")
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
    """How the model scores: `method`, else what its files say."""
    if method is not None and method not in METHODS:
        raise InputError("rerank", f"must be one of {', '.join(METHODS)}", given=method, field="method")
    found = method or stated_method(checkpoint, located)
    if found is None and "score.weight" in checkpoint.tensors:
        raise UnsupportedError(
            "rerank",
            f"{located.spec} is a {checkpoint.model_type} with a scoring layer (score.weight), which weft supports for "
            "encoders only",
        )
    if found is None:
        raise UnsupportedError(
            "rerank",
            f"must be given, since the files of {located.spec} do not say how it scores",
            field="method",
            advice="for a generator give method='likelihood' (--method), or 'yes-no' if it was trained like "
            "Qwen3-Reranker; for an embedding model use weft.Embedder",
        )
    return found


def stated_method(checkpoint: Checkpoint, located: Located) -> str | None:
    """How the model scores by its files; None if they do not say that it is a reranker."""
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
