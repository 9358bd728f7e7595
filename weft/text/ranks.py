"""Tokenizers that are byte strings by rank: tiktoken's files, Llama 3's tokenizer.model, Mistral's tekken.json.

Such a file (except tekken.json) has neither special tokens nor the rule for splitting a text: those are known by name.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from weft.errors import FormatError, InputError
from weft.frozen import frozen
from weft.text.settings import json_object, wrong

TEKKEN = "tekken.json"
_MAX_TOKENS = 1 << 22  # the core's limit
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIXES}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIXES}?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = (
    rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA3.replace("{1,3}", "")
_TEKKEN_SPECIAL = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")


@frozen
class Encoding:
    """What a file of ranks does not say. `names` maps bos, eos and others to special tokens."""

    pattern: str
    special: Mapping[str, int]
    names: Mapping[str, str] = field(default_factory=dict)
    bos: bool = False  # before each text
    nfc: bool = False
    first_id: int = 0  # of rank 0


def _llama3_special() -> dict[str, int]:
    named = {
        0: "<|begin_of_text|>",
        1: "<|end_of_text|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        9: "<|eot_id|>",
    }
    tokens = list(named.get(i, "") for i in range(256))
    reserved = iter(range(256))
    return {token or f"<|reserved_special_token_{next(reserved)}|>": 128000 + i for i, token in enumerate(tokens)}


def _qwen_special() -> dict[str, int]:
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    return {token: 151643 + i for i, token in enumerate(tokens)}


def encoding(name: str) -> Encoding:
    """The encoding by tiktoken's name or the model family's; InputError if weft does not know it."""
    end, fim = "<|endoftext|>", ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
    eos = {"eos": end}
    known = {
        "gpt2": lambda: Encoding(_GPT2, {end: 50256}, eos),
        "r50k_base": lambda: Encoding(_GPT2, {end: 50256}, eos),
        "p50k_base": lambda: Encoding(_GPT2, {end: 50256}, eos),
        "p50k_edit": lambda: Encoding(_GPT2, {end: 50256, **{t: 50281 + i for i, t in enumerate(fim)}}, eos),
        "cl100k_base": lambda: Encoding(
            _CL100K, {end: 100257, **{t: 100258 + i for i, t in enumerate(fim)}, "<|endofprompt|>": 100276}, eos
        ),
        "o200k_base": lambda: Encoding(_O200K, {end: 199999, "<|endofprompt|>": 200018}, eos),
        "llama3": lambda: Encoding(
            _LLAMA3, _llama3_special(), {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}, bos=True
        ),
        "qwen": lambda: Encoding(_QWEN, _qwen_special(), eos, nfc=True),
    }
    if name not in known:
        advice = f"give one of {', '.join(known)}, or a pattern and special tokens"
        raise InputError("tiktoken", "is not a known encoding", field="name", given=name, advice=advice)
    return known[name]()


def is_rank_file(head: bytes) -> bool:
    """Whether a file that starts with `head` is tiktoken's: Llama 3's is called tokenizer.model."""
    return _LINE.match(head) is not None


def read_tekken(content: bytes) -> tuple[bytes, Encoding]:
    """Mistral's tekken.json as tiktoken's lines, and their encoding."""
    root = json_object(content, TEKKEN, max_values=None)
    config = root.get("config")
    if not isinstance(config, dict):
        wrong(TEKKEN, "config", config, "an object")
    pattern = config.get("pattern")
    if not isinstance(pattern, str):
        wrong(TEKKEN, "config.pattern", pattern, "an expression")
    reserved = _count(config, "default_num_special_tokens", 65_536, "config")
    count = _count(config, "default_vocab_size", _MAX_TOKENS, "config") - reserved
    special = _tekken_special(root.get("special_tokens"), reserved)
    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
    return _tekken_lines(root.get("vocab"), count), Encoding(pattern, special, names, bos=True, first_id=reserved)


def _tekken_lines(vocab: Any, count: int) -> bytes:
    """The tokens with a rank below `count`; the file may hold more tokens than the model has."""
    lines = []
    for at, entry in enumerate(_objects(vocab, "vocab")):
        rank, token = _count(entry, "rank", _MAX_TOKENS, "vocab", at), entry.get("token_bytes")
        if not isinstance(token, str) or not _BASE64.fullmatch(token):
            wrong(TEKKEN, f"vocab[{at}].token_bytes", token, "base64")
        if rank < count:
            lines.append(f"{token} {rank}")
    return "\n".join(lines).encode()


def _tekken_special(listed: Any, reserved: int) -> dict[str, int]:
    """Ids by special token; they are the first `reserved` ids, and unnamed ones are called <SPECIAL_n>."""
    tokens = dict(enumerate(_TEKKEN_SPECIAL))
    if listed is not None:
        tokens = {}
        for at, entry in enumerate(_objects(listed, "special_tokens")):
            rank, token = _count(entry, "rank", _MAX_TOKENS, "special_tokens", at), entry.get("token_str")
            if not isinstance(token, str) or not token:
                wrong(TEKKEN, f"special_tokens[{at}].token_str", token, "a text")
            if rank in tokens:
                wrong(TEKKEN, f"special_tokens[{at}].rank", rank, "a rank that no other token has")
            tokens[rank] = token
    special = {tokens.get(i, f"<SPECIAL_{i}>"): i for i in range(reserved)}
    if len(special) != reserved or "<s>" not in special:
        what = "has a token twice" if len(special) != reserved else "has no <s>"
        raise FormatError(TEKKEN, f"{what} among the first {reserved}", field="special_tokens")
    return special


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        wrong(TEKKEN, name, value, "a list of objects")
    for at, entry in enumerate(value):
        if not isinstance(entry, dict):
            wrong(TEKKEN, f"{name}[{at}]", entry, "an object")
    return value


def _count(table: Mapping[str, Any], name: str, limit: int, place: str, at: int | None = None) -> int:
    value = table.get(name)
    if type(value) is not int or not 0 <= value <= limit:  # True is an int to isinstance
        wrong(TEKKEN, f"{place}{'' if at is None else f'[{at}]'}.{name}", value, f"a number up to {limit}")
    return value
