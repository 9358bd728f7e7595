"""Fingerprints compared, and canaries: fixed texts whose vectors are kept in an index and embedded again when it is
opened. A fingerprint says which files and settings were loaded; canaries say whether the vectors are still the same."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from weft import vectors
from weft.embed.fingerprint import SCHEME, brief
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
    """The embedder's fingerprint, "" where it has none."""
    return checked_fingerprint(str(embedder.info.get("fingerprint", "")))


def checked_fingerprint(given: Any) -> str:
    """A fingerprint that a folder can keep; "", for an unknown one, where None is given."""
    if given is None:
        return ""
    if not isinstance(given, str):
        raise InputError("index", "must be a string", given=given, field="fingerprint")
    if len(given) > MAX_FINGERPRINT:
        what = f"must have at most {MAX_FINGERPRINT} characters, not {len(given)}"
        raise InputError("index", what, given=given, field="fingerprint")
    return given


def scheme_of(fingerprint: str) -> str:
    """The scheme of a fingerprint, the part before its colon: "weft2"."""
    return fingerprint.partition(":")[0]


def check_fingerprint(given: str | None, own: str, model: str | None = None) -> None:
    """Refuse vectors of fingerprint `given` beside those of `own`; either may be unknown. `model` is its name."""
    if not given or not own or given == own:
        return
    if (scheme_of(given), scheme_of(own)) == (SCHEME, "weft1"):
        raise FingerprintError(
            "index",
            f"an earlier weft, or a RemoteEmbedder, built the index: its fingerprint {brief(own)} cannot be compared "
            f"with {brief(given)}",
            advice="build the index again; or, if the model has not changed, keep it with "
            "Index.open(path, embedder=..., adopt=True).save(path)",
        )
    name = "these vectors are from another model" if model is None else f"{model} is another model"
    raise FingerprintError(
        "index",
        f"{name} than the one that built the index, or the model's files or settings have changed since: fingerprint "
        f"{brief(given)}, the index has {brief(own)}",
        advice="build the index again, or load the model as it was",
    )


def adopted_fingerprint(own: str, now: str, has_canaries: bool) -> str:
    """The fingerprint of an index that an embedder with fingerprint `now` adopts: only another scheme's is replaced."""
    if not own or scheme_of(now) == scheme_of(own):
        return own
    if not has_canaries:
        raise FingerprintError(
            "index", "no canary texts are kept in it, so it cannot be adopted", advice="build the index again"
        )
    return now


def canary_texts(embedder: Any) -> list[str]:
    """The texts for this embedder: only short ones where it might refuse long ones."""
    return [text for text in TEXTS if getattr(embedder, "cuts", False) or len(text) < SHORT]


def canary_vectors(embedder: Any, texts: list[str]) -> np.ndarray:
    """The embedder's vectors of the texts, computed now: its cache, which may hold old ones, is not used."""
    if getattr(embedder, "cache", None) is not None:
        embedder = copy(embedder)
        embedder.cache = None
    how = {"truncate": "head"} if getattr(embedder, "cuts", False) else {}
    return np.asarray(embedder.encode_document(list(texts), **how), np.float32)


def check_canaries(embedder: Any, texts: list[str], expected: np.ndarray, of: str = "index") -> float:
    """The lowest cosine between the kept vectors and new ones; FingerprintError below LEAST_COSINE.

    `of` is what keeps them: "index" or "store".
    """
    if len(texts) != len(expected):
        raise FormatError(of, f"it has {len(texts)} canary texts and {len(expected)} vectors of them")
    if not len(texts):
        return 1.0
    now = canary_vectors(embedder, texts)
    if now.shape != expected.shape:
        raise FingerprintError(
            of, f"the embedder's vectors have {now.shape[1]} numbers, the {of}'s {expected.shape[1]}"
        )
    cosines = [vectors.cosine(old, new) for old, new in zip(expected, now)]
    worst = int(np.argmin(cosines))
    if cosines[worst] < LEAST_COSINE:
        raise FingerprintError(
            of,
            f"canary text {worst} ({texts[worst][:40]!r}) changed: cosine {cosines[worst]:.4f} to the vector in the "
            f"{of} (expected: {LEAST_COSINE} or more); the model or its settings differ from those that built the {of}",
            advice="load the model as it was, or embed the documents again",
        )
    return float(cosines[worst])
