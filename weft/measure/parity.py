"""One model on a device and on the CPU: how far their numbers are apart, and whether a batch changes the device's."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.embed.recipe import embeds
from weft.embed.service import Embedder
from weft.frozen import frozen
from weft.runtime import Decoder, open_checkpoint
from weft.train.vectors.evaluation import spearman
from weft.weights.sources import locate

TEXTS = (
    *("A small engine repairs three broken clocks.", "rain", "Ça va? Très bien, merci 🙂", "今日は良い天気ですね。"),
    *("The committee never mentions the northern coast! " * 4, "x = [i ** 2 for i in range(10)]", "It is raining."),
)
LENGTHS = (96, 33, 1)  # tokens of the texts that a generator reads
CHUNK = 19
LEAST_AGREEMENT = 0.98  # of the likeliest tokens
LEAST_SPEARMAN = 0.9999
MOST_VECTOR_ERROR = 1e-3  # of vectors of length 1
MOST_LOGIT_ERROR = 1e-2  # over the largest logit: a cache of 16 bits is rounded differently where sums differ


@frozen
class Parity:
    """`largest` is the largest difference, of logits over the largest one; `agreement` the share of tokens that are the
    likeliest on both, None of an embedder; `same_bits`: alone, in a batch and in chunks."""

    model: str
    device: str
    kind: str  # "embedder" or "generator"
    largest: float
    spearman: float
    agreement: float | None
    same_bits: bool

    @property
    def passed(self) -> bool:
        most = MOST_VECTOR_ERROR if self.kind == "embedder" else MOST_LOGIT_ERROR
        close = self.largest <= most and self.spearman >= LEAST_SPEARMAN
        return close and self.same_bits and (self.agreement is None or self.agreement >= LEAST_AGREEMENT)


def parity(model: str, device: str, *, threads: int | None = None, offline: bool | None = None) -> Parity:
    """Compare the device with the CPU, both without rounding activations (compute f32)."""
    located = locate(model, offline=offline)
    checkpoint = open_checkpoint(located.path)
    if embeds(checkpoint, located.entry):
        return _of_vectors(model, device, threads, offline)
    options: dict[str, Any] = {"compute": "f32", "threads": threads, "context": 4 * max(LENGTHS)}
    decoders = [Decoder(checkpoint, backend=name, **options) for name in ("cpu", device)]
    name = str(decoders[1].info.get("device", decoders[1].info["backend"]))
    return _of_logits(model, name, decoders)


def _of_vectors(model: str, device: str, threads: int | None, offline: bool | None) -> Parity:
    given: dict[str, Any] = {"threads": threads, "offline": offline}
    first, second = (Embedder(model, device=name, **given) for name in ("cpu", device))
    a, b = (np.asarray(one.encode(list(TEXTS))) for one in (first, second))
    alone = np.stack([np.asarray(second.encode([text])).reshape(-1) for text in TEXTS])
    pairs = np.triu_indices(len(TEXTS), 1)
    ranked = spearman((a @ a.T)[pairs], (b @ b.T)[pairs])
    name = str(second.info.get("device", second.info["backend"]))
    largest = float(np.abs(a - b).max() / max(np.linalg.norm(a, axis=1).max(), 1e-30))
    return Parity(model, name, "embedder", largest, ranked, None, bool(np.array_equal(alone, b)))


def _of_logits(model: str, name: str, decoders: list[Decoder]) -> Parity:
    rng = np.random.default_rng(7)
    texts = [rng.integers(0, decoders[0].vocab_size, length) for length in LENGTHS]
    largest, ranked, agreed, same = 0.0, [], [], True
    for text in texts:
        on_cpu, here = (decoder.logits(text) for decoder in decoders)
        largest = max(largest, float(np.abs(here - on_cpu).max() / np.abs(on_cpu).max()))
        ranked.append(spearman(on_cpu[-1], here[-1]))
        agreed.append(on_cpu.argmax(-1) == here.argmax(-1))
        same &= bool(np.array_equal(here, decoders[1].logits(text, chunk=CHUNK)))
    return Parity(model, name, "generator", largest, min(ranked), float(np.concatenate(agreed).mean()), same)
