"""LoRA adapters in memory: what they may change of a model, and their versions, swapped while steps run."""

from weft.runtime.adapters.versions import INDICES, LIMIT, Adapter, Adapters

__all__ = ["INDICES", "LIMIT", "Adapter", "Adapters"]
