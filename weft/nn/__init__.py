"""The vocabulary that models are written in."""

from weft.nn.attention import attend
from weft.nn.config import read_config
from weft.nn.layers import embedding, layer_norm, linear, rms_norm, tied_linear
from weft.nn.pooling import DenseLayer, Head, pooled
from weft.nn.rope import inverse_frequencies, rotate
from weft.nn.scope import Scope
from weft.nn.step import Step

__all__ = [
    "DenseLayer",
    "Head",
    "Scope",
    "Step",
    "attend",
    "embedding",
    "inverse_frequencies",
    "layer_norm",
    "linear",
    "pooled",
    "read_config",
    "rms_norm",
    "rotate",
    "tied_linear",
]
