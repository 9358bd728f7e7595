"""The picture tower of Gemma 3: SigLIP without its head, then means of squares of patches as tokens of the text part.

Reference: transformers/models/gemma3. A token's input is the vector of its patch. Means are normed, with a weight
stored less one, and projected by a matrix that is stored with its inputs as rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft import nn
from weft.frozen import frozen
from weft.models.clip import check_layers
from weft.models.clip_vision_model import check_patches
from weft.models.siglip_vision_model import hidden_states
from weft.weights.names import Names, Projector

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["CLASS_TOKENS", "GGUF", "KIND", "MERGED", "NAMES", "PROJECTOR", "Config", "hidden_states", "projected"]

KIND = "encoder"
TOWERS = ("vision_tower.vision_model.", "vision_tower.", "multi_modal_projector.")  # transformers 5 leaves a level out
NAMES = Names(
    part={f"{outer}{name}": "" for outer in ("model.", "") for name in TOWERS},
    endings={"mm_input_projection_weight": "mm_input_projection.weight"},
)
GGUF = None
CLASS_TOKENS = 0
MERGED = "averaged"


@frozen
class Config:
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    num_channels: int = 3
    image_size: int = 896
    patch_size: int = 14
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    mm_tokens_per_image: int = 256
    text_hidden_size: int = 0  # of the text part

    LIMITS = {"image_size": 4096, "patch_size": 4096, "mm_tokens_per_image": 65_536}  # noqa: RUF012

    def __post_init__(self) -> None:
        check_layers(self)
        check_patches(self)
        side = math.isqrt(self.mm_tokens_per_image)
        if side**2 != self.mm_tokens_per_image or self.side % side:
            what = f"must be a square, of a side that divides the {self.side} patches of a side of a picture"
            raise nn.unsupported(self, "mm_tokens_per_image", what, given=self.mm_tokens_per_image)

    @property
    def side(self) -> int:
        """Patches of a side."""
        return self.image_size // self.patch_size

    @property
    def positions(self) -> int:
        """Patches of a picture."""
        return self.side**2

    @property
    def inputs(self) -> int:
        """Numbers of a patch."""
        return self.num_channels * self.patch_size**2

    @property
    def block(self) -> int:
        """Patches of a side of a block that becomes one token of the text."""
        return self.side // math.isqrt(self.mm_tokens_per_image)

    @property
    def outputs(self) -> int:
        """Numbers of a token of the text."""
        return self.text_hidden_size

    @property
    def merged(self) -> int:
        """Numbers of a block before it is projected."""
        return self.hidden_size


def projected(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Tokens of the text [T, outputs], of the blocks in step.vectors [T, merged]."""
    x = nn.rms_norm(step.vectors, w / "mm_soft_emb_norm", cfg.layer_norm_eps, plus_one=True)
    return nn.linear(x, w / "mm_input_projection", cfg.outputs, transposed=True)


_MERGE, _USUAL = "clip.vision.projector.scale_factor", 4  # patches of a side of a block; no key where it is this


def _read(meta: Any, vision: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    size, merge = vision["image_size"], meta.get_int(_MERGE, _USUAL, low=1, high=Config.LIMITS["patch_size"])
    outer = {"mm_tokens_per_image": max(1, size // vision["patch_size"] // merge) ** 2}
    side = {"height": size, "width": size}
    return outer, {"image_processor_type": "Gemma3ImageProcessor", "size": side, "resample": 2}


def _write(config: Mapping[str, Any], processor: Mapping[str, Any]) -> dict[str, Any]:
    vision, half = config["vision_config"], [0.5, 0.5, 0.5]
    side = vision.get("image_size", Config.image_size) // vision.get("patch_size", Config.patch_size)
    merge = side // math.isqrt(config.get("mm_tokens_per_image", Config.mm_tokens_per_image))
    colours = {f"clip.vision.{name}": processor.get(name) or half for name in ("image_mean", "image_std")}
    return {name: [float(value) for value in values] for name, values in colours.items()} | (
        {_MERGE: merge} if merge != _USUAL else {}
    )


PROJECTOR = Projector(
    kind="gemma3",
    model_type="gemma3",
    tokens={
        "image_token_index": "<image_soft_token>",
        "boi_token_index": "<start_of_image>",
        "eoi_token_index": "<end_of_image>",
    },
    tensors={"mm.input_projection": "mm_input_projection", "mm.soft_emb_norm": "mm_soft_emb_norm"},
    plus_one=("mm_soft_emb_norm",),
    read=_read,
    write=_write,
)
