"""A Llama of random weights that writes text: a vocabulary of bytes and a few longer tokens, or a published one."""

from pathlib import Path
from typing import Any

import numpy as np
import tiny
from byte_tokenizer import LONGER
from tiny_gguf import gguf_from_config, gguf_name, stored_order

from weft.weights import write_gguf
from weft.weights.gguf import open_gguf

_NORMAL, _CONTROL, _BYTE = 1, 3, 6


def byte_keys() -> dict[str, Any]:
    """The tokenizer of a model with a token for each byte, and LONGER."""
    texts = [text.decode() for text in LONGER if b" " not in text]
    kinds = [_CONTROL] * 2 + [_BYTE] * 256 + [_NORMAL] * len(texts)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *texts],
        "tokenizer.ggml.scores": np.asarray([0.0] * 258 + [-1.0 - i for i in range(len(texts))], np.float32),
        "tokenizer.ggml.token_type": np.asarray(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": False,
    }


def vocabulary_keys(path: Path) -> dict[str, Any]:
    """The tokenizer of a GGUF file that may have nothing else."""
    metadata = open_gguf(path).metadata
    return {key: metadata[key] for key in metadata if key.startswith("tokenizer.ggml.")}


def write_random_model(path: Path, keys: dict[str, Any]) -> Path:
    """Write the model with the tokenizer that `keys` describe."""
    config: dict[str, Any] = {
        **tiny.LLAMA,
        "vocab_size": len(keys["tokenizer.ggml.tokens"]),
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "bos_token_id": keys["tokenizer.ggml.bos_token_id"],
        "eos_token_id": keys["tokenizer.ggml.eos_token_id"],
    }
    tensors = {}
    for name, values in tiny.weights(config).items():
        order = stored_order("llama", name, config)
        tensors[gguf_name("llama", name)] = values if order is None else values[order]
    write_gguf(path, tensors, {**gguf_from_config(config), "general.name": "random", **keys})
    return path
