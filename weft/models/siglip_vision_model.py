"""The picture tower of SigLIP: a vision transformer whose head attends to all patches with one learned query.

Reference: transformers/models/siglip. A token's input is the vector of its patch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft import nn
from weft.frozen import frozen
from weft.models.clip import check_layers, layers, mlp
from weft.models.clip_vision_model import check_patches
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

KIND = "encoder"
NAMES = Names(
    part={"vision_model.": ""},
    prefixes=("vision_model.",),
    endings={".in_proj_weight": ".in_proj.weight", ".in_proj_bias": ".in_proj.bias", ".probe": ".probe.weight"},
)
GGUF = None
CLASS_TOKENS = 0


@frozen
class Config:
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    vision_use_head: bool = True

    LIMITS = {"image_size": 4096, "patch_size": 4096}  # noqa: RUF012

    def __post_init__(self) -> None:
        check_layers(self)
        check_patches(self)
        if not self.vision_use_head:
            raise nn.unsupported(self, "vision_use_head", "must be true", given=False)

    @property
    def positions(self) -> int:
        """Tokens of a picture."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def inputs(self) -> int:
        """Numbers of a patch."""
        return self.num_channels * self.patch_size**2

    @property
    def outputs(self) -> int:
        """Numbers of a picture's vector."""
        return self.hidden_size


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    at = w / "embeddings"
    patches = nn.linear(step.vectors, at / "patch_embedding", cfg.hidden_size, bias=True)
    x = patches + nn.embedding(step.positions, at / "position_embedding", cfg.positions, cfg.hidden_size)
    return trunk(x, w, cfg, step)


def trunk(x: Tensor, w: Scope, cfg: Any, step: Step) -> Tensor:
    x = layers(x, w, cfg, step, causal=False)
    return nn.layer_norm(x, w / "post_layernorm", cfg.layer_norm_eps)


def features(x: Tensor, w: Scope, cfg: Any, step: Step) -> Tensor:
    """The vectors of pictures, from the hidden states of all tokens; step.rows are their first ones.  -> [B, hidden]

    Every token asks with the learned query, so that a picture's first one has the answer: `types` are zeros, the only
    row of the query's table. That is a small part of one layer's work.
    """
    w, size, heads = w / "head", cfg.hidden_size, cfg.num_attention_heads
    query = nn.embedding(step.types, w / "probe", 1, size)
    inner = w / "attention"
    q, k, v = (
        nn.linear(of, inner / "in_proj", size, bias=True, part=(i * size, 3 * size)).reshape(
            x.shape[0], heads, size // heads
        )
        for i, of in enumerate((query, x, x))
    )
    seen = nn.attend(q, k, v, step, cfg.num_hidden_layers, causal=False).reshape(x.shape[0], size)
    seen = nn.linear(nn.take_rows(seen, step.rows), inner / "out_proj", size, bias=True)
    return seen + mlp(nn.layer_norm(seen, w / "layernorm", cfg.layer_norm_eps), w / "mlp", cfg)
