"""A real Llama in a megabyte tells its story."""

import struct
from pathlib import Path

import numpy as np
import pytest
from tiny_gguf import gguf_from_config

from weft.generate import Engine, generate
from weft.runtime import Decoder, open_checkpoint
from weft.weights import write_gguf

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball."
)

pytestmark = pytest.mark.shared


def write_stories(source: Path, path: Path) -> Path:
    """llama2.c's file as GGUF: both keep the rotary pairs of a head side by side."""
    raw = source.read_bytes()
    dim, hidden, layers, heads, groups, vocab, context = struct.unpack("7i", raw[:28])
    values = np.frombuffer(raw, "<f4", offset=28)
    at = 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        at += int(np.prod(shape))
        return values[at - int(np.prod(shape)) : at].reshape(shape)

    per_head = dim // heads
    tensors = {"token_embd.weight": take(vocab, dim)}
    shapes = {
        "attn_norm": (dim,),
        "attn_q": (dim, dim),
        "attn_k": (groups * per_head, dim),
        "attn_v": (groups * per_head, dim),
        "attn_output": (dim, dim),
        "ffn_norm": (dim,),
        "ffn_gate": (hidden, dim),
        "ffn_down": (dim, hidden),
        "ffn_up": (hidden, dim),
    }
    for name, shape in shapes.items():
        for layer, part in enumerate(take(layers, *shape)):
            tensors[f"blk.{layer}.{name}.weight"] = part
    tensors["output_norm.weight"] = take(dim)
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": per_head,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    write_gguf(path, tensors, gguf_from_config(config))
    return path


def read_pieces(path: Path) -> list[str]:
    """llama2.c's vocabulary: a score, a length and the text of each token."""
    raw, at, pieces = path.read_bytes(), 4, []
    while at < len(raw):
        (length,) = struct.unpack_from("i", raw, at + 4)
        pieces.append(raw[at + 8 : at + 8 + length].decode())
        at += 8 + length
    return pieces


def test_stories260k_tells_its_story(tmp_path: Path, shared: Path) -> None:
    folder = shared / "stories260K"
    decoder = Decoder(open_checkpoint(write_stories(folder / "stories260K.bin", tmp_path / "stories.gguf")))
    tokens = generate(Engine(decoder), [1], max_tokens=100).tokens
    pieces = read_pieces(folder / "tok512.bin")
    text = "".join(pieces[token] for token in tokens)
    assert text.lstrip().startswith(STORY)
