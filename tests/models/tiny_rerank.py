"""Tiny random rerankers: cross-encoders with their classifiers, a decoder that says yes or no, and pairs to score."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import tiny_catalogue

TEXTS_OF = Path(__file__).resolve().parent.parent / "golden" / "text"
QUERIES = ["the cat sat", "Hello, WORLD! 123"]
DOCUMENTS = ["a", "the quick brown fox jumps over the lazy dog", "one two three", "the cat sat on the cat " * 9]
PAIRS = [(query, document) for query in QUERIES for document in DOCUMENTS]

BERT = {**tiny_catalogue.BERT, "architectures": ["BertForSequenceClassification"]}
XLMR = {**tiny_catalogue.XLMR, "architectures": ["XLMRobertaForSequenceClassification"]}
MODERN = {**tiny_catalogue.MODERNBERT, "architectures": ["ModernBertForSequenceClassification"]}
DISTIL = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForSequenceClassification"],
    "vocab_size": 228,
    "dim": 36,
    "hidden_dim": 80,
    "n_layers": 2,
    "n_heads": 3,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
IDENTITY = "torch.nn.modules.linear.Identity"
ONE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
THREE = {
    "id2label": {"0": "against", "1": "for", "2": "neither"},
    "label2id": {"against": 0, "for": 1, "neither": 2},
}
CROSS: dict[str, tuple[dict[str, Any], str]] = {
    "bert": ({**BERT, **ONE}, "word_piece"),
    "bert-identity": ({**BERT, **ONE, "sentence_transformers": {"activation_fn": IDENTITY}}, "word_piece"),
    "bert-old-identity": ({**BERT, **ONE, "sbert_ce_default_activation_function": IDENTITY}, "word_piece"),
    "bert-three": ({**BERT, **THREE}, "word_piece"),
    "bert-several": ({**BERT, **THREE, "problem_type": "multi_label_classification"}, "word_piece"),
    "bert-numbers": ({**BERT, **THREE, "problem_type": "regression"}, "word_piece"),
    "xlm_roberta-three": ({**XLMR, **THREE}, "unigram"),
    "distilbert-three": ({**DISTIL, **THREE}, "word_piece"),
    "modernbert-three": ({**MODERN, **THREE, "problem_type": "single_label_classification"}, "gpt2"),
    "xlm_roberta": ({**XLMR, **ONE}, "unigram"),
    "modernbert": ({**MODERN, **ONE}, "gpt2"),
    "modernbert-mean": ({**MODERN, **ONE, "classifier_pooling": "mean"}, "gpt2"),
}
LABELLED = [name for name, (cfg, _) in CROSS.items() if len(cfg["id2label"]) > 1]  # classifiers of several labels
QWEN3 = {**tiny_catalogue.QWEN3, "vocab_size": 460}
EXTRA = {"<|im_start|>": True, "<|im_end|>": True, "</think>": False, "yes": False, "no": False}  # whether special


def write_cross(folder: Path, name: str) -> Path:
    """The folder of a cross-encoder."""
    from weft.weights import write_safetensors

    cfg, tokenizer = CROSS[name]
    layout = tiny_catalogue.Layout(cfg, tokenizer, "cls")
    tiny_catalogue.write_layout(folder, layout)
    for beside in ("modules.json", "1_Pooling/config.json"):
        (folder / beside).unlink()
    write_safetensors(folder / "model.safetensors", classifier_weights(cfg))
    return folder


def classifier_weights(cfg: dict[str, Any]) -> dict[str, np.ndarray]:
    """The trunk below its prefix, and the classifier beside it."""
    hidden, labels = cfg.get("hidden_size") or cfg["dim"], len(cfg["id2label"])
    prefix = {"bert": "bert.", "xlm-roberta": "roberta.", "modernbert": "model.", "distilbert": "distilbert."}[
        cfg["model_type"]
    ]
    made = {prefix + name: value for name, value in tiny.weights(cfg).items()}
    shapes: dict[str, tuple[int, ...]] = {
        "bert": {"bert.pooler.dense": (hidden, hidden), "classifier": (labels, hidden)},
        "xlm-roberta": {"classifier.dense": (hidden, hidden), "classifier.out_proj": (labels, hidden)},
        "modernbert": {"head.dense": (hidden, hidden), "classifier": (labels, hidden)},
        "distilbert": {"pre_classifier": (hidden, hidden), "classifier": (labels, hidden)},
    }[cfg["model_type"]]
    for seed, (name, shape) in enumerate(shapes.items(), 700):
        values = tiny.uniform(seed, int(np.prod(shape))).reshape(shape)
        made[f"{name}.weight"] = values * np.float32(4 / np.sqrt(shape[1]))
        if name != "head.dense":
            made[f"{name}.bias"] = tiny.uniform(seed + 50, shape[0]) * np.float32(0.2)
    if cfg["model_type"] == "modernbert":
        made["head.norm.weight"] = 1 + tiny.uniform(790, hidden) * np.float32(0.1)
    return made


def write_decoder(folder: Path) -> Path:
    """The folder of a generator, laid out as Qwen3-Reranker: the head is the embedding."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny.write_folder(folder, QWEN3)
    tokenizer = json.loads((TEXTS_OF / "llama3.json").read_text())["tokenizer"]
    tokenizer = json.loads(json.dumps(tokenizer).replace(r"\\p{N}{1,3}", r"\\p{N}"))
    start = 1 + max(token["id"] for token in tokenizer["added_tokens"])
    flags = {name: False for name in ("single_word", "lstrip", "rstrip", "normalized")}
    tokenizer["added_tokens"] += [
        {"id": id, "content": token, "special": special, **flags}
        for id, (token, special) in enumerate(EXTRA.items(), start)
    ]
    tokenizer["post_processor"] = None
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "<|im_end|>"}))
    return folder
