"""The vocabulary that models are written in."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.nn.attention import attend as attend
    from weft.nn.config import read_config as read_config
    from weft.nn.layers import embedding as embedding
    from weft.nn.layers import layer_norm as layer_norm
    from weft.nn.layers import linear as linear
    from weft.nn.layers import rms_norm as rms_norm
    from weft.nn.layers import tied_linear as tied_linear
    from weft.nn.pooling import DenseLayer as DenseLayer
    from weft.nn.pooling import Head as Head
    from weft.nn.pooling import pooled as pooled
    from weft.nn.pooling import vectors as vectors
    from weft.nn.rotary import Rope as Rope
    from weft.nn.rotary import most_positions as most_positions
    from weft.nn.rotary import rope as rope
    from weft.nn.rotary import rotate as rotate
    from weft.nn.rotary import settled_positions as settled_positions
    from weft.nn.scope import Scope as Scope
    from weft.nn.step import Step as Step

_HOMES = {
    "DenseLayer": "pooling",
    "Head": "pooling",
    "Rope": "rotary",
    "Scope": "scope",
    "Step": "step",
    "attend": "attention",
    "embedding": "layers",
    "layer_norm": "layers",
    "linear": "layers",
    "most_positions": "rotary",
    "pooled": "pooling",
    "read_config": "config",
    "rms_norm": "layers",
    "rope": "rotary",
    "rotate": "rotary",
    "settled_positions": "rotary",
    "tied_linear": "layers",
    "vectors": "pooling",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
