"""Tokenizers: text to ids and back. WordPiece, byte-level BPE and SentencePiece, native (csrc/text) behind this class.

A special token written in a text is text: only `parse_special=True` turns it into its id, for text that weft or the
caller wrote, never for what a user typed. Added tokens that are not flagged special are found either way.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weft._core import text as _native
from weft.errors import FormatError, InputError, NotFoundError
from weft.text.gguf_vocab import native_arguments, special_names

_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_SIDE_FILE_LIMIT = 8 << 20
_TOKENIZER_LIMIT = 256 << 20


class Stream:
    """Decodes one id at a time and never emits half a character: the pieces joined are `decode` of all ids."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def add(self, id: int) -> str:
        """The text that is complete now; empty when the id ends inside a character."""
        return self._native.add(id)

    def finish(self) -> str:
        """What is left, an unfinished character as U+FFFD; the stream may be used again afterwards."""
        return self._native.finish()


class Tokenizer:
    """One model's tokenizer; immutable, and safe to use from several threads.

    `bos_id`, `eos_id`, `unk_id`, `sep_id`, `pad_id`, `cls_id` and `mask_id` are None where the files name none.
    """

    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    sep_id: int | None
    pad_id: int | None
    cls_id: int | None
    mask_id: int | None

    def __init__(self, native: Any, named: Mapping[str, int | None]) -> None:
        self._native = native
        for name in _NAMES:
            setattr(self, f"{name}_id", named.get(name))

    @classmethod
    def from_file(cls, path: str | Path) -> "Tokenizer":
        """From a tokenizer.json, a vocab.txt, a SentencePiece .model, or a folder with one of them (the first wins).

        tokenizer_config.json and special_tokens_map.json beside it name the special tokens; for vocab.txt the former
        also says how to normalise, for a .model whether a text gets bos (it does where nothing is said) and eos.
        """
        path = Path(path)
        if path.is_dir():
            path = _file_in(path)
        if not path.is_file():
            raise NotFoundError(
                f"[tokenizer] no such file: {path.name}; give a tokenizer.json, vocab.txt, tokenizer.model or a folder"
            )
        settings = _settings_beside(path)
        if path.suffix == ".txt":
            native = _from_vocab(path, settings)
        elif path.suffix == ".model":
            add_bos, add_eos = _flag(settings, "add_bos_token", True), _flag(settings, "add_eos_token", False)
            native = _native.Tokenizer.from_sentencepiece(_read(path, _TOKENIZER_LIMIT), add_bos, add_eos)
        else:
            native = _native.Tokenizer.from_json(_read(path, _TOKENIZER_LIMIT), path.name)
        tokens = {name: _named(settings, name) for name in _NAMES}
        return cls(native, {name: native.id(token) for name, token in tokens.items() if token is not None})

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """From the `tokenizer.ggml.*` keys of a GGUF file.

        String arrays are lists of str, or pairs of arrays (bytes uint8 [size], offsets uint64 [count + 1]).
        """
        native = _native.Tokenizer.from_gguf(*native_arguments(metadata))
        return cls(native, special_names(metadata, native.vocab_size))

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, parse_added: bool = True
    ) -> list[int]:
        """The ids of `text`, with the model's special tokens around them unless `add_special` is False.

        `parse_added=False` finds no added token at all, special or not.
        """
        return self._native.encode(text, add_special, parse_special, parse_added)

    def encode_pair(
        self, first: str, second: str, *, add_special: bool = True, parse_special: bool = False
    ) -> tuple[list[int], list[int]]:
        """Ids of two texts joined as the model wants them, and the token type of each id."""
        return self._native.encode_pair(first, second, add_special, parse_special)

    def encode_batch(
        self, texts: Iterable[str], *, add_special: bool = True, parse_special: bool = False, threads: int = 1
    ) -> list[npt.NDArray[np.int32]]:
        """One int32 array per text, computed by at most `threads` threads without the GIL."""
        if not 1 <= threads <= 256:
            raise InputError(f"[encode_batch] threads out of range: {threads}; give 1 to 256")
        return self._native.encode_batch(list(texts), add_special, parse_special, threads)

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        try:
            array = np.ascontiguousarray(ids, dtype=np.int32)
        except (OverflowError, TypeError, ValueError) as error:
            raise InputError(f"[decode] ids are not a list of integers: {error}") from error
        if array.ndim != 1:
            raise InputError(f"[decode] ids have shape {array.shape}; give one list of integers")
        return self._native.decode(array, skip_special)

    def stream(self, *, skip_special: bool = True) -> Stream:
        """A decoder that takes one id at a time."""
        return Stream(self._native.stream(skip_special))

    @property
    def vocab_size(self) -> int:
        """One past the largest id."""
        return self._native.vocab_size

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens flagged special."""
        return frozenset(self._native.special_ids())

    @property
    def added_tokens(self) -> list[tuple[str, int, bool]]:
        """(text, id, special) of every added token."""
        return self._native.added_tokens()

    def token(self, id: int) -> str | None:
        """The token as the vocabulary writes it; None for an id without one."""
        return self._native.token(id)

    def id(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it."""
        return self._native.id(token)


def _file_in(folder: Path) -> Path:
    for name in ("tokenizer.json", "vocab.txt", "tokenizer.model"):
        if (folder / name).is_file():
            return folder / name
    raise NotFoundError(f"[tokenizer] no tokenizer.json, vocab.txt or tokenizer.model in the folder: {folder.name}")


def _read(path: Path, limit: int) -> bytes:
    size = path.stat().st_size
    if size > limit:
        raise FormatError(f"[{path.name}] the file is too large: {size} bytes; the limit is {limit}")
    return path.read_bytes()


def _settings_beside(path: Path) -> dict[str, Any]:
    """special_tokens_map.json, overridden by tokenizer_config.json; empty where neither exists."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = path.with_name(name)
        if not file.is_file():
            continue
        raw = _read(file, _SIDE_FILE_LIMIT)
        _native.check_json(raw, name)  # stricter than json: no key twice, no NaN, no lone surrogate, no deep nesting
        content = json.loads(raw)
        if not isinstance(content, dict):
            raise FormatError(f"[{name}] not an object: {type(content).__name__}")
        settings.update({key: value for key, value in content.items() if value is not None})
    return settings


def _named(settings: Mapping[str, Any], name: str) -> str | None:
    """The text of a special token, which is written as a string or as an object with a `content`."""
    token = settings.get(f"{name}_token")
    if isinstance(token, dict):
        token = token.get("content", False)
    if not isinstance(token, str | None):
        raise FormatError(
            f"[tokenizer_config.json] {name}_token is neither a token nor an object with one: {token!r:.80}"
        )
    return token


def _flag(settings: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    value = settings.get(name, otherwise)
    if not isinstance(value, bool):
        raise FormatError(f"[tokenizer_config.json] {name} is neither true nor false: {value!r:.80}")
    return value


def _from_vocab(path: Path, settings: Mapping[str, Any]) -> Any:
    text = _read(path, _TOKENIZER_LIMIT)
    names = {
        key: _named(settings, key) or default
        for key, default in [("unk", "[UNK]"), ("cls", "[CLS]"), ("sep", "[SEP]"), ("pad", "[PAD]"), ("mask", "[MASK]")]
    }
    lines = set(text.split(b"\n"))
    special = [token for token in names.values() if token.encode() in lines or token.encode() + b"\r" in lines]
    lower, cjk = _flag(settings, "do_lower_case", True), _flag(settings, "tokenize_chinese_chars", True)
    strip = _flag(settings, "strip_accents", lower)
    return _native.Tokenizer.from_vocab(text, lower, strip, cjk, names["unk"], names["cls"], names["sep"], special)
