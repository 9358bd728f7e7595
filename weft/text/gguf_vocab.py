"""Reads the `tokenizer.ggml.*` metadata of a GGUF file into the arguments of the native tokenizer."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import MISSING, FormatError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PREFIX = "tokenizer.ggml."
IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # the format spells it so
    "pad": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
}
# What a WordPiece vocabulary needs, and where else it is found if its key is missing: llama.cpp takes bos for cls, and
# the ids of BERT's own vocabulary for the rest, which have these names in it.
_WORD_PIECE = {"cls": ("bos", "[CLS]"), "sep": (None, "[SEP]"), "unk": (None, "[UNK]")}
# Tokens for filling in the middle; older files use the second name.
_INFILL = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "pad": ("fim_pad_token_id",),
    "repo": ("fim_rep_token_id",),
    "file": ("fim_sep_token_id",),
}
_FLAGS = {
    "add_bos": "add_bos_token",
    "add_eos": "add_eos_token",
    "add_space": "add_space_prefix",
    "collapse": "remove_extra_whitespaces",
}

# Bytes, the offsets of the strings in them (one more than there are strings), and how many bytes of each to skip.
Strings = tuple[Any, Any, int]


def native_arguments(metadata: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments of the native constructor: names, tokens, merges, scores, types, a table of characters, and those
    numbers that the file has."""
    tokens = _strings(metadata, "tokens", required=True)
    merges = _strings(metadata, "merges", required=False)
    get = getattr(metadata, "compact", metadata.get)  # a reader's own, which needs no numpy
    scores = _floats(get(PREFIX + "scores", array("f")), "scores")
    types = _integers(get(PREFIX + "token_type", array("i")), "token_type")
    charsmap = _bytes(metadata.get(PREFIX + "precompiled_charsmap", b""), "precompiled_charsmap")
    numbers = named_ids(metadata)
    flags = {name: _flag(metadata[PREFIX + key], key) for name, key in _FLAGS.items() if PREFIX + key in metadata}
    names = _text(metadata, "model"), _text(metadata, "pre", "")
    return *names, *tokens, *merges, scores, types, charsmap, numbers | flags


def special_names(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, int | None]:
    """The ids of the named special tokens, checked to be inside the vocabulary."""
    named: dict[str, int | None] = {**named_ids(metadata)}
    for name, id in named.items():
        if id is not None and not 0 <= id < vocab_size:
            raise _wrong(IDS[name], f"must be one of the {vocab_size} ids of the vocabulary", id)
    return named


def infill_ids(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, int]:
    """The ids of the tokens for filling in the middle that the file states, by part: prefix, suffix, middle, ..."""
    stated = {name: next((k for k in keys if PREFIX + k in metadata), None) for name, keys in _INFILL.items()}
    return {name: _inside(metadata, key, vocab_size) for name, key in stated.items() if key is not None}


def _inside(metadata: Mapping[str, Any], key: str, vocab_size: int) -> int:
    """The id that a key states; it must be inside the vocabulary."""
    id = _integer(metadata[PREFIX + key], key)
    if not 0 <= id < vocab_size:
        raise _wrong(key, f"must be one of the {vocab_size} ids of the vocabulary", id)
    return id


def named_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """The ids of the special tokens that the file names, by `bos`, `cls` and so on.

    Those that a WordPiece vocabulary needs are there in any case: a file that lacks one, and the alternatives of
    _WORD_PIECE, is refused.
    """
    found = {name: _integer(metadata[PREFIX + key], key) for name, key in IDS.items() if PREFIX + key in metadata}
    if _text(metadata, "model") != "bert":
        return found
    for name, (other, token) in _WORD_PIECE.items():
        if name in found:
            continue
        id = found[other] if other in found else _id_of(metadata, token)
        if id is None:
            instead = f"{PREFIX}{IDS[other]} and a token {token}" if other else f"a token {token}"
            raise _wrong(IDS[name], f"is missing, and so is {instead}: texts cannot be tokenized")
        found[name] = id
    return found


def _id_of(metadata: Mapping[str, Any], token: str) -> int | None:
    """The id of a token of the vocabulary, looked for from the first on; None if it has no such token."""
    data, offsets, skip = _strings(metadata, "tokens", required=True)
    view, wanted = memoryview(data), token.encode()
    return next(
        (i for i in range(len(offsets) - 1) if view[int(offsets[i]) + skip : int(offsets[i + 1])] == wanted), None
    )


def _wrong(key: str, what: str, given: Any = MISSING) -> FormatError:
    return FormatError("gguf", what, field=PREFIX + key, given=given)


def _text(metadata: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = metadata.get(PREFIX + key, default)
    if not isinstance(value, str):
        raise _wrong(key, "must be a string", value)
    return value


def _integer(value: Any, key: str) -> int:
    number = _item(value)
    if type(number) is not int or not -(2**31) <= number < 2**31:
        raise _wrong(key, "must be the id of a token", value)
    return number


def _flag(value: Any, key: str) -> int:
    if type(_item(value)) is not bool:
        raise _wrong(key, "must be true or false", value)
    return int(value)


def _item(value: Any) -> Any:
    """A numpy scalar as a Python one; any other value unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _integers(value: Any, key: str) -> array[int] | npt.NDArray[np.int32]:
    if isinstance(value, array) and value.typecode == "i":
        return value
    import numpy as np

    try:
        values = np.asarray(value)
    except ValueError:  # lists of different lengths
        values = np.empty((), object)
    limits = np.iinfo(np.int32)
    whole = values.ndim == 1 and (values.size == 0 or values.dtype.kind in "iu")
    if not whole or (values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max):
        raise _wrong(key, "must be an array of 32-bit integers")
    return np.require(values, np.int32, ("C", "A"))  # aligned: an array inside a file may begin at any byte


def _bytes(value: Any, key: str) -> bytes | npt.NDArray[np.uint8]:
    if isinstance(value, bytes):
        return value
    import numpy as np

    numbers = np.asarray(_integers(value, key))  # files write it as int8 or uint8
    if numbers.size and not -128 <= int(numbers.min()) <= int(numbers.max()) <= 255:
        raise _wrong(key, f"must be an array of bytes, not of numbers from {numbers.min()} to {numbers.max()}")
    return numbers.astype(np.uint8)


def _floats(value: Any, key: str) -> array[float] | npt.NDArray[np.float32]:
    if isinstance(value, array) and value.typecode == "f":
        return value
    import numpy as np

    try:
        values = np.asarray(value)
    except ValueError:
        values = np.empty((), object)
    if values.ndim != 1 or (values.size and values.dtype.kind != "f"):
        raise _wrong(key, "must be an array of floats")
    with np.errstate(over="ignore"):  # numbers too large for f32 become infinite, which the core refuses
        return np.require(values, np.float32, ("C", "A"))


def _strings(metadata: Mapping[str, Any], key: str, *, required: bool) -> Strings:
    value: Any = metadata.get(PREFIX + key)
    if value is None:
        if required:
            raise _wrong(key, "is missing")
        value = []
    if hasattr(value, "raw"):  # a reader's own array of strings, each after its length
        return value.buffer, value.offsets, 8
    import numpy as np

    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], np.ndarray):
        data, offsets = value
        return np.ascontiguousarray(data, dtype=np.uint8), np.ascontiguousarray(offsets, dtype=np.uint64), 0
    if isinstance(value, str):
        raise _wrong(key, "must be a list of strings", value)
    try:
        parts = [text.encode() for text in value]
    except (AttributeError, TypeError, UnicodeError) as error:
        raise _wrong(key, f"must be a list of strings ({error})") from error
    offsets = np.zeros(len(parts) + 1, dtype=np.uint64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return b"".join(parts), offsets, 0
