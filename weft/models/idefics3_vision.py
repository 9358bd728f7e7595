"""The picture tower of Idefics3 and SmolVLM: SigLIP's layers, then blocks of patches as tokens of the text part.

Reference: transformers/models/idefics3. A token's input is the vector of its patch. The hidden states of a square of
patches, `scale_factor` a side, one after another, are projected to one token of the text. Learned positions are those
of the patches of a whole tile: upstream finds them by fractions, which differ for some sizes that no model has.
"""

from __future__ import annotations

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
NAMES = Names(part={"model.vision_model.": "", "model.connector.": "connector."})
GGUF = None
CLASS_TOKENS = 0
MERGED = "joined"


@frozen
class Config:
    hidden_size: int = 1152
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 16
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 32
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    scale_factor: int = 2
    text_hidden_size: int = 0  # of the text part

    LIMITS = {"image_size": 4096, "patch_size": 4096, "scale_factor": 64}  # noqa: RUF012

    def __post_init__(self) -> None:
        check_layers(self)
        check_patches(self)
        if self.side % self.scale_factor:
            what = f"must divide the {self.side} patches of a side of a picture"
            raise nn.unsupported(self, "scale_factor", what, given=self.scale_factor)

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
        return self.scale_factor

    @property
    def outputs(self) -> int:
        """Numbers of a token of the text."""
        return self.text_hidden_size

    @property
    def merged(self) -> int:
        """Numbers of a block before it is projected."""
        return self.hidden_size * self.scale_factor**2


def projected(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Tokens of the text [T, outputs], of the blocks in step.vectors [T, merged]."""
    return nn.linear(step.vectors, w / "connector" / "modality_projection" / "proj", cfg.outputs)


_SCALE, _LONGEST = "clip.vision.projector.scale_factor", "clip.vision.preproc_image_size"


def _read(meta: Any, vision: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    side = vision["image_size"]
    longest = meta.get_int(_LONGEST, 4 * side, low=1, high=Config.LIMITS["image_size"])
    processor = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": side}}
    outer = {"scale_factor": meta.get_int(_SCALE, 2, low=1, high=Config.LIMITS["scale_factor"])}
    return outer, {"image_processor_type": "Idefics3ImageProcessor", **processor}


def _write(config: Mapping[str, Any], processor: Mapping[str, Any]) -> dict[str, Any]:
    half = [0.5, 0.5, 0.5]
    longest = (processor.get("size") or {}).get("longest_edge", 4 * 364)
    return {
        _SCALE: int(config.get("scale_factor", 2)),
        _LONGEST: int(longest),
        "clip.vision.image_mean": [float(value) for value in processor.get("image_mean") or half],
        "clip.vision.image_std": [float(value) for value in processor.get("image_std") or half],
    }


PROJECTOR = Projector(
    kind="idefics3",
    model_type="idefics3",
    tokens={"image_token_id": "<image>"},
    tensors={"mm.model.fc": "connector.modality_projection.proj"},
    read=_read,
    write=_write,
)
