"""The op catalogue: the only vocabulary of models, programs and backends. See registry.py for what an op is."""

from weft.ops.attention import attention, attention_bf16, attention_half
from weft.ops.elementwise import activate, add, gated, gated_clamped, mul, scale, softcap
from weft.ops.experts import combine, group, route
from weft.ops.gather import embedding, reshape, take_rows
from weft.ops.hadamard import hadamard
from weft.ops.matmul import lora, lora_embedding, matmul, matmul_bf16, matmul_half, round_rows
from weft.ops.norm import add_layer_norm, add_rms_norm, l2_normalise, layer_norm, rms_norm
from weft.ops.paged import attention_paged, attention_paged_bf16, kv_write
from weft.ops.quant import add_rms_norm_a8, gated_a8, matmul_q, quantise_rows, rms_norm_a8
from weft.ops.recurrent import causal_conv, delta_rule, mamba2
from weft.ops.reduce import pool, softmax
from weft.ops.registry import catalogue
from weft.ops.rope import rope, rope_table, rope_turn, rope_write

__all__ = [
    "activate", "add", "add_layer_norm", "add_rms_norm", "add_rms_norm_a8", "attention", "attention_bf16",
    "attention_half", "attention_paged", "attention_paged_bf16", "catalogue", "causal_conv", "combine", "delta_rule",
    "embedding", "gated", "gated_a8", "gated_clamped", "group", "hadamard", "kv_write", "l2_normalise", "layer_norm",
    "lora", "lora_embedding", "mamba2", "matmul", "matmul_bf16", "matmul_half", "matmul_q", "mul", "pool",
    "quantise_rows", "reshape", "rms_norm", "rms_norm_a8", "rope", "rope_table", "rope_turn", "rope_write",
    "round_rows", "route", "scale", "softcap", "softmax", "take_rows",
]  # fmt: skip
