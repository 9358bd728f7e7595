"""A classifier in a server: texts of many requests share its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError
from weft.serve.models.steps import Steps

if TYPE_CHECKING:
    import numpy as np

    from weft.rerank import TextClassifier
    from weft.rerank.pairs import Pairs
    from weft.rerank.text_classifier import Text
    from weft.runtime import Adapters
    from weft.text import Tokenizer


class ClassifyRunner:
    """One loaded classifier. Steps compute logits: requests that share one may ask for different activations."""

    kind = "classify"

    def __init__(self, classifier: TextClassifier, *, waiting: int) -> None:
        self.classifier = classifier
        info = classifier.info
        self.labels: list[str] = info["labels"]
        self.activation: str = info["activation"]
        self._steps = Steps(
            lambda tokens, _adapter: classifier.logits(tokens, progress=False),
            width=len(self.labels),
            threads=info["threads"],
            waiting=waiting,
        )
        self._texts = ThreadPoolExecutor(1, "weft-tokens")

    @property
    def info(self) -> dict[str, Any]:
        return self.classifier.info

    @property
    def max_tokens(self) -> int:
        return self.classifier.max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self.classifier.tokenizer

    @property
    def adapters(self) -> Adapters:
        raise UnsupportedError("classify", "adapters are not supported for classifiers in a server")

    @property
    def waiting(self) -> int:
        return self._steps.waiting

    @property
    def failure(self) -> BaseException | None:
        return None

    async def token_texts(self, texts: Sequence[Text], truncate: str | None) -> Pairs:
        """The tokens of each text or pair, computed by another thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._texts, lambda: self.classifier.token_texts(texts, truncate=truncate)
        )

    async def logits(self, pairs: Pairs) -> tuple[np.ndarray, float]:
        """The logits of all labels, float32 [n, labels], and the seconds spent waiting."""
        return await self._steps.rows(pairs.tokens)

    async def close(self) -> None:
        await self._steps.close()
        self._texts.shutdown()
