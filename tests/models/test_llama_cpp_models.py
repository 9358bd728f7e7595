"""llama.cpp computes what weft does from the same tiny GGUF files of types with recurrent layers or experts."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.runtime import Decoder, open_checkpoint
from weft.weights import write_gguf
from weft.weights.files import TensorView

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "generate"
GGML = dict(np.load(GOLDEN / "tiny-llama-cpp.npz"))
sys.path.insert(0, str(GOLDEN))
from make_tiny_llama_cpp import CHANGES, LENGTH, config_of  # noqa: E402

LIMIT = 5e-4  # llama.cpp has sums of another order, and a few steps of less precision


def write(path: Path, cfg: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    views = {key: TensorView.of(value) for key, value in tensors.items()}
    write_gguf(path, gguf_tensors(cfg, views), gguf_from_config(cfg))
    return path


def logits(path: Path, cfg: dict[str, Any]) -> np.ndarray:
    return Decoder(open_checkpoint(path), kv_dtype="f32").logits(tiny.token_ids(cfg, LENGTH))


def test_the_types_that_llama_cpp_has_are_all_here() -> None:
    assert {"qwen3_5_text", "lfm2", "qwen3_moe", "gpt_oss", "qwen3_next"} <= GGML.keys() == CHANGES.keys()


@pytest.mark.parametrize("name", GGML)
def test_llama_cpp_computes_the_same_from_a_gguf_file(tmp_path: Path, name: str) -> None:
    cfg = config_of(name)
    found = logits(write(tmp_path / "m.gguf", cfg, tiny.weights(cfg)), cfg)
    assert np.abs(GGML[name]).max() > 0.5
    assert np.abs(found - GGML[name]).max() <= LIMIT


def test_queries_keys_values_and_gates_of_qwen3_next_may_lie_apart(tmp_path: Path) -> None:
    """As newer files have them: all queries, then all keys and all values in one matrix, gates in another."""
    cfg = config_of("qwen3_next")
    groups, keys = cfg["linear_num_key_heads"], cfg["linear_key_head_dim"]
    values = cfg["linear_num_value_heads"] // groups * cfg["linear_value_head_dim"]
    together, apart = tiny.weights(cfg), {}
    for name, value in together.items():
        if name.endswith("in_proj_qkvz.weight"):
            parts = np.split(value.reshape(groups, -1, value.shape[1]), np.cumsum([keys, keys, values]), axis=1)
            q, k, v, z = (part.reshape(-1, value.shape[1]) for part in parts)
            base = name.removesuffix("qkvz.weight")
            apart |= {f"{base}qkv.weight": np.concatenate([q, k, v]), f"{base}z.weight": z}
        else:
            apart[name] = value
    paths = [write(tmp_path / f"{len(made)}.gguf", cfg, made) for made in (together, apart)]
    assert np.array_equal(*(logits(path, cfg) for path in paths))
