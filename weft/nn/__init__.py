"""The vocabulary that models are written in."""

from weft.nn.attention import attend
from weft.nn.config import read_config
from weft.nn.layers import embedding, layer_norm, linear, rms_norm, tied_linear
from weft.nn.pooling import DenseLayer, Head, pooled
from weft.nn.rope import Rope, most_positions, rope, rotate, settled_positions
from weft.nn.scope import Scope
from weft.nn.step import Step

__all__ = [
    "DenseLayer",
    "Head",
    "Rope",
    "Scope",
    "Step",
    "attend",
    "embedding",
    "layer_norm",
    "linear",
    "most_positions",
    "pooled",
    "read_config",
    "rms_norm",
    "rope",
    "rotate",
    "settled_positions",
    "tied_linear",
]
