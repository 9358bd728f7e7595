"""What config.json does not say: facts about model types that transformers has in its code, and what has no words.

A fact is read from transformers' model file, never copied from it. A type that is not here is drafted with the usual
facts, and the draft says which ones were assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from weft.frozen import frozen


@frozen
class Family:
    """pairs         which channels rotate together
    qkv           how a fused matrix holds queries, keys and values
    positions     sinusoidal: there is no table in the file
    first         the row of a position table that the first token takes; "pad": the one after the padding token's
    scaled        the embedding is multiplied by the root of its width, where the config's scale_embedding allows it
    plus_one      norms are stored less one
    eps           of norms, where config.json does not say it, or says another that is not used
    score_scale   what scores are multiplied by, where that is not 1 / sqrt(head_dim)
    full_rotates  whether layers without a window rotate in a model where others have one
    transposed    matrices are stored as [inputs, outputs]
    encodes       the model reads both ways
    defaults      values of config.json's keys where a file leaves them out
    """

    pairs: str = "halves"
    qkv: str = "stacked"
    positions: str = ""
    first: int | str = 0
    scaled: bool = False
    plus_one: bool = False
    eps: float | None = None
    score_scale: float | None = None
    full_rotates: bool = True
    transposed: bool = False
    encodes: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


_BERT = Family(encodes=True)
_ROBERTA = Family(encodes=True, first="pad")
_TURNED = Family(pairs="neighbours")

FAMILIES: dict[str, Family] = {
    "arcee": Family(),
    "biogpt": Family(scaled=True, eps=1e-5),
    "camembert": _ROBERTA,
    "cohere": Family(pairs="neighbours", defaults={"tie_word_embeddings": True, "logit_scale": 0.0625}),
    "cohere2": Family(
        pairs="neighbours", full_rotates=False, defaults={"tie_word_embeddings": True, "logit_scale": 0.0625}
    ),
    "electra": _BERT,
    "exaone4": Family(full_rotates=False),
    "falcon": Family(qkv="by_group", defaults={"multi_query": True}),
    "gemma": Family(plus_one=True, scaled=True, defaults={"head_dim": 256, "hidden_act": "gelu_pytorch_tanh"}),
    "glm": _TURNED,
    "gpt2": Family(transposed=True),
    "gpt_bigcode": Family(defaults={"multi_query": True}),
    "gpt_neo": Family(score_scale=1.0),
    "gpt_neox": Family(qkv="by_group", defaults={"use_parallel_residual": True, "rotary_pct": 0.25}),
    "gptj": Family(pairs="neighbours", defaults={"rotary_dim": 64}),
    "granite_swa": Family(),
    "helium": _TURNED,
    "nemotron": Family(plus_one=True, defaults={"partial_rotary_factor": 0.5}),
    "olmo": Family(eps=1e-5),
    "opt": Family(eps=1e-5, defaults={"do_layer_norm_before": True}),
    "persimmon": Family(qkv="by_group", defaults={"partial_rotary_factor": 0.5}),
    "phi": Family(defaults={"partial_rotary_factor": 0.5}),
    "roberta-prelayernorm": _ROBERTA,
    "seed_oss": Family(),
    "stablelm": Family(defaults={"partial_rotary_factor": 0.25}),
    "starcoder2": Family(),
    "xglm": Family(positions="sinusoidal", first=2, scaled=True, eps=1e-5),
}

# Types whose config.json does not show what a description has no words for.
REFUSED = {
    "bloom": "ALiBi: its scores are biased by distance",
    "codegen": "its fused queries, keys and values lie in four blocks, in the order q, v, k",
    "mpt": "ALiBi: its scores are biased by distance",
    "rwkv": "a recurrence in place of attention",
}

_ON = re.compile(r"(?!0$|None$|False$|\[\]$|\{\}$).+")
# A key of config.json, the values (as text) that are an obstacle, and what it is.
OBSTACLES: tuple[tuple[str, str, str], ...] = (
    ("is_encoder_decoder", "True", "an encoder with a decoder, which attends to it"),
    ("use_bidirectional_attention", "True", "attention to later tokens, beside generating"),
    ("add_cross_attention", "True", "attention to another model's states"),
    ("kv_lora_rank", "", "multi-head latent attention"),
    *(
        (key, "", "a mixture of experts")
        for key in ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    ),
    *((key, "", "a state space in place of attention") for key in ("state_size", "ssm_state_size", "mamba_d_state")),
    *((key, "", "a convolution") for key in ("conv_kernel", "conv_L_cache", "linear_conv_kernel_dim")),
    *((key, "True", "ALiBi: its scores are biased by distance") for key in ("alibi", "use_alibi")),
    ("position_embedding_type", "alibi", "ALiBi: its scores are biased by distance"),
    ("relative_attention", "True", "scores that depend on relative positions"),
    ("relative_attention_num_buckets", "", "scores that depend on relative positions"),
    ("position_embedding_type", "relative.*", "scores that depend on relative positions"),
    ("clip_qkv", "", "queries, keys and values that are cut off at a value"),
    ("scale_attn_by_inverse_layer_idx", "True", "scores that are scaled by the number of the layer"),
    ("apply_residual_connection_post_layernorm", "True", "residual sums with the normed values"),
    ("use_task_id", "True", "embeddings of tasks"),
    ("attention_chunk_size", "", "attention in chunks"),
    ("quantization_config", "", "quantised weights"),
    *((key, "", "a model of several parts") for key in ("text_config", "vision_config", "audio_config")),
)


def obstacles(config: Mapping[str, Any]) -> list[str]:
    """What of a model a description has no words for, by its config.json."""
    found = []
    kind = str(config.get("model_type"))
    if kind in REFUSED:
        found.append(f"model_type {kind}: {REFUSED[kind]}")
    for key, pattern, words in OBSTACLES:
        value = config.get(key)
        if (re.compile(pattern) if pattern else _ON).fullmatch(str(value)) and value is not None:
            shown = "" if isinstance(value, dict | list) else f" {value}"
            found.append(f"{key}{shown}: {words}")
    return found


# Keys of config.json that change nothing of what is computed.
IGNORED = re.compile(
    r"architectures|model_type|transformers_version|torch_dtype|dtype|.*token_id|use_cache|initializer_.*|init_.*"
    r"|.*dropout.*|.*pdrop|.*drop_prob|layerdrop|summary_.*|id2label|label2id|num_labels|problem_type|pretraining_tp"
    r"|_.*|attn_implementation|gradient_checkpointing|output_.*|return_dict.*|tokenizer_class|task_specific_params"
    r"|auto_map|n_ctx|prefix|reorder_and_upcast_attn|attention_softmax_in_fp32|scale_attention_softmax_in_fp32|pooler_.*"
    r"|classifier_.*|decoder_start_token_id|tie_encoder_decoder|finetuning_task|pruned_heads|chunk_size_feed_forward"
    r"|is_decoder|rope_interleave|task_type_vocab_size|slow_but_exact|type_sequence_label_size|model_max_length"
)
# Keys whose effect the tensors show: which biases and norms there are.
SHOWN = re.compile(
    r"attention_bias|mlp_bias|use_bias|bias|use_qkv_bias|qkv_bias|enable_bias|attention_out_bias|qk_layernorm|use_qk_norm"
    r"|layer_norm_elementwise_affine|new_decoder_architecture|num_ln_in_parallel_attn|tie_word_embeddings|intermediate_size"
    r"|n_inner|ffn_dim|ffn_hidden_size|hidden_dim|type_vocab_size|embedding_size|word_embed_proj_dim|attention_types"
)
