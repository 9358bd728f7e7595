"""RoBERTa (DistilRoBERTa, SimCSE, all-roberta): BERT whose positions are counted from the row after the padding's.

Reference: transformers/models/roberta. Checkpoint names are BERT's. Padding inside a text is counted like any token.
"""

from __future__ import annotations

from weft.frozen import frozen
from weft.models import bert
from weft.models.bert import classify, hidden_states

__all__ = ["KIND", "Config", "classify", "hidden_states"]

KIND = "encoder"


@frozen
class Config(bert.Config):
    pad_token_id: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.pad_token_id < self.max_position_embeddings - 1:
            raise self.unsupported(
                f"pad_token_id {self.pad_token_id}; it must leave some of {self.max_position_embeddings} positions"
            )

    @property
    def first_position(self) -> int:
        return self.pad_token_id + 1
