"""Tiny random checkpoints laid out as the repositories of embedding models are: files, names, pooling, tokenizers."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tiny

TEXTS_OF = Path(__file__).resolve().parent.parent / "golden" / "text"
LONG = " ".join(["the quick brown fox jumps over the lazy dog", "Hello, WORLD! 123"] * 40)  # past most limits
TEXTS = ["the cat sat", "", "a", "Hello, WORLD! 123", "one two three and the lazy dog", LONG]
PROMPT = "search_query: the "  # of the layouts that pool without it

BERT = {**tiny.BERT, "vocab_size": 228, "hidden_size": 36, "num_attention_heads": 3, "max_position_embeddings": 512}
UNIGRAM = {**BERT, "vocab_size": 119}
XLMR = {**tiny.ROBERTA, "vocab_size": 119, "pad_token_id": 0, "max_position_embeddings": 514}
XLMR |= {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "hidden_size": 36, "num_attention_heads": 3}
QWEN3 = {**tiny.QWEN3, "vocab_size": 448, "tie_word_embeddings": True, "max_position_embeddings": 32768}
MODERNBERT = {**tiny.MODERNBERT, "vocab_size": 448}
NOMIC = {**tiny.NOMIC_BERT, "vocab_size": 228}
GEMMA = {**tiny.GEMMA3, "vocab_size": 448, "use_bidirectional_attention": True, "sliding_window": 20}


@dataclass(frozen=True)
class Layout:
    """A repository: config.json, a tokenizer of tests/golden/text, and what sentence-transformers reads beside it."""

    config: dict[str, Any]
    tokenizer: str
    pooling: str
    normalise: bool = True
    max_tokens: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    include_prompt: bool = True
    dense: tuple[int, ...] = ()


BGE = Layout(BERT, "word_piece", "cls", max_tokens=512)
QWEN = Layout(
    QWEN3,
    "llama3",
    "lasttoken",
    prompts={
        "query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
        "document": "",
    },
)
CATALOGUE = {
    "all-MiniLM-L6-v2": Layout(BERT, "word_piece", "mean", max_tokens=256),
    "bge-small-en-v1.5": BGE,
    "bge-base-en-v1.5": Layout({**BERT, "hidden_size": 48, "num_attention_heads": 4}, "word_piece", "cls"),
    "bge-large-en-v1.5": Layout({**BERT, "num_hidden_layers": 3}, "word_piece", "cls", max_tokens=512),
    "multilingual-e5-small": Layout(UNIGRAM, "unigram", "mean", max_tokens=512),
    "multilingual-e5-base": Layout(XLMR, "unigram", "mean", max_tokens=512),
    "paraphrase-multilingual-MiniLM-L12-v2": Layout(UNIGRAM, "unigram", "mean", normalise=False, max_tokens=128),
    "Qwen3-Embedding-0.6B": QWEN,
    "Qwen3-Embedding-4B": Layout({**QWEN3, "num_hidden_layers": 3}, "llama3", "lasttoken", prompts=QWEN.prompts),
}
NAMED = {"query": PROMPT, "document": "passage: "}
OTHERS = {
    **{
        f"pooled-{mode}": Layout(BERT, "word_piece", mode, normalise=False, prompts=NAMED)
        for mode in ("max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean")
    },
    **{
        f"without-prompt-{mode}": Layout(BERT, "word_piece", mode, False, prompts=NAMED, include_prompt=False)
        for mode in ("mean", "cls", "max", "lasttoken")
    },
    "decoder-mean": Layout(QWEN3, "llama3", "mean", prompts=NAMED),
    "decoder-mean-without-prompt": Layout(QWEN3, "llama3", "mean", prompts=NAMED, include_prompt=False),
    "modernbert": Layout(MODERNBERT, "gpt2", "mean", prompts=NAMED),
    "nomic_bert": Layout(NOMIC, "word_piece", "mean", prompts={"search_query": "search_query: "}),
    "embeddinggemma": Layout(GEMMA, "llama3", "mean", prompts=NAMED, dense=(80, 40)),
}


def write_layout(folder: Path, layout: Layout) -> Path:
    """The folder of a layout, with seeded weights."""
    from weft.weights import write_safetensors

    folder.mkdir(parents=True, exist_ok=True)
    cfg = layout.config
    decodes = cfg["architectures"][0].endswith("ForCausalLM")
    _write(folder / "config.json", cfg)
    tensors = tiny.weights(cfg)
    if decodes:  # saved without its head, as embedding models are
        tensors = {name.removeprefix("model."): value for name, value in tensors.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    _write_tokenizer(folder, layout, decodes)
    _write_modules(folder, layout)
    return folder


def _write_tokenizer(folder: Path, layout: Layout, decodes: bool) -> None:
    tokenizer = json.loads((TEXTS_OF / f"{layout.tokenizer}.json").read_text())["tokenizer"]
    settings: dict[str, Any] = {"model_max_length": layout.config["max_position_embeddings"]}
    if layout.tokenizer == "word_piece":
        names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
        settings |= {"tokenizer_class": "BertTokenizer", **names}
    elif layout.tokenizer == "unigram":
        names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    else:
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<s>"}
    if decodes:
        # Qwen's: each digit a word of its own, and the name of the token at the end
        written = json.dumps(tokenizer).replace(r"\\p{N}{1,3}", r"\\p{N}")
        tokenizer = json.loads(written.replace('"<|end|>"', '"<|endoftext|>"'))
        tokenizer["post_processor"] = ending_with(tokenizer, "<|endoftext|>")
        settings |= {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "bos_token": None}
        settings |= {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    _write(folder / "tokenizer.json", tokenizer)
    _write(folder / "tokenizer_config.json", settings)


def ending_with(tokenizer: dict[str, Any], token: str) -> dict[str, Any]:
    """The rule of tokenizer.json that puts a token behind every text."""
    (id,) = (added["id"] for added in tokenizer["added_tokens"] if added["content"] == token)
    text, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": token, "type_id": 0}}
    special = {token: {"id": token, "ids": [id], "tokens": [token]}}
    second = {"Sequence": {"id": "B", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [text, end],
        "pair": [text, end, second, end],
        "special_tokens": special,
    }


def _write_modules(folder: Path, layout: Layout) -> None:
    from weft.weights import write_safetensors

    config = layout.config
    hidden = next(config[name] for name in ("hidden_size", "n_embd", "dim") if name in config)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    pooling = {"word_embedding_dimension": hidden, "pooling_mode": layout.pooling}
    _write(folder / "1_Pooling" / "config.json", {**pooling, "include_prompt": layout.include_prompt})
    inputs = hidden
    for place, outputs in enumerate(layout.dense, 2):
        kinds.append((f"{place}_Dense", "Dense"))
        facts = {"in_features": inputs, "out_features": outputs, "bias": False}
        identity = "torch.nn.modules.linear.Identity"
        _write(folder / f"{place}_Dense" / "config.json", {**facts, "activation_function": identity})
        values = tiny.uniform(990 + place, outputs * inputs).reshape(outputs, inputs) * np.float32(0.3)
        write_safetensors(folder / f"{place}_Dense" / "model.safetensors", {"linear.weight": values})
        inputs = outputs
    if layout.normalise:
        kinds.append((f"{len(kinds)}_Normalize", "Normalize"))
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    _write(folder / "modules.json", rows)
    if layout.max_tokens is not None:
        limits = {"max_seq_length": layout.max_tokens, "do_lower_case": False}
        _write(folder / "sentence_bert_config.json", limits)
    if layout.prompts:
        extra = {"prompts": layout.prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
        _write(folder / "config_sentence_transformers.json", extra)


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
