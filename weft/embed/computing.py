"""`compute="auto"`: the fastest arithmetic of activations whose vectors stay near those of f32, by measurement.

int8 has one scale for a token's activations, and room for one that is much larger than the others (decision 0011).
Models with gated feed-forward parts, such as nomic-embed-text, have several large ones in a row; the scale then leaves
few codes for the rest (decision 0034). Files do not say so, so it is measured when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.computes import AUTO, EMBEDDER_COMPUTES
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime import Encoder

FASTEST_FIRST = ("int8", "bf16", "f16")  # those of them that beat f32 on this machine are tried
LEAST_COSINE = 0.995  # to the vector of f32, for every text: MiniLM's int8 has 0.9964 on its worst of 223 texts


def chosen(make: Callable[..., Encoder], compute: str) -> tuple[Encoder, dict[str, float] | None]:
    """The encoder that `make(compute=…)` returns, for "auto" the fastest one within the limit.

    The second result is None, or for "auto" how far each one that was tried is from f32: 1 minus the lowest cosine.
    """
    if compute not in EMBEDDER_COMPUTES:
        what = f"must be one of {', '.join(EMBEDDER_COMPUTES)}"
        raise UnsupportedError("embed", what, field="compute", given=compute)
    if compute != AUTO:
        return make(compute=compute), None
    exact, errors = make(compute="f32"), dict[str, float]()
    names = [name for name in FASTEST_FIRST if name in exact.backend.fast]
    texts = _texts(exact) if names and exact.checkpoint.make_tokenizer is not None else []
    if not texts:
        return exact, errors
    wanted = exact.vectors(texts)
    for name in names:
        encoder = make(compute=name)
        cosine = _least_cosine(wanted, encoder.vectors(texts))
        errors[name] = 1.0 - cosine
        if cosine >= LEAST_COSINE:
            return encoder, errors
    return exact, errors


def _texts(encoder: Encoder) -> list[Any]:
    """The ids of the texts that are compared, those of the canaries; some tokenizers have ids that the model lacks."""
    from weft.embed.index.canaries import TEXTS

    cut = (ids[: encoder.max_tokens] for ids in encoder.tokenizer.encode_batch(TEXTS))
    return [ids for ids in cut if len(ids) and ids.max() < encoder.vocab_size]


def _least_cosine(a: np.ndarray, b: np.ndarray) -> float:
    import numpy as np

    wide = [one.astype(np.float64) for one in (a, b)]
    norms = np.linalg.norm(wide[0], axis=1) * np.linalg.norm(wide[1], axis=1)
    cosines = np.einsum("nd,nd->n", *wide) / np.maximum(norms, 1e-300)
    return float(np.nan_to_num(cosines, nan=-1.0).min())
