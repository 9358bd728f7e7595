"""The step: one ragged batch of tokens from any number of sequences. Nothing is padded."""

from dataclasses import fields
from typing import Any

from weft.frozen import frozen


@frozen
class Step:
    """What a model is told about the tokens of one step; while tracing the fields are symbolic, when running arrays.

    Nobody changes a step. T tokens, B sequences, L rows that are asked for.
    """

    ids: Any  # [T] token ids, all sequences one after another
    positions: Any  # [T] position of each token in its sequence
    segments: Any  # [B+1] where each sequence starts in the flat list
    rows: Any  # [L] which tokens need logits or hidden states
    types: Any = None  # [T] which of a pair's texts a token belongs to (BERT); None for models without
    pages: Any = None  # [B, max_pages] page table into the pooled key/value state; None for models without one
    slots: Any = None  # [B, 2] the slot of each recurrent state, -1 for none yet, and the one to write it to; or None
    spans: Any = None  # [B+1] where the rows of each sequence start in `rows`; None where they are not pooled
    adapters: Any = None  # [B] index of each sequence's adapter, 0 is none; None where no sequence has one

    context: int = 0  # positions that a sequence may reach, 0 for as many as the model has; only while tracing
    kv: Any = None  # kv(layer, heads, dim) declares a layer's paged keys and values; only while tracing

    def arrays(self) -> dict[str, Any]:
        """The fields that are there, by name: the inputs of a program."""
        return {name: value for name in _INPUTS if (value := getattr(self, name)) is not None}


_INPUTS = tuple(field.name for field in fields(Step) if field.name not in ("context", "kv"))
