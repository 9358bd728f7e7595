"""Mistral (7B, Nemo, Ministral 8B): Llama in which a token may see a window of the tokens before it only.

Reference: transformers/models/mistral. Checkpoint names are Llama's; GGUF files of it say `llama`.
"""

from __future__ import annotations

from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import forward, hidden_states, token_logit

__all__ = ["KIND", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"


@frozen
class Config(llama.Config):
    max_position_embeddings: int = 131_072
    sliding_window: int | None = 4096  # null: every token sees all before it

    def window(self, layer: int) -> int:
        return self.sliding_window or 0
