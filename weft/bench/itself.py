"""weft as one of those that are measured: the methods that every peer has, over the public interface."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "measured_peer":  # in a process of its own, started by path: the package is the one this file is in
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from weft.computes import ENCODER_COMPUTES

if TYPE_CHECKING:
    import numpy as np

NAME = "weft"
PACKAGES = {"weft": "weft-engine", "numpy": "numpy"}
# Every token is computed, one at a time: no turn profits from the one before it, and no draft is checked.
PLAIN = {"ignore_eos": True, "prefix_cache": False, "speculate": False}
SETTINGS = {"generate": ["default"], "embed": list(ENCODER_COMPUTES)}


class Peer:
    """`load` once; then every call is one repetition of something worth timing."""

    def load(
        self,
        task: str,
        model: str,
        threads: int,
        setting: str,
        context: int = 0,
        files: str = "",
        kv_dtype: str | None = None,
    ) -> dict[str, Any]:
        if task == "embed":
            return self._load_embedder(model, threads, setting)
        return self._load_model(model, threads, setting, kv_dtype)

    def _load_model(self, model: str, threads: int, setting: str, kv_dtype: str | None) -> dict[str, Any]:
        from weft.generate import load

        compute = None if setting == "default" else setting
        self.model = load(model, threads=threads, compute=compute, kv_dtype=kv_dtype)
        return self.model.info

    def _load_embedder(self, model: str, threads: int, setting: str) -> dict[str, Any]:
        from weft.embed import Embedder

        self.embedder = Embedder(model, threads=threads, compute=setting)
        # A folder may allow fewer tokens than the model has positions. Documents of 512 tokens are measured all the
        # same, as they are with the peers.
        self.embedder.max_tokens = self.embedder.positions
        return self.embedder.info

    def decode(self, prompt: list[int], tokens: int) -> list[int]:
        """Greedy tokens after a prompt, exactly `tokens` of them."""
        return list(self.model.generate(prompt, max_tokens=tokens, **PLAIN).tokens)

    def prefill(self, prompt: list[int]) -> list[int]:
        return self.decode(prompt, 1)

    def parallel(self, prompts: list[list[int]], tokens: int) -> list[int]:
        """All prompts together, `tokens` each; the tokens of the first."""
        return list(self.model.generate(prompts, max_tokens=tokens, **PLAIN)[0].tokens)

    def embed(self, texts: list[str]) -> "np.ndarray":
        """float32 [len(texts), dimension]; one text goes alone, as a query does."""
        return self.embedder.encode(texts)
