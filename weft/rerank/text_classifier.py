"""Text classification: the probability of each of a model's labels for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, TooLongError, UnsupportedError
from weft.frozen import frozen
from weft.progress import shown
from weft.rerank.classifier import Labels
from weft.rerank.pairs import Pairs, check_truncate, sigmoid
from weft.runtime import member, open_checkpoint
from weft.weights.sources import locate

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime import Checkpoint, Tokens
    from weft.text import Tokenizer

PROGRESS_FROM = 32  # texts
# How a config's problem_type turns logits into scores, as in transformers' pipeline.
ACTIVATIONS = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}

Text = str | tuple[str, str]


@frozen
class Classified:
    """The most probable label of a text with its score, and the score of every label in the model's order."""

    label: str
    score: float
    scores: dict[str, float]


class TextClassifier:
    """A model with a classifier over several labels: sentiment, topics, entailment. `classify` gives their scores.

    `model` is `org/name[@revision]`, a folder or a file. Scores go through the activation that the model's
    `problem_type` means: softmax where one label is right, sigmoid where several may be or there is only one, none for
    regression. A text longer than the model takes is a TooLongError, unless `truncate` is "head" (keep the beginning)
    or "tail" (keep the end).
    """

    def __init__(
        self,
        model: str,
        *,
        truncate: str = "error",
        compute: str | None = None,
        threads: int | None = None,
        offline: bool | None = None,
        progress: bool | None = None,
    ) -> None:
        self.truncate = check_truncate(truncate)
        self._located = locate(str(model), offline=offline, progress=progress).alone("classify")
        checkpoint = open_checkpoint(self._located.path)
        given: dict[str, Any] = {"compute": compute, "threads": threads}
        self._scorer = Labels(checkpoint, **{k: v for k, v in given.items() if v is not None})
        self.activation = label_activation(checkpoint, self._scorer.count)
        self._scorer.start()

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the model's order."""
        return list(self._scorer.names)

    @property
    def max_tokens(self) -> int:
        """The longest text in tokens, special tokens included."""
        return self._scorer.max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self._scorer.tokenizer

    @property
    def info(self) -> dict[str, Any]:
        """How scores are made: model, labels, activation, limits, kernels."""
        named = {"model": self._located.spec, "source": self._located.source, "labels": self.labels}
        return {**self._scorer.info, **named, "activation": self.activation, "max_tokens": self.max_tokens}

    def classify(
        self, texts: Iterable[Text], *, truncate: str | None = None, progress: bool | None = None
    ) -> list[Classified]:
        """The labels of each text, or of each pair of texts."""
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise InputError("classify", f"must be a list, not {type(texts).__name__}", field="texts")
        tokens = self.token_texts(list(texts), truncate=truncate)
        scores = activated(self.logits(tokens.tokens, progress=progress), self.activation)
        return [self._classified(row) for row in scores.tolist()]

    def _classified(self, row: list[float]) -> Classified:
        best = max(range(len(row)), key=lambda i: row[i])
        names = self._scorer.names
        return Classified(names[best], row[best], dict(zip(names, row)))

    def token_texts(self, texts: Sequence[Text], *, truncate: str | None = None) -> Pairs:
        """The tokens of each text or pair, and how many were cut off."""
        return token_texts(self._scorer, texts, self.truncate if truncate is None else check_truncate(truncate))

    def logits(self, tokens: Sequence[Tokens], *, progress: bool | None = None) -> np.ndarray:
        """The logits of all labels, float32 [len(tokens), labels]."""
        import numpy as np

        found = np.empty((len(tokens), self._scorer.count), np.float32)
        parts = shown(self._scorer.ranges(tokens), len(tokens), progress, "classifying", PROGRESS_FROM)
        for (first, last), rows in zip(parts, self._scorer.scores(tokens)):
            found[first:last] = rows
        return found


def token_texts(scorer: Labels, texts: Sequence[Text], truncate: str) -> Pairs:
    """The tokens of texts and pairs for a classifier, and how many of each were cut off."""
    made = []
    for i, text in enumerate(texts):
        parts = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, Sequence) else ()
        if len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
            raise InputError("classify", "must be a string or two strings", given=text, field="text", index=i)
        try:
            made.append(scorer.tokens((parts[0], parts[1]) if len(parts) == 2 else (parts[0],), truncate))
        except TooLongError as error:
            raise error.but(where="classify", field="text", index=i) from None
    return Pairs([tokens for tokens, _ in made], [dropped for _, dropped in made])


def label_activation(checkpoint: Checkpoint, labels: int) -> str:
    """The activation of a model's scores: by its problem_type, else by the number of labels."""
    stated = member(checkpoint.config, "problem_type", str, None, file="config.json")
    if stated is None:
        return "softmax" if labels > 1 else "sigmoid"
    if stated not in ACTIVATIONS:
        what = f"must be one of {', '.join(ACTIVATIONS)}"
        raise UnsupportedError("config.json", what, given=stated, field="problem_type")
    return "sigmoid" if labels == 1 and stated == "single_label_classification" else ACTIVATIONS[stated]


def activated(logits: np.ndarray, activation: str) -> np.ndarray:
    """Scores from logits [n, labels]: "softmax", "sigmoid", or "identity" for the logits themselves."""
    import numpy as np

    if activation == "identity":
        return logits
    if activation == "sigmoid":
        return sigmoid(logits)
    wide = logits.astype(np.float64)
    wide = np.exp(wide - wide.max(axis=1, keepdims=True))
    return (wide / wide.sum(axis=1, keepdims=True)).astype(np.float32)
