"""A tiny chat model as a GGUF file: random weights, a llama's unless asked, a token per byte, and a chat template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.weights import TensorView, write_gguf

SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: dict[str, Any] = {
    **tiny.LLAMA,
    "vocab_size": 258,
    "head_dim": 8,
    "max_position_embeddings": 4096,  # long enough to be interrupted
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def byte_tokens() -> list[str]:
    """The 256 tokens of a byte-level vocabulary: printable bytes as they are, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


def write_chat_model(
    path: Path,
    *,
    template: str | None = TEMPLATE,
    special: Sequence[str] = (),
    model: Mapping[str, Any] = CONFIG,
    **metadata: Any,
) -> Path:
    """Write the model with more `special` tokens; `metadata` adds to or replaces its keys, with `__` for a dot."""
    own = {key: CONFIG[key] for key in ("max_position_embeddings", "bos_token_id", "eos_token_id")}
    config = {**model, **own, "vocab_size": CONFIG["vocab_size"] + len(special)}
    tensors = gguf_tensors(config, {name: TensorView.of(values) for name, values in tiny.weights(config).items()})
    keys = {**gguf_from_config(config), **tokenizer_keys(special)}
    if template is not None:
        keys["tokenizer.chat_template"] = template
    keys.update({name.replace("__", "."): value for name, value in metadata.items()})
    write_gguf(path, tensors, keys)
    return path


def tokenizer_keys(special: Sequence[str] = ()) -> dict[str, Any]:
    """The metadata of the tokenizer, with more `special` tokens."""
    return {
        "general.name": "tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_tokens(), *SPECIAL, *special],
        "tokenizer.ggml.token_type": np.asarray([1] * 256 + [3] * (2 + len(special)), np.int32),
        "tokenizer.ggml.add_bos_token": False,
    }
