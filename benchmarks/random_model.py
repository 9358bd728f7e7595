"""Write a GGUF model of random weights with the shapes of Qwen3-0.6B, to measure types of which no file is at hand.

    python benchmarks/random_model.py --type q4_k --vocab qwen2.5-coder-1.5b-instruct-q4_k_m.gguf qwen3-q4_k.gguf

The vocabulary comes from another file of 151,936 tokens. Codes are random bits and the scales are such that a weight is
about as large as a trained one: the text is nonsense, the work is the same.
"""

import argparse
from collections.abc import Iterator

import numpy as np

from weft.dtype import DTYPES
from weft.models import llama
from weft.weights.files import TensorView
from weft.weights.gguf import open_gguf
from weft.weights.gguf_export import gguf_from_config
from weft.weights.gguf_writer import write_gguf

CONFIG = {
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
# Half-precision fields of a block: offset in bytes -> value. Q4_K: dmin = 7.5 d, for a mean of zero.
SCALES = {"q8_0": {0: 3e-4}, "q4_0": {0: 5e-3}, "q4_k": {0: 1.2e-4, 2: 9e-4}, "f16": {}}


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """GGUF names and shapes."""
    hidden, wide, heads, groups, dim = 1024, 3072, 16, 8, 128
    yield "token_embd.weight", (CONFIG["vocab_size"], hidden)
    yield "output_norm.weight", (hidden,)
    for layer in range(CONFIG["num_hidden_layers"]):
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


def weight(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> TensorView:
    """A random matrix of the type, or the ones of a norm."""
    if len(shape) == 1:
        return TensorView.of(np.ones(shape, np.float32))
    if dtype == "f16":
        return TensorView.of((rng.standard_normal(shape, np.float32) * np.float32(0.02)).astype(np.float16))
    kind = DTYPES[dtype]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // kind.block, kind.size_bytes), dtype=np.uint8)
    for at, value in SCALES[dtype].items():
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    return TensorView(kind, shape, blocks.reshape(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--type", choices=sorted(SCALES), required=True)
    parser.add_argument("--vocab", required=True, help="a GGUF file whose vocabulary is taken")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    with open_gguf(given.vocab) as vocab:
        tokens = {key: value for key, value in vocab.metadata.items() if key.startswith("tokenizer.")}
        metadata = {**gguf_from_config(CONFIG, llama.GGUF), **tokens}
        write_gguf(given.out, {name: weight(rng, given.type, shape) for name, shape in shapes()}, metadata)


if __name__ == "__main__":
    main()
