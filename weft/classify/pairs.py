"""Pairs of texts for a contrastive step: equal labels belong together, different ones do not.

A few texts of each label make many pairs, which is why an encoder can learn from them (SetFit, arXiv:2209.11055). No
text is paired with itself, as SetFit's are: its cosine is 1 already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np

EVERY = ("oversampling", "undersampling", "unique")
MOST = 4_000_000  # pairs that are listed at once

Pair = tuple[int, int, float]  # the numbers of two texts, and the cosine that they should have


def few_pairs(labels: Sequence[int], each: int, seed: int) -> list[Pair]:
    """`each` pairs of every text with others of its label, and as many with texts of other labels.

    The partners of a text's own label come one after the other in an order that the seed decides, and again from the
    first one on; those of other labels are drawn.
    """
    import numpy as np

    y, bits = _checked(labels), np.random.PCG64(seed)
    order = np.argsort(bits.random_raw(len(y)), kind="stable")
    order = order[np.argsort(y[order], kind="stable")]  # by label, and mixed inside each
    starts = {label: int(np.searchsorted(y[order], label)) for label in np.unique(y).tolist()}
    sizes = {label: int((y == label).sum()) for label in starts}
    made: list[Pair] = []
    for turn in range(each):
        drawn = bits.random_raw(len(y))
        for place, text in enumerate(order.tolist()):
            first, size = starts[int(y[text])], sizes[int(y[text])]
            if size > 1:
                partner = first + (place - first + 1 + turn % (size - 1)) % size
                made.append((text, int(order[partner]), 1.0))
            other = int(drawn[place] % np.uint64(len(y) - size))
            made.append((text, int(order[other if other < first else other + size]), 0.0))
    return made


def every_pair(labels: Sequence[int], sampling: str, seed: int) -> list[Pair]:
    """All pairs: as they are (unique), or as many of both kinds: the rarer ones again and again (oversampling), or only
    as many of the others (undersampling)."""
    import numpy as np

    if sampling not in EVERY:
        raise InputError("classify", f"must be one of {', '.join(EVERY)}", field="sampling", given=sampling)
    y = _checked(labels)
    same = sum(int(size) * (int(size) - 1) // 2 for size in np.unique(y, return_counts=True)[1])
    total = len(y) * (len(y) - 1) // 2
    if max(total, 2 * (total - same)) > MOST:
        what = f"would make {total:,} pairs of {len(y):,} texts"
        raise InputError("classify", what, field="sampling", given=sampling, advice="give a number of pairs instead")
    left, right = np.triu_indices(len(y), 1)
    order = np.argsort(np.random.PCG64(seed).random_raw(total), kind="stable")
    alike = y[left[order]] == y[right[order]]
    kinds = [order[alike], order[~alike]]
    if sampling != "unique":
        count = (max if sampling == "oversampling" else min)(map(len, kinds))
        kinds = [np.resize(kind, count) for kind in kinds]
    return [(int(left[at]), int(right[at]), score) for kind, score in zip(kinds, (1.0, 0.0)) for at in kind.tolist()]


def _checked(labels: Sequence[int]) -> np.ndarray:
    import numpy as np

    y = np.asarray(labels, np.int64)
    counts = np.unique(y, return_counts=True)[1]
    if len(counts) < 2 or counts.max() < 2:
        what = f"must have two labels, and one with two texts: there are {len(y)} texts of {len(counts)} labels"
        raise InputError("classify", what, field="data", advice="give more texts of each label")
    return y


def pair_rows(texts: Sequence[str], pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Rows for the training of an embedder with the loss cosine."""
    return [{"sentence1": texts[one], "sentence2": texts[two], "score": score} for one, two, score in pairs]
