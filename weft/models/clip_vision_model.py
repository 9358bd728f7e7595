"""The picture tower of CLIP: a vision transformer with a class token, whose projection is the picture's vector.

Reference: transformers/models/clip. A token's input is the vector of its patch; that of the class token, the first of a
picture, is zeros. `places` are the learned positions, and the class token's own vector in the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft import nn
from weft.frozen import frozen
from weft.models.clip import check_layers, layers
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

KIND = "encoder"
NAMES = Names(part={"vision_model.": "", "visual_projection.": "visual_projection."}, prefixes=("vision_model.",))
GGUF = None
CLASS_TOKENS = 1


@frozen
class Config:
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 32
    projection_dim: int = 512
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5

    LIMITS = {"image_size": 4096, "patch_size": 4096, "projection_dim": 65_536}  # noqa: RUF012

    def __post_init__(self) -> None:
        check_layers(self)
        check_patches(self)

    @property
    def positions(self) -> int:
        """Tokens of a picture."""
        return (self.image_size // self.patch_size) ** 2 + CLASS_TOKENS

    @property
    def inputs(self) -> int:
        """Numbers of a patch."""
        return self.num_channels * self.patch_size**2

    @property
    def outputs(self) -> int:
        """Numbers of a picture's vector."""
        return self.projection_dim


def check_patches(cfg: Any) -> None:
    """Refuse pictures that are not of three colours, or smaller than a patch."""
    if cfg.num_channels != 3:
        raise nn.unsupported(cfg, "num_channels", "must be 3", given=cfg.num_channels)
    if cfg.patch_size < 1 or getattr(cfg, "image_size", cfg.patch_size) < cfg.patch_size:
        raise nn.unsupported(cfg, "patch_size", "must be 1 to image_size", given=cfg.patch_size)


def derived(stored: Callable[[str], Any]) -> dict[str, Any]:
    """Weights that are made of stored ones when the tower is opened, as float32 arrays."""
    places = stored("embeddings.position_embedding.weight").copy()
    places[0] += stored("embeddings.class_embedding")
    return {"embeddings.places.weight": places}


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    at = w / "embeddings"
    patches = nn.linear(step.vectors, at / "patch_embedding", cfg.hidden_size)
    x = patches + nn.embedding(step.positions, at / "places", cfg.positions, cfg.hidden_size)
    return layers(nn.layer_norm(x, w / "pre_layrnorm", cfg.layer_norm_eps), w, cfg, step, causal=False)


def features(x: Tensor, w: Scope, cfg: Config, step: Step) -> Tensor:
    """The vectors of pictures [B, outputs], from hidden states of all tokens; step.rows are their first ones."""
    x = nn.layer_norm(nn.take_rows(x, step.rows), w / "post_layernorm", cfg.layer_norm_eps)
    return nn.linear(x, w / "visual_projection", cfg.projection_dim)
