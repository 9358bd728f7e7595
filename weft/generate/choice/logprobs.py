"""Log probabilities of tokens, in float64 from one row of logits alone: the rest of the batch changes no bit."""

import math
from collections.abc import Sequence

import numpy as np

from weft.generate.result import TokenLogprob


def token_logprob(logits: np.ndarray, token: int, count: int) -> TokenLogprob:
    """The log probability of `token` under logits [vocab], and those of the `count` most probable tokens."""
    largest = float(logits.max())
    total = math.log(float(np.exp(logits.astype(np.float64) - largest).sum())) + largest
    ids: Sequence[int] = ()
    if count:
        some = np.argpartition(logits, len(logits) - count)[len(logits) - count :] if count < len(logits) else None
        least = float(logits[some].min()) if some is not None else -math.inf
        found = np.flatnonzero(logits >= least)  # including ties with the last one
        ids = found[np.argsort(-logits[found], kind="stable")][:count].tolist()
    return TokenLogprob(token, float(logits[token]) - total, tuple((i, float(logits[i]) - total) for i in ids))
