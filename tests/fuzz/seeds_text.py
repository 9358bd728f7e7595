"""Seeds of the tokenizers that Python puts together: Mistral's tekken.json, and vocab.json with merges.txt."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from weft.text import ranks

Seed = tuple[str, bytes]
LETTERS = ["H", "e", "l", "o", "w", "r", "d", "\u0120", "1", "2", "\u00c3", "\u00b6", "<", "s", ">", "\u010a"]
MERGES = ["l l", "e ll", "\u0120 w", "r l", "\u00c3 \u00b6", "H ell"]


def tekken_seeds() -> Iterator[Seed]:
    """With and without names for the special tokens; `"@bytes"` is what `tekken.py` says it is."""
    words = [base64.b64encode(word).decode() for word in (b"He", b"ll", b"Hell", b" w", "ö".encode())]
    vocab = ["@bytes", *({"rank": 256 + i, "token_bytes": word, "token_str": None} for i, word in enumerate(words))]
    named = ["<unk>", "<s>", "</s>", "[INST]"]
    special = [{"rank": i, "token_str": token, "is_control": True} for i, token in enumerate(named)]
    for name in ("o200k_base", "llama3", "qwen"):
        config = {"pattern": ranks.encoding(name).pattern, "default_vocab_size": 265, "default_num_special_tokens": 4}
        yield name, json.dumps({"config": config, "vocab": vocab, "special_tokens": special}).encode()
    config = {**config, "num_vocab_tokens": 1000, "default_num_special_tokens": 20, "default_vocab_size": 278}
    yield "unnamed", json.dumps({"config": config, "vocab": vocab, "version": "v3"}).encode()


def merges_seeds() -> Iterator[Seed]:
    """Each class of tokenizer, with the special tokens in every place that may name them."""
    joined = [merge.replace(" ", "") for merge in MERGES]
    words = {token: id for id, token in enumerate(["<s>", "</s>", "<unk>", "<|endoftext|>", *LETTERS, *joined])}
    mask = {"content": "<mask>", "lstrip": True, "special": True}
    cases: dict[str, tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]] = {
        "plain": ({}, None, None),
        "gpt2": ({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "add_bos_token": True}, None, None),
        "qwen2": (
            {"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": ["<x>", mask], "eos_token": "<x>"},
            {"<x>": 40, "<mask>": 41},
            {"pad_token": {"content": "<|endoftext|>"}},
        ),
        "roberta": ({"tokenizer_class": "RobertaTokenizerFast"}, {"<mask>": 40}, {"mask_token": mask}),
        "decoder": ({"added_tokens_decoder": {"0": {"content": "<s>", "special": True}, "40": mask}}, None, None),
    }
    for name, (settings, added, special) in cases.items():
        files = {
            "vocab.json": json.dumps(words, ensure_ascii=False),
            "merges.txt": "\n".join(["#version: 0.2", *MERGES, ""]),
            "tokenizer_config.json": json.dumps(settings),
            "added_tokens.json": None if added is None else json.dumps(added),
            "special_tokens_map.json": None if special is None else json.dumps(special),
        }
        yield name, "\0".join(part for key, text in files.items() if text is not None for part in (key, text)).encode()
