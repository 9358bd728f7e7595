"""vocab.json and merges.txt, as GPT-2, RoBERTa and Qwen2 were published, put together as a tokenizer.json.

The two files hold no rules: those follow from `tokenizer_class` in tokenizer_config.json (GPT-2's where it is silent).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.errors import FormatError, UnsupportedError

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
# The special tokens of each class where the configuration names none.
_SPECIAL = {
    "GPT2": {name: "<|endoftext|>" for name in ("bos", "eos", "unk")},
    "Qwen2": {"eos": "<|endoftext|>", "pad": "<|endoftext|>"},
    "Roberta": {
        "bos": "<s>",
        "eos": "</s>",
        "sep": "</s>",
        "cls": "<s>",
        "unk": "<unk>",
        "pad": "<pad>",
        "mask": "<mask>",
    },
}


def family(settings: Mapping[str, Any]) -> str:
    """GPT2, Qwen2 or Roberta; UnsupportedError for a class with other rules."""
    name = str(settings.get("tokenizer_class", "GPT2Tokenizer")).removesuffix("Fast").removesuffix("Tokenizer")
    if name not in _SPECIAL:
        raise UnsupportedError(
            f"[tokenizer] weft does not support vocab.json and merges.txt of class {name}Tokenizer: it reads "
            + ", ".join(f"{known}Tokenizer" for known in _SPECIAL)
        )
    return name


def special_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """bos, eos, ... of the class, overridden by the configuration's strings."""
    names = dict(_SPECIAL[family(settings)])
    for key, value in settings.items():
        token = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(token, str):
            names[key.removesuffix("_token")] = token
    return names


def tokenizer_json(vocab: bytes, merges: bytes, added: bytes | None, settings: Mapping[str, Any]) -> bytes:
    """The same tokenizer as one file; `added` is added_tokens.json where there is one."""
    kind, names = family(settings), special_names(settings)
    ids = _object(vocab, "vocab.json")
    more = _object(added, "added_tokens.json") if added is not None else {}
    split: dict[str, Any] = {
        "type": "ByteLevel",
        "add_prefix_space": bool(settings.get("add_prefix_space", False)),
        "trim_offsets": True,
        "use_regex": True,
    }
    if kind == "Qwen2":
        cut = {"type": "Split", "pattern": {"Regex": _QWEN2}, "behavior": "Isolated", "invert": False}
        split = {"type": "Sequence", "pretokenizers": [cut, _BYTES]}
    processor = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    tokens = _added_tokens(ids, more, names, settings)
    if kind == "Roberta":
        pairs = {key: [names[key], {**ids, **more}.get(names[key])] for key in ("sep", "cls")}
        processor = {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False, **pairs}
    content = {
        "added_tokens": tokens,
        "normalizer": {"type": "NFC"} if kind == "Qwen2" else None,
        "pre_tokenizer": split,
        "post_processor": processor,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": _merges(merges)},
    }
    return json.dumps(content, ensure_ascii=False).encode()


def _object(content: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"[{name}] malformed JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"[{name}] not an object: {type(value).__name__}")
    return value


def _merges(content: bytes) -> list[list[str]]:
    try:
        lines = content.decode().split("\n")
    except UnicodeError as error:
        raise FormatError(f"[merges.txt] not UTF-8: {error}") from error
    if lines and lines[0].startswith("#version"):
        del lines[0]
    pairs = [line.rstrip("\r").split(" ") for line in lines if line.strip("\r")]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise FormatError(f"[merges.txt] a line that is not two tokens: {' '.join(wrong)!r:.80}")
    return pairs


def _added_tokens(
    ids: Mapping[str, Any], more: Mapping[str, Any], names: Mapping[str, str], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Those of `added_tokens_decoder`; without it, those of added_tokens.json and the named special tokens."""
    listed = settings.get("added_tokens_decoder")
    special = {*names.values(), *_strings(settings.get("additional_special_tokens"))}
    if isinstance(listed, dict):
        return [{**token, "id": int(id)} for id, token in listed.items() if isinstance(token, dict)]
    found = {token: id for token, id in {**ids, **more}.items() if token in special or token in more}
    return [
        {"content": token, "id": id, "special": token in special, "normalized": False, "lstrip": token == "<mask>"}
        for token, id in found.items()
    ]


def _strings(value: Any) -> list[str]:
    tokens = value if isinstance(value, list) else []
    return [token.get("content", "") if isinstance(token, dict) else str(token) for token in tokens]


def files_beside(folder: Path) -> tuple[Path, Path, Path]:
    """vocab.json, merges.txt and added_tokens.json of a folder, whether they exist or not."""
    return folder / "vocab.json", folder / "merges.txt", folder / "added_tokens.json"
