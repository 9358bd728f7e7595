"""Tokenizers that are byte strings by rank: tiktoken's files, Llama 3's tokenizer.model, Mistral's tekken.json.

Such a file says nothing about special tokens or how a text is cut (Tekken's does): that is known here by name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.errors import FormatError, InputError

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
_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")


@dataclass(frozen=True)
class Encoding:
    """What a file of ranks leaves out. `names` maps bos, eos and the like to special tokens."""

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
    """By tiktoken's name or the model family's; InputError for one that weft does not know."""
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
        raise InputError(
            f"[tiktoken] weft does not know this encoding: {name!r}; give a pattern and special tokens, or one of "
            + ", ".join(known)
        )
    return known[name]()


def is_rank_file(head: bytes) -> bool:
    """Whether a file that starts so is tiktoken's: Llama 3's is called tokenizer.model."""
    return _LINE.match(head) is not None


def read_tekken(content: bytes) -> tuple[bytes, Encoding]:
    """Mistral's tekken.json as tiktoken's lines, and what goes with them."""
    try:
        root = json.loads(content)
        config = root["config"]
        count, reserved = int(config["default_vocab_size"]), int(config["default_num_special_tokens"])
        lines = [
            f"{entry['token_bytes']} {entry['rank']}" for entry in root["vocab"] if entry["rank"] < count - reserved
        ]
        listed = root.get("special_tokens")
        named = _tekken_special(listed, reserved)
        return "\n".join(lines).encode(), Encoding(
            config["pattern"], named, {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, bos=True, first_id=reserved
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"[tekken.json] not Mistral's tokenizer: {error!r}") from error


def _tekken_special(listed: Any, reserved: int) -> dict[str, int]:
    """Special tokens have the first ids; those without a name of their own are numbered."""
    if not 0 <= reserved <= 65_536:
        raise ValueError(f"default_num_special_tokens out of range: {reserved}")
    tokens = {i: token for i, token in enumerate(_TEKKEN_SPECIAL)}
    if listed is not None:
        tokens = {int(entry["rank"]): str(entry["token_str"]) for entry in listed}
    return {tokens.get(i, f"<SPECIAL_{i}>"): i for i in range(reserved)}
