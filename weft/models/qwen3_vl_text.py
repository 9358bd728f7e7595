"""Qwen3-VL (text): Qwen3 whose tokens of pictures are turned by their rows and columns, and get more after some layers.

Reference: transformers/models/qwen3_vl. Pairs of channels turn with time, row and column in turns (interleaved M-RoPE).
What the tower had after some of its layers is added to tokens of pictures after the first layers here (deep stack).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama, qwen3
from weft.models.llama import token_logit
from weft.weights.names import Gguf, GgufKeys, Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
NAMES = Names(trunk="model.", part={"model.language_model.": "model.", "lm_head.": "lm_head."})  # inside qwen3_vl.py
SECTIONS = (24, 20, 20)  # pairs that turn with time, row and column, where a file says nothing


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    layers = keys.size("n_deepstack_layers", 0, high=Config.LIMITS["deepstack_layers"])
    return {"deepstack_layers": layers, **read_sections(keys, config)}


def read_sections(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    """rope_scaling with the pairs that turn with time, row and column, where the file says how many."""
    counts = keys.counts("rope.dimension_sections", 4)
    scaling = config["rope_scaling"] or {"rope_type": "default"}
    return {"rope_scaling": {**scaling, "mrope_section": counts[:3]}} if counts else {}


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    layers = config.get("deepstack_layers", Config.deepstack_layers)
    return {"n_deepstack_layers": layers, "rope.dimension_sections": sections(config, SECTIONS)}


def sections(config: Mapping[str, Any], usual: Sequence[int]) -> list[int]:
    """The pairs that turn with time, row and column as files hold them; the fourth number is none of weft's."""
    given = (config.get("rope_scaling") or {}).get("mrope_section")
    return [*(given or usual), 0]


GGUF = replace(
    qwen3.GGUF,
    architecture="qwen3vl",
    model_type="qwen3_vl_text",
    class_name="Qwen3VLForConditionalGeneration",
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(qwen3.Config):
    LIMITS: ClassVar[dict[str, int]] = {**getattr(qwen3.Config, "LIMITS", {}), "deepstack_layers": 64}
    vocab_size: int = 151_936
    hidden_size: int = 4096
    intermediate_size: int = 22_016
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    max_position_embeddings: int = 128_000
    rope_theta: float = 500_000.0
    deepstack_layers: int = 3  # as many as the tower's deepstack_visual_indexes

    def rotation(self, layer: int, context: int) -> Rope | None:
        return nn.turned_by_axes(super().rotation(layer, context), self.scaling, SECTIONS)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return with_deep(qwen3.block(x, w, cfg, step, layer), cfg, step, layer)


def with_deep(x: Tensor, cfg: Any, step: Step, layer: int) -> Tensor:
    """The output of a layer, with what is added to tokens of pictures."""
    deep = step.deep_of(layer) if layer < cfg.deepstack_layers else None
    return x if deep is None else x + deep


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)
