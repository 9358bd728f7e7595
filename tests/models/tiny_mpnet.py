"""A tiny folder like all-mpnet-base-v2's: MPNet, mean pooling, a norm; its tokenizer as either kind of file."""

import json
from pathlib import Path

import tiny

WORDS = Path(__file__).resolve().parent.parent / "golden" / "text" / "word_piece.json"
TEXTS = [
    "the cat sat",
    "",
    "a <mask> b</s> <s>[UNK]",
    "Hello, WORLD! 123",
    "ΟΔΟΣ Ès Éa 中a 日本語",
    "the quick brown fox " * 50,
]
PAIRS = [("the river", "ran on"), ("", "x"), ("a word", "b c")]
FILES = ("tokenizer.json", "vocab.txt")
NAMES = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "[UNK]", "pad": "<pad>", "mask": "<mask>"}


def tokens() -> list[str]:
    """MPNet's special tokens around the words of a small WordPiece vocabulary."""
    vocab: dict[str, int] = json.loads(WORDS.read_text())["tokenizer"]["model"]["vocab"]
    words = [token for token, _ in sorted(vocab.items(), key=lambda pair: pair[1]) if not token.startswith("[")]
    return ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *words, "<mask>"]


def write_mpnet_folder(folder: Path, file: str = "tokenizer.json") -> Path:
    """The folder of sentence-transformers, with a tokenizer.json or a vocab.txt."""
    words = tokens()
    tiny.write_folder(folder, {**tiny.CONFIGS["mpnet"], "vocab_size": len(words)})
    settings = {f"{name}_token": token for name, token in NAMES.items()}
    settings |= {"tokenizer_class": "MPNetTokenizer", "model_max_length": 512, "do_lower_case": True}
    _write(folder / "tokenizer_config.json", settings)
    if file == "vocab.txt":
        (folder / file).write_text("".join(f"{token}\n" for token in words), encoding="utf-8")
    else:
        _write(folder / file, tokenizer_json(words))
    module = "sentence_transformers.models"
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"{module}.{kind}"} for i, (path, kind) in enumerate(kinds)
    ]
    _write(folder / "modules.json", entries)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 384, "do_lower_case": False})
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True})
    (folder / "2_Normalize").mkdir(exist_ok=True)
    return folder


def tokenizer_json(words: list[str]) -> dict[str, object]:
    """As MPNet's own file: BERT's normaliser and words, RoBERTa's processor."""
    ids = {token: id for id, token in enumerate(words)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": ids[token],
                "content": token,
                "single_word": False,
                "lstrip": token == "<mask>",
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["</s>", 2],
            "cls": ["<s>", 0],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
