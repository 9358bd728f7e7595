"""`weft verify`: checks that an embedding model gives correct vectors on this machine.

It compares with vectors of another implementation, if the catalogue has some; texts alone and in a batch; many lengths;
different numbers of threads; different orders. A model that fails a check gives vectors that are silently wrong.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from weft import vectors
from weft.embed.service import Embedder
from weft.errors import InputError
from weft.frozen import frozen

# The least cosine to golden vectors, by compute; these were computed in float32 and are stored in float16.
LEAST_COSINE = {"f32": 0.99999, "bf16x3": 0.99999, "f16": 0.9998, "bf16": 0.9995, "int8": 0.995}
TEXTS = (
    "A small engine repairs three broken clocks.",
    "rain",
    "今日は良い天気ですね。散歩に行きましょう。",
    "The committee never mentions the northern coast! " * 4,
    "x = [i ** 2 for i in range(10)]",
    "Ça va? Très bien, merci 🙂",
)
MOST_TOKENS = 2048  # in the check of lengths: more would take minutes for large models
UNIT_TOLERANCE = 1e-3


@frozen
class Check:
    """One check; `passed` is None if there was nothing to compare with."""

    name: str
    passed: bool | None
    detail: str


@frozen
class Verification:
    """All checks of a model."""

    model: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)


def verify(
    model: str,
    *,
    compute: str = "f32",
    threads: int | None = None,
    golden: str | None = None,
    offline: bool | None = None,
    say: Callable[[str], None] = lambda name: None,
) -> Verification:
    """Check the embedding model `model`. `golden` is the catalogue model whose vectors a folder should give; a
    catalogue name has its own. `say` is called with the name of each check before it runs."""
    loading: dict[str, Any] = {"compute": compute, "offline": offline}
    embedder = Embedder(model, threads=threads, **loading)
    other = Embedder(model, threads=1 if _threads(embedder) > 1 else 2, **loading)
    known = goldens()
    if golden is not None and golden not in known:
        what = f"must be a model with golden vectors ({', '.join(known)})"
        raise InputError("verify", what, given=golden, field="golden")
    entry = embedder._located.entry
    name = golden or (entry.name if entry else "")
    checks: list[Check] = []
    for what, check in _plan(embedder, other, known.get(name), compute):
        say(what)
        checks.append(Check(what, *check()))
    return Verification(model, tuple(checks))


def _plan(
    embedder: Embedder, other: Embedder, golden: dict[str, Any] | None, compute: str
) -> Iterator[tuple[str, Callable[[], tuple[bool | None, str]]]]:
    yield "golden vectors", lambda: _golden(embedder, golden, compute)
    yield "alone and together", lambda: _alone(embedder)
    yield "any order", lambda: _order(embedder)
    yield "every length", lambda: _lengths(embedder)
    yield "any number of threads", lambda: _teams(embedder, other)


def goldens() -> dict[str, dict[str, Any]]:
    """Golden vectors by the catalogue's names."""
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("goldens.json").read_text(encoding="utf-8"))
    return found


def _golden(embedder: Embedder, golden: dict[str, Any] | None, compute: str) -> tuple[bool | None, str]:
    if golden is None:
        return None, "none are stored for this model"
    raw = np.frombuffer(base64.b64decode(golden["float16"]), "<f2").astype(np.float32)
    expected = raw.reshape(-1, golden["dimension"])
    made = embedder.encode(golden["texts"], truncate="head")
    if made.shape != expected.shape:
        return False, f"vectors have {made.shape[1]} numbers instead of {expected.shape[1]}"
    cosines = [vectors.cosine(a, b) for a, b in zip(made, expected)]
    least = LEAST_COSINE[compute]
    detail = f"{len(cosines)} texts, lowest cosine {min(cosines):.6f} (at least {least} required; {golden['from']})"
    return min(cosines) >= least, detail


def _alone(embedder: Embedder) -> tuple[bool, str]:
    together = embedder.encode(list(TEXTS), truncate="head")
    alone = np.stack([embedder.encode(text, truncate="head") for text in TEXTS])
    return _same(together, alone, f"{len(TEXTS)} texts")


def _order(embedder: Embedder) -> tuple[bool, str]:
    texts = list(TEXTS)
    turned = embedder.encode(texts[::-1], truncate="head")[::-1]
    return _same(embedder.encode(texts, truncate="head"), turned, "the list and its reverse")


def _lengths(embedder: Embedder) -> tuple[bool, str]:
    """Sequences of many lengths give finite vectors, normalised if the model's are, the same alone as in a batch."""
    ids = embedder.token_ids(["the committee looks for its own shadow " * 2000], truncate="head").ids[0]
    limit = min(len(ids), embedder.max_tokens, MOST_TOKENS)
    sizes = sorted({size for power in range(12) for size in (2**power - 1, 2**power, 2**power + 1)} | {limit})
    sweep = [ids[:size] for size in sizes if 1 <= size <= limit]
    made = embedder.encode_ids(sweep)
    detail = f"{len(sweep)} lengths, 1 to {limit} tokens"
    if not np.isfinite(made).all():
        return False, f"{detail}: {len(sweep[int(np.argmin(np.isfinite(made).all(1)))])} tokens give NaN or infinity"
    if embedder.info["normalise"] and not vectors.is_unit(made, tolerance=UNIT_TOLERANCE):
        return False, f"{detail}: vectors are not of unit length"
    alone = np.concatenate([embedder.encode_ids([row]) for row in sweep])
    return _same(made, alone, detail)


def _teams(embedder: Embedder, other: Embedder) -> tuple[bool, str]:
    texts = list(TEXTS)
    detail = f"{_threads(embedder)} and {_threads(other)} threads"
    return _same(embedder.encode(texts, truncate="head"), other.encode(texts, truncate="head"), detail)


def _threads(embedder: Embedder) -> int:
    return int(embedder._encoder.thread_plan.count)


def _same(a: np.ndarray, b: np.ndarray, detail: str) -> tuple[bool, str]:
    differing = np.flatnonzero((a != b).any(1))
    if not len(differing):
        return True, f"{detail}: the same bits"
    apart = float(np.abs(a - b).max())
    return False, f"{detail}: {len(differing)} of {len(a)} vectors differ, by up to {apart:.2g}"
