"""Fixed texts whose vectors lie in an index: embedded again when it is opened, they say whether the embedder still is
the one that made it. A fingerprint says what was loaded; canaries say what comes out."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from weft import vectors
from weft.embed.fingerprint import SCHEME
from weft.errors import FingerprintError, FormatError, InputError

LEAST_COSINE = 0.999
SHORT = 80  # characters
MAX_FINGERPRINT = 1000  # characters
TEXTS = (
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "Le café est fermé le dimanche; revenez lundi à 9 h 30.",
    "東京は日本の首都です。",
    "def add(a: int, b: int) -> int:\n    return a + b",
    "3.14159, -40 °C, 1,000,000 and 0x7F are numbers 🙂",
    "query: how do I reset my password?",
    "word " * 100,
)


def fingerprint_of(embedder: Any) -> str:
    """What the embedder says it is; "" where it does not say."""
    return checked_fingerprint(str(embedder.info.get("fingerprint", "")))


def checked_fingerprint(given: Any) -> str:
    """A fingerprint that a folder can keep; None is an unknown one, ""."""
    if given is None:
        return ""
    if not isinstance(given, str):
        raise InputError(f"[index] fingerprint is {type(given).__name__}; a string is wanted")
    if len(given) > MAX_FINGERPRINT:
        raise InputError(f"[index] a fingerprint of {len(given)} characters; at most {MAX_FINGERPRINT} are kept")
    return given


def scheme_of(fingerprint: str) -> str:
    """How a fingerprint was made: what stands before its colon."""
    return fingerprint.partition(":")[0]


def check_fingerprint(given: str | None, own: str) -> None:
    """Vectors of `given` may lie beside those of `own`; either may be unknown."""
    if not given or not own or given == own:
        return
    if (scheme_of(given), scheme_of(own)) == (SCHEME, "weft1"):
        raise FingerprintError(
            f"[index] vectors of {given[:40]}; the index has those of {own[:40]}: an earlier weft, or RemoteEmbedder, "
            "made it, whose fingerprints are made otherwise; embed the documents again, or, where the model is still "
            "the one of then, Index.open(path, embedder=..., adopt=True).save(path)"
        )
    raise FingerprintError(
        f"[index] vectors of {given[:40]}; the index has those of {own[:40]}: "
        "embed the documents again, or use the model of then"
    )


def canary_texts(embedder: Any) -> list[str]:
    """The texts for this embedder: short ones where what is long may be refused."""
    return [text for text in TEXTS if getattr(embedder, "cuts", False) or len(text) < SHORT]


def canary_vectors(embedder: Any, texts: list[str]) -> np.ndarray:
    """What the embedder makes of the texts now: a cache would say what it made then."""
    if getattr(embedder, "cache", None) is not None:
        embedder = copy(embedder)
        embedder.cache = None
    how = {"truncate": "head"} if getattr(embedder, "cuts", False) else {}
    return np.asarray(embedder.encode_document(list(texts), **how), np.float32)


def check_canaries(embedder: Any, texts: list[str], expected: np.ndarray, of: str = "index") -> float:
    """The lowest cosine between the vectors of then and of now; below LEAST_COSINE it is a FingerprintError.

    `of` is what has them.
    """
    if len(texts) != len(expected):
        raise FormatError(f"[{of}] {len(texts)} canary texts and {len(expected)} vectors")
    if not len(texts):
        return 1.0
    now = canary_vectors(embedder, texts)
    if now.shape != expected.shape:
        raise FingerprintError(f"[{of}] the embedder gives {now.shape[1]} numbers, the {of} has {expected.shape[1]}")
    cosines = [vectors.cosine(old, new) for old, new in zip(expected, now)]
    worst = int(np.argmin(cosines))
    if cosines[worst] < LEAST_COSINE:
        raise FingerprintError(
            f"[{of}] the embedder is not the one that made the {of}'s vectors: a canary text has cosine "
            f"{cosines[worst]:.4f} to its vector of then ({texts[worst][:40]!r}); embed the documents again, or use "
            "the model of then"
        )
    return float(cosines[worst])
