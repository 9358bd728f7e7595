"""XLM-RoBERTa (multilingual E5, BGE-M3's dense part): RoBERTa with a vocabulary of many languages.

Reference: transformers/models/xlm_roberta. Checkpoint names are BERT's; config.json says `xlm-roberta`.
"""

from __future__ import annotations

from weft.frozen import frozen
from weft.models import roberta
from weft.models.bert import classify, describe, hidden_states
from weft.models.roberta import GGUF, NAMES

__all__ = ["GGUF", "KIND", "NAMES", "Config", "classify", "describe", "hidden_states"]

KIND = "encoder"


@frozen
class Config(roberta.Config):
    pass
