"""Classification for a call: the scores of a model's labels for texts, within the limits, with metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.errors import TooLongError
from weft.frozen import frozen
from weft.serve.work.embedding import check_count, check_tokens, too_long
from weft.serve.work.generating import lease_classifier, offer
from weft.serve.work.scoring import REMEDY, counted

if TYPE_CHECKING:
    import numpy as np

    from weft.rerank.text_classifier import Text
    from weft.serve.http.routes import Context
    from weft.serve.models.classifier import ClassifyRunner
    from weft.serve.models.reranker import RerankRunner


@frozen
class Labelled:
    """The scores of each text, [texts][labels] in the order of `labels`; `dropped` tokens were cut off. A text whose
    best score is below `threshold` has no label."""

    labels: list[str]
    scores: list[list[float]]
    tokens: int
    dropped: int
    threshold: float = 0.0


async def classify(
    context: Context, model: str, texts: Sequence[Text], param: str, *, truncate: str | None, raw: bool
) -> Labelled:
    """The scores of texts and pairs: logits if `raw`, else through the model's activation."""
    from weft.rerank.text_classifier import activated

    check_count(context, len(texts), param)
    runner = await lease_classifier(context, model)
    try:
        tokens = await runner.token_texts(texts, truncate)
    except TooLongError as error:
        if truncate is not None:
            raise
        raise too_long(error, f"{param}: text", param, REMEDY) from None
    count = sum(map(len, tokens.tokens))
    check_tokens(context, count, param)
    logits = await counted(context, count, runner.logits(tokens))
    scores = activated(logits, "identity" if raw else runner.activation).tolist()

    async def compute(other: ClassifyRunner | RerankRunner) -> tuple[np.ndarray, np.ndarray]:
        again, _ = await other.logits(await other.token_texts(texts, truncate))
        return again.argmax(axis=1), activated(again, other.activation)

    offer(context, model, compute)
    return Labelled(
        runner.labels or [],
        scores,
        count,
        sum(tokens.dropped),
        threshold=0.0 if raw else getattr(runner, "threshold", 0.0),
    )
