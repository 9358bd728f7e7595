"""Two tiny models as folders, with every JSON file that weft reads: a llama in shards and a bert with its modules."""

import json
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "models")]

import tiny  # noqa: E402
from tiny_st import write_st_folder  # noqa: E402

from weft.weights.safetensors import write_safetensors  # noqa: E402

# The JSON files of each folder, those the tests and the fuzz target make wrong.
NAMES = {
    "decoder": (
        *("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
        "model.safetensors.index.json",
    ),
    "encoder": (
        *("config.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json"),
        *("config_sentence_transformers.json", "1_Pooling/config.json", "2_Dense/config.json"),
    ),
}
LLAMA: dict[str, Any] = {
    **tiny.LLAMA,
    "vocab_size": 512,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rope_scaling": tiny.LLAMA3_ROPE,
    "tie_word_embeddings": True,
}


def write_models(folder: Path) -> tuple[Path, Path]:
    """The decoder's and the encoder's folder below `folder`."""
    return write_decoder(folder / "decoder"), write_st_folder(folder / "encoder")


def write_decoder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    tensors = tiny.weights(LLAMA)
    shards = {name: f"model-{1 + (name == 'model.norm.weight')}.safetensors" for name in tensors}
    for shard in set(shards.values()):
        write_safetensors(folder / shard, {name: value for name, value in tensors.items() if shards[name] == shard})
    golden = json.loads((TESTS / "golden" / "text" / "gpt2.json").read_text(encoding="utf-8"))
    files = {
        "config.json": LLAMA,
        "generation_config.json": {"eos_token_id": [2, 3], "temperature": 0.6, "do_sample": True},
        "tokenizer_config.json": {
            "bos_token": "<|end|>",
            "eos_token": {"content": "<|end|>", "special": True},
            "add_bos_token": False,
            "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
        },
        "special_tokens_map.json": {"unk_token": "<|end|>", "pad_token": None},
        "model.safetensors.index.json": {"metadata": {"total_size": 1}, "weight_map": shards},
        "tokenizer.json": golden["tokenizer"],
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return folder
