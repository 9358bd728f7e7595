"""What a model says of every token of a text, kept in a file, and how far another model is from it."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from weft.runtime import Decoder, open_checkpoint

WINDOW = 512
AT_ONCE = 64  # rows of logits that are widened together


def log_chances(path: Path, ids: np.ndarray, compute: str | None, threads: int) -> Iterator[np.ndarray]:
    """Log-probabilities of each window by itself, float32 [tokens, vocabulary]."""
    kv_dtype = "f32" if compute == "f32" else None
    decoder = Decoder(open_checkpoint(path), context=WINDOW, compute=compute, kv_dtype=kv_dtype, threads=threads)
    for first in range(0, len(ids), WINDOW):
        made = decoder.logits(ids[first : first + WINDOW])
        for at in range(0, len(made), AT_ONCE):
            rows = made[at : at + AT_ONCE]
            rows -= rows.max(axis=1, keepdims=True)
            rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        yield made


class Reference:
    """The model that others are compared with, in f32, on a text.

    Its log-probabilities are kept as halves: each is off by 2^-12 of itself at most, in either direction, which changes
    the mean divergence by about 1e-6. First choices and the chances of the text itself are kept as they are.
    """

    def __init__(self, path: Path, ids: np.ndarray, threads: int, folder: Path) -> None:
        self.path, self.ids, self.threads = path, ids, threads
        self._facts, self._rows = folder / "reference.npz", folder / "reference.npy"
        wanted = hashlib.sha256(json.dumps([path.name, path.stat().st_size, ids.tolist()]).encode()).hexdigest()
        if not self._facts.exists() or str(np.load(self._facts)["digest"]) != wanted:
            self._make(wanted)
        facts = np.load(self._facts)
        self.best: np.ndarray = facts["best"]
        self.perplexity = float(np.exp(-facts["own"].mean()))

    def _make(self, wanted: str) -> None:
        kept: Any = None
        best, own = [], []
        for number, made in enumerate(log_chances(self.path, self.ids, "f32", self.threads)):
            if kept is None:
                shape = (len(self.ids), made.shape[1])
                kept = np.lib.format.open_memmap(self._rows, mode="w+", dtype=np.float16, shape=shape)
            first = number * WINDOW
            kept[first : first + len(made)] = made
            best.append(made.argmax(1))
            own.append(made[np.arange(len(made) - 1), self.ids[first + 1 : first + len(made)]])
        kept.flush()
        np.savez(self._facts, digest=wanted, best=np.concatenate(best), own=np.concatenate(own))

    def beside(self, path: Path, compute: str | None, threads: int) -> dict[str, float]:
        """Perplexity of another model, its mean divergence from this one, and the share of equal first choices."""
        kept = np.load(self._rows, mmap_mode="r")
        loss, divergence, same, count = 0.0, 0.0, 0, 0
        for number, made in enumerate(log_chances(path, self.ids, compute, threads)):
            first = number * WINDOW
            text = self.ids[first : first + len(made)]
            loss -= float(made[np.arange(len(made) - 1), text[1:]].astype(np.float64).sum())
            count += len(made) - 1
            same += int((made.argmax(1) == self.best[first : first + len(made)]).sum())
            divergence += sum(
                _divergence(kept[first + at : first + at + AT_ONCE], made[at : at + AT_ONCE])
                for at in range(0, len(made), AT_ONCE)
            )
        found = {"perplexity": np.exp(loss / count), "divergence": divergence / len(self.ids)}
        return {name: round(float(value), 5) for name, value in (*found.items(), ("same_first", same / len(self.ids)))}


def _divergence(kept: np.ndarray, made: np.ndarray) -> float:
    """The sum of KL divergences of rows, in the generalised form, since rounded chances do not quite sum to one."""
    true = kept.astype(np.float32)
    chances = np.exp(true)
    rows = (chances * (true - made)).sum(axis=1, dtype=np.float64) - chances.sum(axis=1, dtype=np.float64) + 1
    return float(rows.sum())
