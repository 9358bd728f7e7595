"""A tiny sentence-transformers folder: BERT, first-token pooling, a dense layer, a norm, prompts, a short limit."""

import json
from pathlib import Path

import numpy as np
import tiny

TOKENIZER = Path(__file__).resolve().parent.parent / "golden" / "text" / "word_piece.json"
TEXTS = ["the cat sat", "", "a", "Hello, WORLD! 123", "the quick brown fox jumps over the lazy dog", "one two three"]
PROMPTS = {"query": "query: ", "document": "passage: the "}
OUTPUTS = 24


def write_st_folder(folder: Path, vocab_size: int = 221) -> Path:
    """The folder; the goldens are of 221 rows of embeddings, and the tokenizer's added tokens are beyond them."""
    tokenizer = json.loads(TOKENIZER.read_text())["tokenizer"]
    cfg = {**tiny.BERT, "vocab_size": vocab_size, "hidden_size": 36, "num_attention_heads": 3}
    tiny.write_folder(folder, cfg)
    _write(folder / "tokenizer.json", tokenizer)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "model_max_length": 160, **names})
    module = "sentence_transformers.models"
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"{module}.{kind}"} for i, (path, kind) in enumerate(kinds)
    ]
    _write(folder / "modules.json", entries)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    _write(folder / "config_sentence_transformers.json", {"prompts": PROMPTS, "similarity_fn_name": "cosine"})
    _write(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": 36, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    )
    tanh = "torch.nn.modules.activation.Tanh"
    _write(
        folder / "2_Dense" / "config.json",
        {"in_features": 36, "out_features": OUTPUTS, "bias": True, "activation_function": tanh},
    )
    (folder / "3_Normalize").mkdir(exist_ok=True)
    from weft.weights import write_safetensors

    weight, bias = tiny.uniform(991, OUTPUTS * 36).reshape(OUTPUTS, 36), tiny.uniform(992, OUTPUTS)
    write_safetensors(
        folder / "2_Dense" / "model.safetensors", {"linear.weight": np.float32(0.3) * weight, "linear.bias": bias}
    )
    return folder


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
