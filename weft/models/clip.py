"""CLIP (ViT-B/32, L/14, clip-ViT-B-32): texts and pictures in one space; this is the text tower.

Reference: transformers/models/clip. Causal attention with learned positions; norms come before each part of a layer.
The vector of a text is the projection of its last token, the end of the text. Pictures: clip_vision_model.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft import nn
from weft.frozen import frozen
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

KIND = "encoder"
TEXT_TYPE = "clip"
VISION_TYPE = "clip_vision_model"
PROJECTION = ("text_projection", False)  # the layer after pooling, and whether it has a bias
LENGTH = None  # texts are as long as they are
NAMES = Names(part={"text_model.": "", "text_projection.": "text_projection.linear."})
GGUF = None
# transformers' name -> the catalogue's
ACTIVATIONS = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


@frozen
class Config:
    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_layers(self)

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return self.max_position_embeddings


def check_layers(cfg: Any) -> None:
    """Refuse activations that weft does not know, and heads that do not fill a layer."""
    nn.check_one_of(cfg, "hidden_act", ACTIVATIONS)
    if cfg.hidden_size % cfg.num_attention_heads:
        what = f"must be a multiple of num_attention_heads ({cfg.num_attention_heads})"
        raise nn.unsupported(cfg, "hidden_size", what, given=cfg.hidden_size)


def attention(x: Tensor, w: Scope, cfg: Any, step: Step, layer: int, *, causal: bool) -> Tensor:
    tokens, heads = x.shape[0], cfg.num_attention_heads
    q, k, v = (
        nn.linear(x, w / f"{name}_proj", cfg.hidden_size, bias=True).reshape(tokens, heads, cfg.hidden_size // heads)
        for name in "qkv"
    )
    out = nn.attend(q, k, v, step, layer, causal=causal).reshape(tokens, cfg.hidden_size)
    return nn.linear(out, w / "out_proj", cfg.hidden_size, bias=True)


def mlp(x: Tensor, w: Scope, cfg: Any) -> Tensor:
    x = nn.linear(x, w / "fc1", cfg.intermediate_size, bias=True)
    x = nn.activate(x, kind=ACTIVATIONS[cfg.hidden_act])
    return nn.linear(x, w / "fc2", cfg.hidden_size, bias=True)


def layers(x: Tensor, w: Scope, cfg: Any, step: Step, *, causal: bool) -> Tensor:
    """All layers of a tower, of texts or pictures."""
    for layer in range(cfg.num_hidden_layers):
        at = w / "encoder" / "layers" / layer
        x = x + attention(
            nn.layer_norm(x, at / "layer_norm1", cfg.layer_norm_eps), at / "self_attn", cfg, step, layer, causal=causal
        )
        x = x + mlp(nn.layer_norm(x, at / "layer_norm2", cfg.layer_norm_eps), at / "mlp", cfg)
    return x


def embeddings(w: Scope, cfg: Any, step: Step) -> Tensor:
    words = nn.embedding(step.ids, w / "token_embedding", cfg.vocab_size, cfg.hidden_size)
    return words + nn.embedding(step.positions, w / "position_embedding", cfg.max_position_embeddings, cfg.hidden_size)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    x = layers(embeddings(w / "embeddings", cfg, step), w, cfg, step, causal=True)
    return nn.layer_norm(x, w / "final_layer_norm", cfg.layer_norm_eps)
