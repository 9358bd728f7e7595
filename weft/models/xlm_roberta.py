"""XLM-RoBERTa (multilingual E5, BGE-M3's dense part): RoBERTa with many languages' tokens.

Reference: transformers/models/xlm_roberta. Checkpoint names are BERT's; config.json says `xlm-roberta`.
"""

from __future__ import annotations

from weft.frozen import frozen
from weft.models import roberta
from weft.models.bert import classify, hidden_states

__all__ = ["KIND", "Config", "classify", "hidden_states"]

KIND = "encoder"


@frozen
class Config(roberta.Config):
    pass
