"""Which part of a model each tensor of a file is, by its name: the names that transformers' models give their parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from weft.frozen import frozen
from weft.nn.description import LAYER

Shape = tuple[int, ...]

_ATTENTION = r"(?:.*\.)?(?:self_attn|self_attention|attn|attention)(?:\.attention|\.self)?\."
# Inside a layer. The first pattern that fits a name without .weight or .bias decides.
INSIDE = {
    "qkv": r"(?:.*\.)?(?:qkv_proj|query_key_value|c_attn|wqkv|qkv)",
    **{
        short: rf"{_ATTENTION}(?:{short}_proj|{long}|{long}_proj|{short}_lin|w{short}|{short})"
        for short, long in (("q", "query"), ("k", "key"), ("v", "value"))
    },
    "o": _ATTENTION + r"(?:o_proj|out_proj|dense|c_proj|out_lin|wo|o)|attention\.output\.dense",
    "gate_up": r"(?:.*\.)?gate_up_proj",
    "gate": r"(?:.*\.)?(?:gate_proj|w1)",
    "up": r"(?:.*\.)?(?:up_proj|c_fc|fc1|fc_in|dense_h_to_4h|lin1|w3)|intermediate\.dense",
    "down": r"(?:.*\.)?(?:down_proj|fc2|fc_out|dense_4h_to_h|lin2|w2)|mlp\.c_proj|output\.dense",
    "q_norm": r"(?:.*\.)?(?:q_norm|q_layernorm|query_norm|query_layernorm)",
    "k_norm": r"(?:.*\.)?(?:k_norm|k_layernorm|key_norm|key_layernorm)",
    "before_attention": r"input_layernorm|ln_1|ln_attn|self_attn_layer_norm|attn_norm|attention_norm|norm1"
    r"|attention_layernorm|attention\.layernorm",
    "after_attention": r"attention\.output\.layernorm|sa_layer_norm|post_self_attn_layernorm",
    "between": r"post_attention_layernorm|post_attention_norm|ln_2|norm2",  # after attention, or before the next part
    "before_mlp": r"pre_feedforward_layernorm|ln_mlp|ffn_norm|mlp_norm|feedforward_layernorm|final_layer_norm"
    r"|intermediate\.layernorm",
    "after_mlp": r"post_feedforward_layernorm|post_mlp_layernorm|output\.layernorm|output_layer_norm",
}
OUTSIDE = {
    "embedding_norm": r"(?:.*\.)?(?:embeddings\.layernorm|embeddings\.norm|emb_ln|word_embeddings_layernorm"
    r"|layernorm_embedding)",
    "embedding": r"(?:.*\.)?(?:embed_tokens|wte|embed_in|word_embeddings|tok_embeddings)",
    "positions": r"(?:.*\.)?(?:embed_positions|wpe|position_embeddings)",
    "types": r"(?:.*\.)?token_type_embeddings",
    "final_norm": r"(?:.*\.)?(?:norm|ln_f|final_layernorm|final_layer_norm|final_norm|layer_norm|layernorm"
    r"|last_layer_norm)",
    "head": r"lm_head|embed_out",
}
# Tensors that no result depends on: masks and frequencies that old files keep, heads of an encoder's training.
UNUSED = re.compile(
    r"(?:.*\.)?(?:rotary_emb\.inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids|pooler\.dense\.(?:weight|bias))"
)
TRAINING = re.compile(
    r"(?:cls|lm_head|discriminator_predictions|generator_predictions|generator_lm_head|classifier)\..*"
)

# The whole name of one number for each head, inside a layer.
_SINKS = re.compile(_ATTENTION + r"sinks")
_LAYER = re.compile(r"((?:[^.]+\.)*?)(0|[1-9][0-9]{0,3})\.(.+)")
_INSIDE = {part: re.compile(pattern) for part, pattern in INSIDE.items()}
_OUTSIDE = {part: re.compile(pattern) for part, pattern in OUTSIDE.items()}


@frozen
class Found:
    """`names`: part -> the file's name for it, with {i} in layers; `biased`: those with a bias; `shapes`: of weights.

    A tensor of no known part is in none of them.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    biased: frozenset[str] = frozenset()

    def __contains__(self, part: str) -> bool:
        return part in self.names


def find_parts(tensors: Mapping[str, Shape], layers: int) -> Found:
    """The parts of a model of so many layers."""
    head = _layers_below(tensors, layers)
    names: dict[str, str] = {}
    shapes: dict[str, Shape] = {}
    biased = set()
    for name, shape in tensors.items():
        if UNUSED.fullmatch(name):
            continue
        inside = _LAYER.fullmatch(name)
        if inside is not None and inside[1] == head and _SINKS.fullmatch(inside[3]):
            names["sinks"] = f"{head}{LAYER}.{inside[3]}"
            continue
        if inside is not None and inside[1] == head:
            stem, _, ending = inside[3].rpartition(".")
            part, full = _part(stem, _INSIDE), f"{head}{LAYER}.{stem}"
        else:
            stem, _, ending = name.rpartition(".")
            part, full = _part(stem, _OUTSIDE), stem
        if part is None or ending not in ("weight", "bias") or names.setdefault(part, full) != full:
            continue  # the draft does not use it, which is found when it is tried
        if ending == "bias":
            biased.add(part)
        else:
            shapes.setdefault(part, shape)
    return Found(names, shapes, frozenset(biased))


def _part(stem: str, patterns: Mapping[str, re.Pattern[str]]) -> str | None:
    return next((part for part, pattern in patterns.items() if pattern.fullmatch(stem.lower())), None)


def _layers_below(tensors: Mapping[str, Shape], layers: int) -> str | None:
    """What the names of layers begin with: the most tensors are below it, and they have `layers` numbers."""
    numbers: dict[str, set[int]] = {}
    counts: dict[str, int] = {}
    for name in tensors:
        found = _LAYER.fullmatch(name)
        if found is not None:
            numbers.setdefault(found[1], set()).add(int(found[2]))
            counts[found[1]] = counts.get(found[1], 0) + 1
    fitting = [head for head, seen in numbers.items() if seen == set(range(layers))]
    return max(fitting, key=lambda head: counts[head], default=None)
