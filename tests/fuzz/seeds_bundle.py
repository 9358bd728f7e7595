"""Seeds of the target `bundle`: small bundles of each kind, their files one after another (csrc/fuzz/bundle.cpp)."""

import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "models")]
import tiny  # noqa: E402
import tiny_adapters  # noqa: E402
from test_low_bit import packed  # noqa: E402
from tiny_chat import TEMPLATE, tokenizer_keys  # noqa: E402
from tiny_gguf import gguf_from_config, gguf_tensors  # noqa: E402
from tiny_st import write_st_folder  # noqa: E402

from weft.export import export, export_adapter  # noqa: E402
from weft.weights import TensorView, write_gguf  # noqa: E402

SMALL = {
    **tiny.QWEN2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 258,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
ENCODER = {
    **tiny.BERT,
    "vocab_size": 230,
    "hidden_size": 36,
    "num_attention_heads": 3,
    "num_hidden_layers": 1,
    "intermediate_size": 40,
    "max_position_embeddings": 50,
}


def joined(folder: Path, adapter: Path | None = None) -> bytes:
    """The files of a bundle as one input, and those of an adapter for it."""
    files = {path.name: path for path in sorted(folder.iterdir())} | ({"adapter": adapter} if adapter else {})
    out = b""
    for name, path in files.items():
        data = path.read_bytes()
        out += bytes([len(name)]) + name.encode() + struct.pack("<I", len(data)) + data
    return out


def adapted(model: Path, config: dict[str, Any], settings: dict[str, Any], folder: Path) -> bytes:
    """A bundle with room for adapters, and an adapter."""
    given = tiny_adapters.write_adapter(folder / "lora", config, {**settings, "r": 2}, "f16")
    bundle = export(str(model), folder / "adapted.weft", adapters=True).path
    return joined(bundle, export_adapter(str(model), given, folder / "adapter.safetensors").path)


def decoder(folder: Path, kind: str, compute: str | None) -> Path:
    """A bundle of a decoder with a chat template, its matrices of type `kind`."""
    rng = np.random.default_rng(1)
    values = tiny.weights(SMALL)
    views = {
        name: packed(rng, kind, value.shape) if value.ndim > 1 and kind != "f32" else TensorView.of(value)
        for name, value in values.items()
    }
    keys = {**gguf_from_config(SMALL), **tokenizer_keys(), "tokenizer.chat_template": TEMPLATE}
    write_gguf(folder / f"{kind}.gguf", gguf_tensors(SMALL, views), keys)
    return export(str(folder / f"{kind}.gguf"), folder / f"{kind}-{compute}.weft", compute=compute).path


def bundle_seeds() -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        st = write_st_folder(folder / "st", vocab_size=230)
        tiny.write_folder(st, ENCODER)  # a smaller one in its place
        yield "encoder", joined(export(str(st), folder / "st.weft").path)
        for kind, compute in (("q8_0", None), ("q4_0", None), ("q8_0", "f32")):
            yield f"{kind}-{compute}", joined(decoder(folder, kind, compute))
        bert = {**tiny_adapters.PEFT_BERT, "target_modules": tiny_adapters.BERT_ALL}
        own = {**tiny_adapters.PEFT, "use_dora": True}
        yield "adapted encoder", adapted(st, ENCODER, bert, folder / "encoder")
        yield "adapted decoder", adapted(folder / "q8_0.gguf", SMALL, own, folder / "decoder")
