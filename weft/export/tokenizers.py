"""A tokenizer as data: which native reader made it, its options, and the bytes that it read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError
from weft.text.words.making import recording

if TYPE_CHECKING:
    from weft.runtime import Checkpoint
    from weft.text import Tokenizer

FILE = "tokenizer.bin"
ALIGN = 16


class Parts:
    """Bytes one after another in one file."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.places: dict[str, dict[str, Any]] = {}

    def add(self, name: str, data: Any) -> None:
        self.data += bytes(-len(self.data) % ALIGN)
        raw = bytes(memoryview(data).cast("B")) if len(data) else b""
        self.places[name] = {"file": FILE, "offset": len(self.data), "bytes": len(raw)}
        self.data += raw


def described(checkpoint: Checkpoint) -> tuple[Tokenizer, dict[str, Any], bytes]:
    """The checkpoint's tokenizer, what the manifest says of it, and the content of its file."""
    with recording() as calls:
        tokenizer = checkpoint.tokenizer()
    kind, arguments = calls[-1]
    parts = Parts()
    about = _MAKERS[kind](parts, *arguments)
    return tokenizer, {**about, "parts": parts.places}, bytes(parts.data)


def _json(parts: Parts, content: bytes, _: str, around: tuple[str, str] | None) -> dict[str, Any]:
    parts.add("json", content)
    return {"kind": "json", "around": None if around is None else {"bos": around[0], "eos": around[1]}}


def _sentencepiece(parts: Parts, content: bytes, add_bos: bool, add_eos: bool) -> dict[str, Any]:
    parts.add("model", content)
    return {"kind": "sentencepiece", "add_bos": add_bos, "add_eos": add_eos}


def _vocab(
    parts: Parts, content: bytes, lower: bool, strip: bool, cjk: bool, unknown: str, first: str, last: str, special: Any
) -> dict[str, Any]:
    parts.add("vocab", content)
    rules = {"lower": lower, "strip_accents": strip, "space_cjk": cjk}
    return {"kind": "vocab", **rules, "unknown": unknown, "first": first, "separator": last, "special": list(special)}


def _tiktoken(
    parts: Parts, content: bytes, pattern: str, special: Any, first_id: int, bos: int, nfc: bool
) -> dict[str, Any]:
    parts.add("ranks", content)
    names = dict(special)
    if len(names) != len(special):
        raise UnsupportedError("export", "the tokenizer has two special tokens of one name")
    return {"kind": "tiktoken", "pattern": pattern, "special": names, "first_id": first_id, "bos": bos, "nfc": nfc}


def _gguf(parts: Parts, model: str, pre: str, *rest: Any) -> dict[str, Any]:
    import numpy as np

    *strings, scores, types, charsmap, numbers = rest
    for name, (data, offsets, skip) in (("token", strings[:3]), ("merge", strings[3:])):
        raw, places = bytes(memoryview(data).cast("B")), np.asarray(offsets, np.uint64).tolist()
        found = [raw[first + skip : end] for first, end in pairwise(places)]
        parts.add(f"{name}s", b"".join(found))
        parts.add(f"{name}_lengths", np.array([len(one) for one in found], np.uint32))
    parts.add("scores", np.asarray(scores, np.float32))
    parts.add("types", np.asarray(types, np.int32))
    parts.add("charsmap", charsmap)
    return {"kind": "gguf", "model": model, "pre": pre, "numbers": {name: int(id) for name, id in numbers.items()}}


_MAKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "from_json": _json,
    "from_sentencepiece": _sentencepiece,
    "from_vocab": _vocab,
    "from_tiktoken": _tiktoken,
    "from_gguf": _gguf,
}
