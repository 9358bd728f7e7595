"""A small language that a tiny model can learn: phrases, each followed by one of three others, and its config."""

from typing import Any

import numpy as np

VOCAB, PHRASES = 48, 40

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 16_384,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "tie_word_embeddings": True,
    "mtp_num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


def language(seed: int = 3) -> tuple[list[list[int]], np.ndarray]:
    """The phrases, and for each the three that may follow it."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(1, VOCAB, rng.integers(4, 9)).tolist() for _ in range(PHRASES)]
    return phrases, np.stack([rng.permutation(PHRASES)[:3] for _ in range(PHRASES)])


def text(rng: np.random.Generator, length: int) -> list[int]:
    """`length` tokens of the language."""
    phrases, following = language()
    tokens: list[int] = []
    now = int(rng.integers(PHRASES))
    while len(tokens) < length:
        tokens += phrases[now]
        now = int(rng.choice(following[now], p=[0.6, 0.25, 0.15]))
    return tokens[:length]
