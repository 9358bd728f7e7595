"""Seeds that hold a model: GGUF files, safetensors files, the JSON files of a folder, programs."""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tiny_folders import NAMES, TESTS, write_models

sys.path[:0] = [str(TESTS / "weights"), str(TESTS / "cli"), str(TESTS / "models")]
import gguf_corpus  # noqa: E402
import safetensors_corpus  # noqa: E402
import tiny  # noqa: E402
from tiny_chat import byte_tokens  # noqa: E402
from tiny_gguf import gguf_from_config, gguf_name, stored_order  # noqa: E402

from weft.dtype import DTYPES  # noqa: E402
from weft.runtime import Decoder, open_checkpoint  # noqa: E402
from weft.weights import TensorView, write_gguf  # noqa: E402

# Rows of 32, so that every matrix can be stored in blocks.
LLAMA: dict[str, Any] = {
    **tiny.LLAMA,
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
PIECES = {"llama": ["\u2581", "t", "h", "e", "\u2581t", "he"], "gpt2": ["th", "he", "the", "in", "er", "on"]}


def vocabulary(model: str) -> dict[str, Any]:
    """The tokenizer.ggml.* keys of a vocabulary of 264 tokens."""
    bytes_ = byte_tokens() if model == "gpt2" else [f"<0x{byte:02X}>" for byte in range(256)]
    keys = {
        "model": model,
        "tokens": [*bytes_, "<s>", "</s>", *PIECES[model]],
        "token_type": np.asarray([1 if model == "gpt2" else 6] * 256 + [3, 3] + [1] * 6, np.int32),
    }
    if model == "gpt2":
        keys |= {"pre": "smollm", "merges": ["t h", "h e", "th e"]}
    else:
        keys |= {"scores": np.arange(264, dtype=np.float32) * -1.0, "unknown_token_id": 256}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def stored(values: np.ndarray, dtype: str, seed: int) -> TensorView:
    """A matrix in `dtype`: rounded where that is a float type, else random blocks with small scales."""
    kind = DTYPES[dtype]
    if dtype in ("f32", "f16"):
        return TensorView.of(values.astype(kind.numpy))
    blocks = np.random.default_rng(seed).integers(0, 256, (values.size // 32, kind.size_bytes), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return TensorView(kind, values.shape, blocks)


def gguf_model(dtype: str, model: str) -> bytes:
    """A llama of one layer as a GGUF file, its matrices in `dtype`."""
    tensors = {}
    for seed, (name, values) in enumerate(tiny.weights(LLAMA).items()):
        order = stored_order("llama", name, LLAMA)
        values = values if order is None else values[order]
        tensors[gguf_name("llama", name)] = stored(values, dtype if values.ndim == 2 else "f32", seed)
    return written(tensors, {**gguf_from_config(LLAMA), **vocabulary(model)})


def gguf_heads() -> Iterator[tuple[str, bytes]]:
    """Files whose head is all that matters: each architecture's keys, a short vocabulary, few tensors."""
    yield "good", gguf_corpus.GOOD
    embedding = np.zeros((8, 32), np.float16)
    ends = {
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.tokens": PIECES["llama"],
    }
    words = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [-1.0] * 6, "tokenizer.ggml.token_type": [1] * 6}
    for kind, config in (
        ("llama", LLAMA),
        ("bert", {**tiny.BERT, "hidden_size": 32}),
        ("phi3", {**tiny.PHI3, "head_dim": 8}),
    ):
        tensors = {"token_embd.weight": embedding, "rope_freqs.weight": np.ones(8, np.float32)}
        if kind == "phi3":
            factors = np.ones(4, np.float32)
            tensors = {"token_embd.weight": np.zeros((8, 48), np.float16), "rope_factors_long.weight": factors}
            tensors["rope_factors_short.weight"] = factors
        yield kind, written(tensors, {**gguf_from_config(config), **ends, **words})


def written(tensors: dict[str, Any], keys: dict[str, Any]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(path, tensors, keys)
        return path.read_bytes()


def folder_seeds() -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        for model in write_models(Path(folder)):
            texts = {name: (model / name).read_bytes() for name in NAMES[model.name] if (model / name).is_file()}
            yield model.name, b"\0".join(part for name, text in texts.items() for part in (name.encode(), text))


def program_seeds() -> Iterator[tuple[str, bytes]]:
    value = {"name": "x", "kind": "input", "dtype": "f32", "shape": ["T", 32]}
    document = {
        "weft": 1,
        "name": "small",
        "slots": [{"T": 128, "B": 0, "L": 4, "const": 64}],
        "values": [
            value,
            {"name": "w", "kind": "weight", "dtype": "f32", "shape": [4, 32]},
            {"name": "q", "kind": "weight", "dtype": "q8_0", "shape": [4, 32]},
            {"name": "kv", "kind": "kv", "dtype": "f16", "shape": [2, 8]},
            {"name": "h", "kind": "buffer", "dtype": "f32", "shape": ["2*T+L+3", "B+1"], "slot": 0},
            {**value, "name": "y", "kind": "output"},
        ],
        "body": [
            {"op": "matmul", "in": ["x", "w", None], "out": ["h"], "attrs": {"activation": "gelu", "eps": 1e-5}},
            {"op": "reshape", "in": ["h"], "out": ["y"], "attrs": {"shape": [1, 2], "flag": True}},
        ],
    }
    yield "small", json.dumps(document).encode()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.gguf").write_bytes(gguf_model("q8_0", "llama"))
        program = Decoder(open_checkpoint(Path(folder) / "model.gguf"), bind=False).program
        yield "llama", program.json.encode()


def python_seeds() -> Iterator[tuple[str, Iterator[tuple[str, bytes]]]]:
    models = {(dtype, kind): gguf_model(dtype, kind) for dtype, kind in (("q8_0", "llama"), ("q4_0", "gpt2"))}
    yield "gguf_head", gguf_heads()
    yield "gguf_model", iter([("-".join(name), raw) for name, raw in models.items()])
    yield "safetensors_header", iter([("good", safetensors_corpus.GOOD), *safetensors_corpus.well_formed()])
    yield "model_folder", folder_seeds()
    yield "program", program_seeds()
