"""Make experts-llama-cpp.npz: what llama.cpp computes for tiny random GGUF files with experts.

PYTHONPATH=. python tests/golden/generate/make_experts_llama_cpp.py

Needs xllamacpp, which carries llama.cpp. The files are weft's own, in f32, without a vocabulary.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "models"), str(HERE.parent)]
import tiny  # noqa: E402
from tiny_gguf import declared, gguf_from_config, gguf_tensors  # noqa: E402

LENGTH = 130
CHANGES = {
    "qwen3_moe": {},
    "qwen2_moe": {},
    "mixtral": {},
    "lfm2_moe": {},
    "qwen3_5_moe_text": {"linear_value_head_dim": 8, "tiled_value_heads": True},
}


def config_of(name: str) -> dict:
    return {**tiny.CONFIGS[name], **CHANGES[name]}


def write(path: Path, name: str) -> None:
    """The tiny checkpoint as a file that llama.cpp reads: it wants a vocabulary, or the word that there is none."""
    from weft.weights import write_gguf
    from weft.weights.files import TensorView

    cfg = config_of(name)
    views = {key: TensorView.of(value) for key, value in tiny.weights(cfg).items()}
    architecture = declared(cfg["model_type"]).architecture
    more = {"tokenizer.ggml.model": "no_vocab", f"{architecture}.vocab_size": cfg["vocab_size"]}
    write_gguf(path, gguf_tensors(cfg, views), {**gguf_from_config(cfg), **more})


if __name__ == "__main__":
    from made_with import note_versions
    from make_llama_cpp import Llama

    found = {}
    for name in CHANGES:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "m.gguf", name)
            llama = Llama(str(Path(folder) / "m.gguf"))
            llama.size = config_of(name)["vocab_size"]
            ids = tiny.token_ids(config_of(name), LENGTH)
            found[name] = llama.decode(ids.tolist(), 0, True)
            print(name, found[name].shape)
    np.savez_compressed(HERE / "experts-llama-cpp.npz", **found)
    note_versions(HERE / "experts-llama-cpp.npz", "xllamacpp", "numpy")
