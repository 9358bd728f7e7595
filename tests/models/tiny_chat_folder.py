"""A tiny chat model as a folder: random llama weights, a byte-level tokenizer, a template, a generation config."""

import json
from pathlib import Path
from typing import Any

import tiny

from weft.weights.safetensors import write_safetensors

CONFIG: dict[str, Any] = {**tiny.LLAMA, "vocab_size": 512, "head_dim": 8, "max_position_embeddings": 512}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def write_chat_folder(folder: Path, generation: dict[str, Any]) -> Path:
    """Write the model; `generation` is the content of generation_config.json."""
    folder.mkdir(parents=True)
    golden = Path(__file__).resolve().parent.parent / "golden" / "text" / "gpt2.json"
    files = {
        "config.json": CONFIG,
        "generation_config.json": generation,
        "tokenizer_config.json": {"bos_token": "<|end|>", "eos_token": "<|end|>", "chat_template": TEMPLATE},
        "tokenizer.json": json.loads(golden.read_text(encoding="utf-8"))["tokenizer"],
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", tiny.weights(CONFIG))
    return folder
