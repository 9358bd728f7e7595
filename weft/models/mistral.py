"""Mistral (7B, Nemo, Ministral 8B): Llama with an optional sliding attention window.

Reference: transformers/models/mistral. Checkpoint names are Llama's; GGUF files of it say `llama`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import NAMES, describe, forward, hidden_states, token_logit
from weft.weights.names import Gguf

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states", "token_logit"]

KIND = "decoder"


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    """No keys: readers of a llama file would apply no window."""
    window = config.get("sliding_window", 4096)
    if window is not None and window < config["max_position_embeddings"]:
        raise gguf.unwritable(f"a sliding_window of {window}")
    return {}


GGUF = replace(llama.GGUF, write=write_gguf)


@frozen
class Config(llama.Config):
    max_position_embeddings: int = 131_072
    sliding_window: int | None = 4096  # null: a token attends to all before it

    def window(self, layer: int) -> int:
        return self.sliding_window or 0
