"""Make tiny-llama-cpp.npz: what llama.cpp computes for tiny random GGUF files with recurrent layers or experts.

PYTHONPATH=. python tests/golden/generate/make_tiny_llama_cpp.py

Needs xllamacpp, which carries llama.cpp. The files are weft's own, in f32, without a vocabulary.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "models"), str(HERE.parent)]
import tiny  # noqa: E402
from tiny_gguf import declared, gguf_from_config, gguf_tensors  # noqa: E402

LENGTH = 130
TILED = {"linear_value_head_dim": 8, "tiled_value_heads": True}  # as files of Qwen3.5 have them
# tiny.CONFIGS -> what is other in the file: what GGUF has no words for, or llama.cpp does not compute.
CHANGES: dict[str, dict[str, Any]] = {
    "lfm2": {},
    "qwen3_5_text": TILED,
    "granitemoehybrid": {},
    "nemotron_h": {},
    "qwen3_moe": {},
    "qwen2_moe": {},
    "mixtral": {},
    "lfm2_moe": {},
    "qwen3_5_moe_text": TILED,
    "qwen3_next": {"linear_value_head_dim": 8},
    "granitemoehybrid-experts": {},
    "nemotron_h-experts": {},
    "nemotron_h-experts-narrow": {"hybrid_override_pattern": "EMM*E", "mlp_bias": False},
    "gpt_oss": {"rope_scaling": None},
}


def config_of(name: str) -> dict[str, Any]:
    return {**tiny.CONFIGS[name], **CHANGES[name]}


def write(path: Path, name: str) -> None:
    """The tiny checkpoint as a file that llama.cpp reads: it wants a vocabulary, or the word that there is none."""
    from weft.weights import write_gguf
    from weft.weights.files import TensorView

    cfg = config_of(name)
    views = {key: TensorView.of(value) for key, value in tiny.weights(cfg).items()}
    architecture = declared(cfg["model_type"]).of(cfg).architecture
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
    np.savez_compressed(HERE / "tiny-llama-cpp.npz", **found)
    note_versions(HERE / "tiny-llama-cpp.npz", "xllamacpp", "numpy")
