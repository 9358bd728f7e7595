"""What runtimes for padded batches share: texts to ids, batches of like lengths, mean pooling, unit length.

Sorted by length, so little is padded: each of these peers is at its best so. Not a peer.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any


def tokenizer_of(model: str) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
    tokenizer.enable_truncation(512)
    tokenizer.no_padding()
    return tokenizer


def batches(tokenizer: Any, texts: list[str], size: int) -> Iterator[tuple[list[int], list[list[int]]]]:
    """(places, ids) of up to `size` texts each, longest first."""
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    for start in range(0, len(order), size):
        places = order[start : start + size]
        yield places, [ids[i] for i in places]


def padded(ids: list[list[int]]) -> tuple[Any, Any]:
    """Ids and mask, int64 [texts, longest]."""
    import numpy as np

    width = max(map(len, ids))
    tokens, mask = np.zeros((2, len(ids), width), np.int64)
    for i, row in enumerate(ids):
        tokens[i, : len(row)], mask[i, : len(row)] = row, 1
    return tokens, mask


def pooled(hidden: Any, mask: Any) -> Any:
    """Unit vectors, float32 [texts, dimension]: the mean over the tokens that are there."""
    import numpy as np

    weights = mask[:, :, None].astype(np.float32)
    vectors = (np.asarray(hidden, np.float32) * weights).sum(1) / weights.sum(1)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def embed(tokenizer: Any, texts: list[str], size: int, run: Callable[[list[list[int]]], Any]) -> Any:
    """Vectors of `texts` in their order; `run` maps a batch of ids to vectors."""
    import numpy as np

    vectors = None
    for places, ids in batches(tokenizer, texts, size):
        found = run(ids)
        if vectors is None:
            vectors = np.empty((len(texts), found.shape[1]), np.float32)
        vectors[places] = found
    return vectors
