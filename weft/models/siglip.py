"""SigLIP, and SigLIP 2 of fixed resolution: texts and pictures in one space; this is the text tower.

Reference: transformers/models/siglip. Attention goes both ways, and every text is filled up to the model's length with
the padding token, which takes part: the model has learnt so. The vector of a text is the head's output for the last of
its tokens. Pictures: siglip_vision_model.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import nn
from weft.frozen import frozen
from weft.models.clip import check_layers, embeddings, layers
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

KIND = "encoder"
TEXT_TYPE = "siglip"
VISION_TYPE = "siglip_vision_model"
PROJECTION = ("head", True)
LENGTH = "max_position_embeddings"  # the field of Config that all texts are filled up to
NAMES = Names(part={"text_model.head.": "head.linear.", "text_model.": ""})
GGUF = None


@frozen
class Config:
    vocab_size: int = 32000
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    max_position_embeddings: int = 64
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_layers(self)

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return self.max_position_embeddings


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    x = layers(embeddings(w / "embeddings", cfg, step), w, cfg, step, causal=False)
    return nn.layer_norm(x, w / "final_layer_norm", cfg.layer_norm_eps)
