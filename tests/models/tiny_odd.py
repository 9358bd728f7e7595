"""Tiny sentence-transformers folders with settings that few have, each of which changes the vectors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from tiny_catalogue import MODERNBERT, QWEN3, Layout, write_layout
from tiny_st import write_st_folder

TEXTS = ["the cat sat", "", "Hello, WORLD! 123", "ΟΔΟΣ Ès Éa 中a", "the quick brown fox " * 30]
NO_LIMIT = int(1e30)  # what transformers writes where a tokenizer knows none
LINEAR = {"rope_type": "linear", "factor": 4.0}


def edit(path: Path, remove: str = "", **changed: Any) -> None:
    """The JSON object in a file, less one key and with others."""
    value = json.loads(path.read_text()) if path.exists() else {}
    value.pop(remove, None)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**value, **changed}))


def in_file(name: str, **changed: Any) -> Callable[[Path], Path]:
    """The folder of tiny_st with other values in one of its files."""

    def write(folder: Path) -> Path:
        edit(write_st_folder(folder, vocab_size=228) / name, **changed)
        return folder

    return write


def decoder(**changed: Any) -> Callable[[Path], Path]:
    return lambda folder: write_layout(folder, Layout({**QWEN3, **changed}, "llama3", "mean"))


def renamed(folder: Path) -> Path:
    """Norms as files made of TensorFlow's checkpoints call them."""
    from weft.weights import open_safetensors, write_safetensors

    write_st_folder(folder, vocab_size=228)
    stored = {
        name: np.array(view.numpy()) for name, view in open_safetensors(folder / "model.safetensors").tensors.items()
    }
    for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        stored = {name.replace(new, old): values for name, values in stored.items()}
    write_safetensors(folder / "model.safetensors", stored)
    return folder


def with_dropout(folder: Path) -> Path:
    write_st_folder(folder, vocab_size=228)
    rows = json.loads((folder / "modules.json").read_text())
    rows.insert(2, {"idx": 2, "name": "2", "path": "4_Dropout", "type": "sentence_transformers.models.Dropout"})
    (folder / "modules.json").write_text(json.dumps(rows))
    edit(folder / "4_Dropout" / "config.json", dropout=0.5)
    return folder


def uncased_by_the_config(folder: Path) -> Path:
    """tokenizer.json keeps the case, and the class that tokenizer_config.json names does not."""
    write_st_folder(folder, vocab_size=228)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] |= {"lowercase": False, "strip_accents": False, "handle_chinese_chars": False}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def byte_level(**settings: Any) -> Callable[[Path], Path]:
    """A tokenizer of bytes, with these in sentence_bert_config.json."""

    def write(folder: Path) -> Path:
        edit(write_layout(folder, Layout(MODERNBERT, "gpt2", "mean")) / "sentence_bert_config.json", **settings)
        return folder

    return write


def without_a_space(folder: Path) -> Path:
    """tokenizer.json puts a space before a text, and the class that tokenizer_config.json names does not."""
    names = {f"{name}_token": "<s>" for name in ("bos", "eos", "cls", "sep", "unk", "pad", "mask")}
    config = {**tiny.ROBERTA, "vocab_size": 448, "max_position_embeddings": 514}
    write_layout(folder, Layout(config, "gpt2", "mean", max_tokens=64))
    edit(folder / TOKENIZER, tokenizer_class="RobertaTokenizer", **names)
    return folder


DENSE, POOLING, TOKENIZER = "2_Dense/config.json", "1_Pooling/config.json", "tokenizer_config.json"
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "dense-without-activation": in_file(DENSE, remove="activation_function"),
    "dropout": with_dropout,
    "pooling-in-a-list": in_file(POOLING, pooling_mode=["max"]),
    "no-limit": in_file(TOKENIZER, model_max_length=NO_LIMIT),
    "lower-case": byte_level(do_lower_case=True, max_seq_length=48),
    "cased-by-the-config": in_file(TOKENIZER, do_lower_case=False),
    "accents-by-the-config": in_file(TOKENIZER, strip_accents=False, tokenize_chinese_chars=False),
    "uncased-by-the-config": uncased_by_the_config,
    "truncation-side": in_file(TOKENIZER, truncation_side="left"),
    "special-prompt": in_file(
        "config_sentence_transformers.json", prompts={"query": "[MASK] the [SEP] "}, default_prompt_name="query"
    ),
    "older-names": renamed,
    "both-ways": decoder(is_causal=False),
    "both-ways-in-a-window": decoder(is_causal=False, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "scaling-by-hand": decoder(rope_parameters={"rope_type": "default", "rope_theta": 500.0}, rope_scaling=LINEAR),
    "no-space-by-the-config": without_a_space,
}
