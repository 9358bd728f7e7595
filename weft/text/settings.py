"""Reads the JSON files of a tokenizer strictly and within limits, and the settings in two of them:
tokenizer_config.json and special_tokens_map.json."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from weft._core import text as _native
from weft.errors import FormatError

SIDE_FILE_LIMIT = 1 << 20  # bytes of special_tokens_map.json and added_tokens.json; in practice some kilobytes
CONFIG_LIMIT = 2 << 20  # Gemma 3 lists 6,242 tokens in 1.2 MB
CONFIG = "tokenizer_config.json"
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_MAX_VALUES = 1 << 17  # of a side file; Python needs up to 200 bytes for one
# The normaliser and the pre-tokenizer in tokenizer.json, if they are objects without objects inside.
_NORMALIZER = re.compile(rb'"normalizer"\s*:\s*(\{[^{}]*"BertNormalizer"[^{}]*\})')
_CUT = re.compile(rb'"pre_tokenizer"\s*:\s*(\{[^{}]*"ByteLevel"[^{}]*\})')
_SIDE_FILES = {"special_tokens_map.json": SIDE_FILE_LIMIT, CONFIG: CONFIG_LIMIT}


def read(path: Path, limit: int) -> bytes:
    """The bytes of a file; FormatError if there are more than `limit`."""
    size = path.stat().st_size
    if size > limit:
        raise FormatError(path.name, f"the file is too large: {size} bytes", advice=f"the limit is {limit}")
    return path.read_bytes()


def json_object(content: bytes, name: str, max_values: int | None = _MAX_VALUES) -> dict[str, Any]:
    """The object in the file `name`; no key twice, no NaN, no lone surrogate, no deep nesting, at most `max_values`."""
    values = sum(map(content.count, (b",", b"[", b"{")))  # an upper bound
    if max_values is not None and values > max_values:
        what = f"the document holds too many values: about {values}"
        raise FormatError(name, what, advice=f"the limit is {max_values}")
    _native.check_json(content, name)
    value = json.loads(content)
    if not isinstance(value, dict):
        raise FormatError(name, "the document is not an object", given=value)
    return value


def wrong(file: str, place: str, value: Any, wanted: str) -> NoReturn:
    """Raise FormatError: the value at `place` in `file` must be `wanted`."""
    raise FormatError(file, f"must be {wanted}", field=place, given=value)


def settings_beside(path: Path) -> dict[str, Any]:
    """The tokens of special_tokens_map.json, overridden by tokenizer_config.json; empty without either."""
    settings: dict[str, Any] = {}
    for name, limit in _SIDE_FILES.items():
        file = path.with_name(name)
        if not file.is_file():
            continue
        content = json_object(read(file, limit), name)
        for token in NAMES:
            _check_token(content.get(f"{token}_token"), f"{token}_token", name)
        for at, token in enumerate(_special_list(content.get("additional_special_tokens"), name)):
            _check_token(token, f"additional_special_tokens[{at}]", name)
        known = content if name == CONFIG else [key for key in content if key.endswith(("_token", "_tokens"))]
        settings.update({key: content[key] for key in known if content[key] is not None})
    return settings


def _special_list(value: Any, file: str) -> list[Any]:
    if not isinstance(value, list | None):
        wrong(file, "additional_special_tokens", value, "a list of tokens")
    return value or []


def _check_token(value: Any, place: str, file: str) -> None:
    """A special token is written as a string or as an object with a `content`."""
    content = value.get("content", False) if isinstance(value, dict) else value
    if not isinstance(content, str | None):
        wrong(file, place, value, "a token, or an object with a token as its content")


def token_text(value: Any) -> Any:
    """The text of a special token out of `settings_beside`; for any other setting, its value."""
    return value.get("content") if isinstance(value, dict) else value


def named(settings: Mapping[str, Any], name: str) -> str | None:
    """The text of the token `name` (bos, eos, ...)."""
    return token_text(settings.get(f"{name}_token"))


def flag(settings: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    """A setting of tokenizer_config.json that is true or false."""
    value = settings.get(name, otherwise)
    if not isinstance(value, bool):
        wrong(CONFIG, name, value, "true or false")
    return value


def class_of(settings: Mapping[str, Any]) -> str:
    """The tokenizer's class in transformers, "" where the files do not say."""
    return str(settings.get("tokenizer_class", "")).removesuffix("Fast")


def with_settings(content: bytes, settings: Mapping[str, Any]) -> bytes:
    """A tokenizer.json with the settings of its tokenizer_config.json: transformers' classes for BERT and RoBERTa
    follow those, and their own defaults for settings that are missing."""
    kind = class_of(settings)
    if kind in ("BertTokenizer", "MPNetTokenizer") or (
        not kind and "do_lower_case" in settings
    ):  # older files have no class
        accents = None if settings.get("strip_accents") is None else flag(settings, "strip_accents", True)
        wanted = {
            "lowercase": flag(settings, "do_lower_case", True),
            "strip_accents": accents,
            "handle_chinese_chars": flag(settings, "tokenize_chinese_chars", True),
        }
        return _changed(content, _NORMALIZER, wanted)
    if kind == "RobertaTokenizer":
        return _changed(content, _CUT, {"add_prefix_space": flag(settings, "add_prefix_space", False)})
    return content


def _changed(content: bytes, place: re.Pattern[bytes], wanted: Mapping[str, Any]) -> bytes:
    """The document with the values of `wanted` in the object at `place`."""
    found = place.search(content)
    if found is None:
        return content
    try:
        part = json.loads(found[1])
    except ValueError:  # the reader of the whole document will raise
        return content
    if all(part.get(name) == value for name, value in wanted.items()):
        return content
    return content[: found.start(1)] + json.dumps({**part, **wanted}).encode() + content[found.end(1) :]
