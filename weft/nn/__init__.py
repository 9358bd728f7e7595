"""The vocabulary that models are written in."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.nn.attention import attend as attend
    from weft.nn.attention import relative_buckets as relative_buckets
    from weft.nn.config import MAX_EXPERTS as MAX_EXPERTS
    from weft.nn.config import Mamba2 as Mamba2
    from weft.nn.config import check_layer_types as check_layer_types
    from weft.nn.config import check_one_of as check_one_of
    from weft.nn.config import check_part_rotates as check_part_rotates
    from weft.nn.config import read_config as read_config
    from weft.nn.config import unsupported as unsupported
    from weft.nn.experts import mixture as mixture
    from weft.nn.layers import activate as activate
    from weft.nn.layers import causal_conv as causal_conv
    from weft.nn.layers import delta_rule as delta_rule
    from weft.nn.layers import embedding as embedding
    from weft.nn.layers import gated as gated
    from weft.nn.layers import gated_clamped as gated_clamped
    from weft.nn.layers import layer_norm as layer_norm
    from weft.nn.layers import linear as linear
    from weft.nn.layers import rms_norm as rms_norm
    from weft.nn.layers import scale as scale
    from weft.nn.layers import sinusoids as sinusoids
    from weft.nn.layers import softcap as softcap
    from weft.nn.layers import take_rows as take_rows
    from weft.nn.layers import tied_linear as tied_linear
    from weft.nn.layers import token_inputs as token_inputs
    from weft.nn.layers import unit_norm as unit_norm
    from weft.nn.learning import dropout as dropout
    from weft.nn.pooling import DenseLayer as DenseLayer
    from weft.nn.pooling import Head as Head
    from weft.nn.pooling import pooled as pooled
    from weft.nn.pooling import vectors as vectors
    from weft.nn.rotary import Rope as Rope
    from weft.nn.rotary import grid_rope as grid_rope
    from weft.nn.rotary import most_positions as most_positions
    from weft.nn.rotary import rope as rope
    from weft.nn.rotary import rotate as rotate
    from weft.nn.rotary import settled_positions as settled_positions
    from weft.nn.rotary import turned_by_axes as turned_by_axes
    from weft.nn.scope import Scope as Scope
    from weft.nn.state_space import mamba2 as mamba2
    from weft.nn.step import Step as Step

_HOMES = {
    "DenseLayer": "pooling",
    "Head": "pooling",
    "MAX_EXPERTS": "config",
    "Mamba2": "config",
    "Rope": "rotary",
    "Scope": "scope",
    "Step": "step",
    "activate": "layers",
    "attend": "attention",
    "causal_conv": "layers",
    "check_layer_types": "config",
    "check_one_of": "config",
    "check_part_rotates": "config",
    "delta_rule": "layers",
    "dropout": "learning",
    "embedding": "layers",
    "gated": "layers",
    "gated_clamped": "layers",
    "grid_rope": "rotary",
    "layer_norm": "layers",
    "linear": "layers",
    "mamba2": "state_space",
    "mixture": "experts",
    "most_positions": "rotary",
    "pooled": "pooling",
    "read_config": "config",
    "relative_buckets": "attention",
    "rms_norm": "layers",
    "rope": "rotary",
    "rotate": "rotary",
    "scale": "layers",
    "settled_positions": "rotary",
    "sinusoids": "layers",
    "softcap": "layers",
    "take_rows": "layers",
    "tied_linear": "layers",
    "token_inputs": "layers",
    "turned_by_axes": "rotary",
    "unit_norm": "layers",
    "unsupported": "config",
    "vectors": "pooling",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
