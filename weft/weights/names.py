"""What GGUF calls things: tensor names to and from Hugging Face's, and the order of rows, by architecture."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError, WeightError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np


@frozen
class NameMap:
    """GGUF stem to Hugging Face stem, outside and inside layers; a stem is a name without its `.weight` or `.bias`.

    `absent` are the stems of either side that the other has no tensor for: what they hold is elsewhere or unused.
    """

    root: Mapping[str, str]
    layer: Mapping[str, str]
    layer_prefix: str
    absent: frozenset[str]

    @property
    def root_back(self) -> dict[str, str]:
        return {hf: gguf for gguf, hf in self.root.items()}

    @property
    def layer_back(self) -> dict[str, str]:
        return {hf: gguf for gguf, hf in self.layer.items()}


LLAMA = NameMap(
    root={"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"},
    layer={
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
    layer_prefix="model.layers",
    absent=frozenset({"rope_freqs"}),  # the llama3 factors: in the config (gguf_config)
)

BERT = NameMap(
    root={
        "token_embd": "embeddings.word_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
        "cls": "classifier.dense",
        "cls.output": "classifier.out_proj",
    },
    layer={
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
    layer_prefix="encoder.layer",
    absent=frozenset({"pooler.dense", "embeddings.position_ids"}),  # not used for embeddings, so not in GGUF
)

NOMIC_BERT = NameMap(
    root={
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "emb_ln",
    },
    layer={
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "attn_output_norm": "norm1",
        "ffn_up": "mlp.fc11",
        "ffn_gate": "mlp.fc12",
        "ffn_down": "mlp.fc2",
        "layer_output_norm": "norm2",
    },
    layer_prefix="encoder.layers",
    absent=frozenset(),
)

QWEN2 = replace(LLAMA, absent=frozenset())
QWEN3 = replace(QWEN2, layer={**LLAMA.layer, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"})
PHI3 = replace(
    LLAMA,
    layer={
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    absent=frozenset({"rope_factors_short", "rope_factors_long"}),  # longrope's: in the config
)

GEMMA2 = replace(
    LLAMA,
    root={"token_embd": "model.embed_tokens", "output_norm": "model.norm"},  # the head is always the embedding
    layer={
        **LLAMA.layer,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    absent=frozenset(),
)
GEMMA3 = replace(
    GEMMA2,
    root=LLAMA.root,
    layer={**GEMMA2.layer, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
)

MAPS = {
    "llama": LLAMA,
    "bert": BERT,
    "nomic-bert": NOMIC_BERT,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "phi3": PHI3,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
}
# model_type of config.json -> the architecture GGUF calls it, where that is another word
ARCHITECTURES = {
    "mistral": "llama",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "nomic_bert": "nomic-bert",
    "gemma3_text": "gemma3",
}
_GGUF_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.(.+)")


def name_map(arch: str) -> NameMap:
    if arch not in MAPS:
        raise UnsupportedError(f"[gguf] the architecture {arch[:40]!r} is not one of {', '.join(MAPS)}")
    return MAPS[arch]


def gguf_arch(model_type: str) -> str:
    """The architecture of GGUF that a model of this type is written as."""
    arch = ARCHITECTURES.get(model_type, model_type)
    name_map(arch)
    return arch


def holds_plus_one(arch: str, name: str) -> bool:
    """Whether a GGUF file holds the tensor `name` of Hugging Face with one added to it: Gemma's norms."""
    return arch in ("gemma2", "gemma3") and name.endswith("norm.weight")


def hf_name(arch: str, name: str) -> str | None:
    """`blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`; None where Hugging Face has no such tensor."""
    names = name_map(arch)
    stem, suffix = _split(name)
    if stem in names.absent:
        return None
    layer = _GGUF_LAYER.fullmatch(stem)
    if layer is None and stem in names.root:
        return f"{names.root[stem]}.{suffix}"
    if layer is not None and layer[2] in names.layer:
        return f"{names.layer_prefix}.{layer[1]}.{names.layer[layer[2]]}.{suffix}"
    raise WeightError(f"[gguf] the tensor {name!r} is not one of a {arch} model")


def gguf_name(arch: str, name: str) -> str | None:
    """The way back: what GGUF calls a tensor of a Hugging Face model; None where it keeps no such tensor."""
    names = name_map(arch)
    stem, suffix = _split(name)
    if stem in names.absent or name in names.absent:
        return None
    layer = re.fullmatch(re.escape(names.layer_prefix) + r"\.(0|[1-9][0-9]{0,3})\.(.+)", stem)
    if layer is None and stem in names.root_back:
        return f"{names.root_back[stem]}.{suffix}"
    if layer is not None and layer[2] in names.layer_back:
        return f"blk.{layer[1]}.{names.layer_back[layer[2]]}.{suffix}"
    raise WeightError(f"[gguf] the tensor {name!r} is not one of a {arch} model")


def _split(name: str) -> tuple[str, str]:
    stem, _, suffix = name.rpartition(".")
    return stem, suffix


_ROTATED = re.compile(r"model\.layers\.[0-9]+\.self_attn\.([qk])_proj\.(?:weight|bias)")


def row_order(arch: str, name: str, config: Mapping[str, Any]) -> array[int] | None:
    """Which stored row is each row of the Hugging Face tensor `name`, or None where they are in order.

    Rotary embedding pairs the two halves of a head in Hugging Face's order; a llama GGUF, and no other architecture's,
    has each pair side by side. Row j of half t of a head of d rows, t * d/2 + j, is stored as row 2j + t. Use with
    TensorView.take.
    """
    match = _ROTATED.fullmatch(name)
    if arch != "llama" or match is None:
        return None
    heads = config["num_attention_heads"] if match[1] == "q" else config["num_key_value_heads"]
    return _halves_from_pairs(heads, config["head_dim"])


@lru_cache(maxsize=8)  # every layer has the same
def _halves_from_pairs(heads: int, dim: int) -> array[int]:
    one = [*range(0, dim, 2), *range(1, dim, 2)]
    return array("i", [head * dim + row for head in range(heads) for row in one])


def stored_order(arch: str, name: str, config: Mapping[str, Any]) -> np.ndarray | None:
    """The inverse of `row_order`, for writing: which row of the Hugging Face tensor is each stored row."""
    import numpy as np

    order = row_order(arch, name, config)
    return None if order is None else np.argsort(order)
