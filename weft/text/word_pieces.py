"""Turns MPNet's vocab.txt into a tokenizer.json: BERT's words, RoBERTa's special tokens around them."""

import json
from collections.abc import Mapping
from typing import Any

from weft.errors import FormatError
from weft.text.settings import CONFIG, flag, named

_DEFAULTS = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "[UNK]", "pad": "<pad>", "mask": "<mask>"}


def names_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens of the class, overridden by the configuration's."""
    return {name: named(settings, name) or default for name, default in _DEFAULTS.items()}


def tokenizer_json(vocab: bytes, settings: Mapping[str, Any]) -> bytes:
    """The same tokenizer as one file."""
    try:
        lines = vocab.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError("vocab.txt", f"malformed UTF-8: at byte {error.start}") from None
    ids = {line.removesuffix("\r"): id for id, line in enumerate(lines)}
    names = names_of(settings)
    for name in ("unk", "cls", "sep"):
        if names[name] not in ids:
            what, advice = f"the {name} token {names[name]!r:.60} is missing", f"name it as {name}_token in {CONFIG}"
            raise FormatError("vocab.txt", what, advice=advice)
    added = sorted({token: ids[token] for token in names.values() if token in ids}.items(), key=lambda pair: pair[1])
    pairs = {name: [names[name], ids[names[name]]] for name in ("sep", "cls")}
    accents = None if settings.get("strip_accents") is None else flag(settings, "strip_accents", True)
    content = {
        "added_tokens": [
            {"content": token, "id": id, "special": True, "normalized": False, "lstrip": token == names["mask"]}
            for token, id in added
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": flag(settings, "tokenize_chinese_chars", True),
            "strip_accents": accents,
            "lowercase": flag(settings, "do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False, **pairs},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": names["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }
    return json.dumps(content, ensure_ascii=False).encode()
