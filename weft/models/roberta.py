"""RoBERTa (DistilRoBERTa, SimCSE, all-roberta): BERT with positions that start after the padding token's row.

Reference: transformers/models/roberta. Checkpoint names are BERT's. Padding tokens inside a text have positions too.
"""

from __future__ import annotations

from dataclasses import replace

from weft import nn
from weft.frozen import frozen
from weft.models import bert
from weft.models.bert import classify, describe, hidden_states

__all__ = ["GGUF", "KIND", "NAMES", "Config", "classify", "describe", "hidden_states"]

KIND = "encoder"
NAMES = replace(bert.NAMES, prefixes=("roberta.", "model.roberta."))
PAD = 1  # where a file leaves it out
GGUF = replace(bert.GGUF, first_row=lambda config: config.get("pad_token_id", PAD) + 1)  # such files say `bert`


@frozen
class Config(bert.Config):
    pad_token_id: int = PAD

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.pad_token_id < self.max_position_embeddings - 1:
            what = f"must be 0 or more and leave some of {self.max_position_embeddings} positions"
            raise nn.unsupported(self, "pad_token_id", what, given=self.pad_token_id)

    @property
    def first_position(self) -> int:
        return self.pad_token_id + 1
