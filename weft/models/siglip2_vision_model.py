"""The picture tower of SigLIP 2 of flexible resolution: SigLIP's, for pictures of any proportions.

Reference: transformers/models/siglip2. A picture has as many patches as its proportions allow; its positions are the
learned square of them, resized to its rows and columns outside of the program (`step.added`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import nn
from weft.frozen import frozen
from weft.models.clip import check_layers
from weft.models.clip_vision_model import check_patches
from weft.models.siglip_vision_model import CLASS_TOKENS, GGUF, NAMES, features, trunk

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["CLASS_TOKENS", "GGUF", "KIND", "NAMES", "Config", "features", "hidden_states"]

KIND = "encoder"
RESIZED = "embeddings.position_embedding.weight"  # the table of positions that is resized for each picture


@frozen
class Config:
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    num_patches: int = 256
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    vision_use_head: bool = True

    LIMITS = {"num_patches": 1 << 20, "patch_size": 4096}  # noqa: RUF012

    def __post_init__(self) -> None:
        check_layers(self)
        check_patches(self)
        if not self.vision_use_head:
            raise nn.unsupported(self, "vision_use_head", "must be true", given=False)
        if round(self.num_patches**0.5) ** 2 != self.num_patches:
            raise nn.unsupported(self, "num_patches", "must be a square", given=self.num_patches)

    @property
    def positions(self) -> int:
        """Rows of the table of positions."""
        return self.num_patches

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
    patches = nn.linear(step.vectors, w / "embeddings" / "patch_embedding", cfg.hidden_size, bias=True)
    return trunk(patches + step.added, w, cfg, step)
