"""An embedder whose vectors are hashes: deterministic, quick, and different for every model and text."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def vector_of(model: str, text: str, dimension: int = 8) -> np.ndarray:
    """The vector of a text: float32 [dimension], all numbers in -1 to 1."""
    data = hashlib.shake_128(f"{model}\n{text}".encode()).digest(4 * dimension)
    return (np.frombuffer(data, "<i4").astype(np.float64) / 2**31).astype(np.float32)


class FakeEmbedder:
    """`log` gets a line for every text that is embedded; `before` is called with the texts of every call."""

    def __init__(
        self,
        model: str,
        dimension: int = 8,
        *,
        log: Path | None = None,
        before: Callable[[list[str]], None] = lambda texts: None,
        concurrent: bool = False,
    ) -> None:
        self.model, self.dimension, self.before, self.concurrent = model, dimension, before, concurrent
        self.info: dict[str, Any] = {"fingerprint": f"fake:{model}", "model": model}
        self.embedded: list[str] = []
        self._log = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @property
    def fingerprint(self) -> str:
        return f"fake:{self.model}"

    def encode_document(self, texts: list[str]) -> np.ndarray:
        self.before(texts)
        if self._log is not None:
            os.write(self._log, "".join(f"{text}\n" for text in texts).encode())
        self.embedded += texts
        return np.stack([vector_of(self.model, text, self.dimension) for text in texts])
