"""Turns vocab.json and merges.txt, as GPT-2, RoBERTa and Qwen2 were published, into a tokenizer.json.

The two files hold no rules: those follow from `tokenizer_class` in tokenizer_config.json (GPT-2's if it is missing).
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.errors import FormatError, UnsupportedError
from weft.text.settings import CONFIG, flag, json_object, token_text, wrong

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ID = re.compile("[0-9]{1,9}", re.ASCII)
_FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
# The default special tokens of each class.
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
    kind = settings.get("tokenizer_class", "GPT2Tokenizer")
    if not isinstance(kind, str):
        wrong(CONFIG, "tokenizer_class", kind, "the name of a class")
    name = kind.removesuffix("Fast").removesuffix("Tokenizer")
    if name not in _SPECIAL:
        able = ", ".join(f"{known}Tokenizer" for known in _SPECIAL)
        what = f"is not supported with vocab.json and merges.txt; weft reads {able}"
        raise UnsupportedError(CONFIG, what, field="tokenizer_class", given=kind)
    return name


def special_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """bos, eos, ... of the class, overridden by the configuration's."""
    names = dict(_SPECIAL[family(settings)])
    for key, value in settings.items():
        token = token_text(value)
        if key.endswith("_token") and isinstance(token, str):
            names[key.removesuffix("_token")] = token
    return names


def tokenizer_json(vocab: bytes, merges: bytes, added: bytes | None, settings: Mapping[str, Any]) -> bytes:
    """The same tokenizer as one file; `added` is added_tokens.json, if there is one."""
    kind, names = family(settings), special_names(settings)
    ids = _ids(vocab, "vocab.json")
    more = _ids(added, "added_tokens.json") if added is not None else {}
    split: dict[str, Any] = {
        "type": "ByteLevel",
        "add_prefix_space": flag(settings, "add_prefix_space", False),
        "trim_offsets": True,
        "use_regex": True,
    }
    if kind == "Qwen2":
        cut = {"type": "Split", "pattern": {"Regex": _QWEN2}, "behavior": "Isolated", "invert": False}
        split = {"type": "Sequence", "pretokenizers": [cut, _BYTES]}
    processor = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    tokens = _added_tokens(ids, more, names, settings)
    if kind == "Roberta":
        pairs = {key: [names[key], _id({**ids, **more}, names[key], key)] for key in ("sep", "cls")}
        processor = {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False, **pairs}
    content = {
        "added_tokens": tokens,
        "normalizer": {"type": "NFC"} if kind == "Qwen2" else None,
        "pre_tokenizer": split,
        "post_processor": processor,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": _merges(merges, ids)},
    }
    return json.dumps(content, ensure_ascii=False).encode()


def _ids(content: bytes, file: str) -> dict[str, int]:
    """Ids by token; only vocab.json may hold any number of them."""
    ids = json_object(content, file, None) if file == "vocab.json" else json_object(content, file)
    for token, id in ids.items():
        if type(id) is not int or id < 0:  # True is an int to isinstance
            wrong(file, f"the id of {token!r:.60}", id, "a number")
    return ids


def _id(ids: Mapping[str, int], token: str, name: str) -> int:
    if token not in ids:
        advice = f"name a token of vocab.json as {name}_token in {CONFIG}"
        raise FormatError("vocab.json", f"the {name} token {token!r:.60} is missing", advice=advice)
    return ids[token]


def _merges(content: bytes, ids: Mapping[str, int]) -> list[list[str]]:
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise FormatError("merges.txt", f"malformed UTF-8 at byte {error.start}") from None
    pairs = []
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(token in ids for token in (*pair, "".join(pair))):
            wrong("merges.txt", f"line {number}", line, "two tokens of vocab.json that together are a third")
        pairs.append(pair)
    return pairs


def _added_tokens(
    ids: Mapping[str, int], more: Mapping[str, int], names: Mapping[str, str], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The tokens of `added_tokens_decoder`; without it, those of added_tokens.json and the named special tokens."""
    listed = settings.get("added_tokens_decoder")
    if listed is not None:
        return _listed_tokens(listed)
    others = (token_text(token) for token in settings.get("additional_special_tokens", ()))
    special = {*names.values(), *others}
    found = {token: id for token, id in {**ids, **more}.items() if token in special or token in more}
    return [
        {"content": token, "id": id, "special": token in special, "normalized": False, "lstrip": token == "<mask>"}
        for token, id in found.items()
    ]


def _listed_tokens(listed: Any) -> list[dict[str, Any]]:
    """The tokens of `added_tokens_decoder`, an object with one for each id."""
    place = "added_tokens_decoder"
    if not isinstance(listed, dict):
        wrong(CONFIG, place, listed, "an object of tokens by id")
    for id, token in listed.items():
        if not _ID.fullmatch(id):
            wrong(CONFIG, f"a key of {place}", id, "an id")
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            wrong(CONFIG, f"{place}.{id}", token, "an object with a content")
        for name in _FLAGS:
            if not isinstance(token.get(name), bool | None):
                wrong(CONFIG, f"{place}.{id}.{name}", token[name], "true or false")
    return [{**token, "id": int(id)} for id, token in listed.items()]


def files_beside(folder: Path) -> tuple[Path, Path, Path]:
    """vocab.json, merges.txt and added_tokens.json of a folder, whether they exist or not."""
    return folder / "vocab.json", folder / "merges.txt", folder / "added_tokens.json"
