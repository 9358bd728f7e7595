"""A classifier in a server: texts of many requests share its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.errors import UnsupportedError
from weft.serve.models.steps import StepRunner

if TYPE_CHECKING:
    import numpy as np

    from weft.classify import Classifier
    from weft.rerank import TextClassifier
    from weft.rerank.pairs import Pairs
    from weft.rerank.text_classifier import Text
    from weft.runtime import Adapters


class ClassifyRunner(StepRunner):
    """One loaded classifier. Steps compute logits: requests that share one may ask for different activations."""

    kind = "classify"

    def __init__(self, classifier: TextClassifier | Classifier, *, waiting: int) -> None:
        self.classifier = classifier
        info = classifier.info
        self.labels: list[str] = info["labels"]
        self.activation: str = info["activation"]
        self.threshold: float = info.get("threshold", 0.0)  # below it a text gets no label
        super().__init__(
            classifier,
            lambda tokens, _adapter: classifier.logits(tokens, progress=False),
            width=len(self.labels),
            waiting=waiting,
        )

    @property
    def adapters(self) -> Adapters:
        raise UnsupportedError("classify", "adapters are not supported for classifiers in a server")

    async def token_texts(self, texts: Sequence[Text], truncate: str | None) -> Pairs:
        """The tokens of each text or pair, computed by another thread."""
        return await self.tokenized(lambda: self.classifier.token_texts(texts, truncate=truncate))

    async def logits(self, pairs: Pairs) -> tuple[np.ndarray, float]:
        """The logits of all labels, float32 [n, labels], and the seconds spent waiting."""
        return await self._steps.rows(pairs.tokens)
