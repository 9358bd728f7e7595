"""Write a GGUF model of random weights with the shapes of a known one, to measure types of which no file is at hand.

    python benchmarks/random_model.py --type q4_k --vocab qwen2.5-coder-1.5b-instruct-q4_k_m.gguf qwen3-q4_k.gguf
    python benchmarks/random_model.py --shapes qwen3.5-0.8b --type q8_0 qwen35-q8_0.gguf
    python benchmarks/random_model.py --shapes tinyllama --layers 8 --type iq2_xxs tinyllama-iq2_xxs.gguf
    python benchmarks/random_model.py --shapes small --type f16 --deviation 0.1 --vocab SmolLM2.gguf small-f16.gguf

The vocabulary comes from another file with as many tokens, or is made up. Codes are random bits and the scales are such
that a weight is about as large as a trained one: the text is nonsense, the work is the same.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from weft.dtype import DTYPES
from weft.models import llama, qwen3, qwen3_5_text
from weft.weights.files import TensorView
from weft.weights.gguf import open_gguf
from weft.weights.gguf_export import gguf_from_config, write_gguf

QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
QWEN3_5 = {
    **QWEN3,
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 248_320,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "rope_theta": 10_000_000.0,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "full_attention_interval": 4,
    "eos_token_id": 0,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Rows of 256 and 768, so that every type keeps its blocks, and a vocabulary of SmolLM2's size.
SMALL = {
    **LLAMA,
    "vocab_size": 49_152,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# Half-precision fields of a block: offset in bytes -> value. Types with minima: m is such that the mean is zero.
SCALES = {
    "f16": {},
    "q8_0": {0: 3e-4},
    "q4_0": {0: 5e-3},
    "q4_1": {0: 5e-3, 2: -3.75e-2},
    "q5_0": {0: 2.5e-3},
    "q5_1": {0: 2.5e-3, 2: -3.875e-2},
    "q2_k": {80: 3e-3, 82: 4.5e-3},
    "q3_k": {108: 5e-4},
    "q4_k": {0: 1.2e-4, 2: 9e-4},
    "q5_k": {0: 6e-5, 2: 9e-4},
    "q6_k": {208: 3e-5},
    "iq4_nl": {0: 3e-4},
    "iq4_xs": {0: 2e-5},
    "iq2_xxs": {0: 4e-4},
    "iq2_xs": {0: 4e-4},
    "iq2_s": {0: 4e-4},
    "iq3_xxs": {0: 2e-4},
    "iq3_s": {0: 2e-4},
    "iq1_s": {0: 3e-3},
    "iq1_m": {},
    "tq1_0": {52: 2e-2},
    "tq2_0": {64: 2e-2},
    "mxfp4": {},
}


def qwen3_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """GGUF names and shapes."""
    hidden, wide, heads, groups, dim = 1024, 3072, 16, 8, 128
    yield "token_embd.weight", (QWEN3["vocab_size"], hidden)
    yield "output_norm.weight", (hidden,)
    for layer in range(QWEN3["num_hidden_layers"]):
        for name, shape in {
            "attn_norm": (hidden,),
            "ffn_norm": (hidden,),
            "attn_q_norm": (dim,),
            "attn_k_norm": (dim,),
            "attn_q": (heads * dim, hidden),
            "attn_k": (groups * dim, hidden),
            "attn_v": (groups * dim, hidden),
            "attn_output": (hidden, heads * dim),
            "ffn_gate": (wide, hidden),
            "ffn_up": (wide, hidden),
            "ffn_down": (hidden, wide),
        }.items():
            yield f"blk.{layer}.{name}.weight", shape


def qwen3_5_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, wide, heads, groups, dim, inner = 1024, 3584, 8, 2, 256, 2048
    yield "token_embd.weight", (QWEN3_5["vocab_size"], hidden)
    yield "output_norm.weight", (hidden,)
    for layer in range(QWEN3_5["num_hidden_layers"]):
        made: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (hidden,),
            "post_attention_norm.weight": (hidden,),
            "ffn_gate.weight": (wide, hidden),
            "ffn_up.weight": (wide, hidden),
            "ffn_down.weight": (hidden, wide),
        }
        if layer % 4 == 3:
            made |= {"attn_q.weight": (2 * heads * dim, hidden), "attn_output.weight": (hidden, heads * dim)}
            made |= {f"attn_{name}.weight": (groups * dim, hidden) for name in "kv"}
            made |= {f"attn_{name}_norm.weight": (dim,) for name in "qk"}
        else:
            made |= {"attn_qkv.weight": (3 * inner, hidden), "attn_gate.weight": (inner, hidden)}
            made |= {"ssm_beta.weight": (16, hidden), "ssm_alpha.weight": (16, hidden)}
            made |= {"ssm_conv1d.weight": (3 * inner, 4), "ssm_a": (16,), "ssm_dt.bias": (16,)}
            made |= {"ssm_norm.weight": (128,), "ssm_out.weight": (hidden, inner)}
        yield from ((f"blk.{layer}.{name}", shape) for name, shape in made.items())


def llama_shapes(config: dict[str, Any] = LLAMA) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, wide, groups, dim = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"], 64
    yield "token_embd.weight", (config["vocab_size"], hidden)
    yield "output.weight", (config["vocab_size"], hidden)
    yield "output_norm.weight", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {
            "attn_norm": (hidden,),
            "ffn_norm": (hidden,),
            "attn_q": (hidden, hidden),
            "attn_k": (groups * dim, hidden),
            "attn_v": (groups * dim, hidden),
            "attn_output": (hidden, hidden),
            "ffn_gate": (wide, hidden),
            "ffn_up": (wide, hidden),
            "ffn_down": (hidden, wide),
        }.items():
            yield f"blk.{layer}.{name}.weight", shape


SHAPES = {
    "tinyllama": (LLAMA, llama.GGUF, llama_shapes),
    "small": (SMALL, llama.GGUF, partial(llama_shapes, SMALL)),
    "qwen3-0.6b": (QWEN3, qwen3.GGUF, qwen3_shapes),
    "qwen3.5-0.8b": (QWEN3_5, qwen3_5_text.GGUF, qwen3_5_shapes),
}


def made_up(count: int) -> dict[str, object]:
    """A vocabulary of bytes and of words that no text has."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    tokens = letters + ["Ġw"] + [f"<w{i}>" for i in range(count - len(letters) - 1)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * count,
        "tokenizer.ggml.merges": ["Ġ w"],
    }


def weight(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], deviation: float = 0.02) -> TensorView:
    """A random matrix of the type, the ones of a norm, or the taps of a convolution."""
    if len(shape) == 1:
        return TensorView.of(np.ones(shape, np.float32))
    if shape[1] < DTYPES[dtype].block:
        return TensorView.of(rng.standard_normal(shape, np.float32) * np.float32(0.5))
    if dtype == "f16":
        return TensorView.of((rng.standard_normal(shape, np.float32) * np.float32(deviation)).astype(np.float16))
    kind = DTYPES[dtype]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // kind.block, kind.size_bytes), dtype=np.uint8)
    for at, value in SCALES[dtype].items():
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    if dtype == "mxfp4":
        blocks[:, 0] = 118  # the exponent of a power of two
    if dtype == "iq1_m":  # the scale is in the upper four bits of every other byte at the end
        bits = int(np.float16(3e-3).view(np.uint16))
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (bits >> (4 * i) & 15) << 4
    return TensorView(kind, shape, blocks.reshape(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--type", choices=sorted(SCALES), required=True)
    parser.add_argument("--shapes", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--vocab", help="a GGUF file whose vocabulary is taken")
    parser.add_argument("--layers", type=int, help="only so many layers")
    parser.add_argument("--deviation", type=float, default=0.02, help="of the weights, in f16")
    given = parser.parse_args()
    config, gguf, shapes = SHAPES[given.shapes]
    config["num_hidden_layers"] = given.layers or config["num_hidden_layers"]
    rng = np.random.default_rng(0)
    tokens = made_up(config["vocab_size"])
    if given.vocab:
        with open_gguf(given.vocab) as vocab:
            tokens = {key: value for key, value in vocab.metadata.items() if key.startswith("tokenizer.")}
    tensors = {name: weight(rng, given.type, shape, given.deviation) for name, shape in shapes()}
    tensors |= {name: TensorView.of(-np.ones(16, np.float32)) for name in tensors if name.endswith("ssm_a")}
    write_gguf(given.out, tensors, {**gguf_from_config(config, gguf), **tokens})


if __name__ == "__main__":
    main()
