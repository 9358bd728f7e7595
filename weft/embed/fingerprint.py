"""The fingerprint of an embedder: vectors with the same one may be compared and stored together, others may not.

It is `weft1:` and the SHA-256 of the parts below as JSON. The parts are what decides a vector beside the text:

    weights     the tensors: names, types, shapes and bytes, those of dense layers included, and the model's settings
    tokenizer   the vocabulary in order, and the ids of texts that show how a tokenizer cuts and normalises
    pooling, dense, prompts, dimension, normalise, compute, adapter

Where files lie, when they were written, the number of threads and the machine are not in it. A GGUF file and the
safetensors files it was made from differ: their bytes and, mostly, their numbers do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from weft.frozen import frozen

if TYPE_CHECKING:
    from weft.runtime import Checkpoint
    from weft.text import Tokenizer

SCHEME = "weft1"
# Of a large tensor this much is read, in pieces at equal distances: training changes every part of a tensor, and
# reading all of a model of 8 GB would take longer than loading it.
SAMPLE_BYTES, PIECE_BYTES = 256 << 10, 4 << 10
# What config.json says beside the model: who wrote it, how it was trained, what its classes are called.
NOT_THE_MODEL = (
    *("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    *("gradient_checkpointing", "id2label", "label2id", "finetuning_task", "problem_type"),
)
# Letters of both cases and with accents, signs, digits, spaces, other scripts, an emoji of several code points.
PROBES = (
    "The quick brown fox, jumping over 13 lazy dogs; isn't it?",
    "  Two  spaces\tand a tab\nand a line ",
    "Ångström café naïve ΑΘΗΝΑ Straße ﬁne №42 2.5e-3",
    "日本語のテキスト 한국어 텍스트 العربية हिन्दी",
    "👩‍👩‍👧 unbelievableness def f(x): return x**2",
    "",
)


@frozen
class Fingerprint:
    """`str()` of it is `weft1:` and 64 hex digits."""

    weights: str
    tokenizer: str
    pooling: str
    dense: tuple[str, ...]  # the activation of each dense layer; its weights are with the others
    prompts: Mapping[str, str]
    dimension: int
    normalise: bool
    compute: str
    adapter: str = ""  # the digest of the adapter that `encode` named

    @property
    def parts(self) -> dict[str, Any]:
        """What it is made of, for people and for finding out where two differ."""
        return {**asdict(self), "dense": list(self.dense)}

    def changed(
        self, *, dimension: int | None = None, normalise: bool | None = None, adapter: str | None = None
    ) -> Fingerprint:
        """That of the same vectors cut to `dimension` numbers, brought to length one, or made with an adapter."""
        given: dict[str, Any] = {"dimension": dimension, "normalise": normalise, "adapter": adapter}
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def differences(self, other: Fingerprint) -> list[str]:
        """The names of the parts that are not the same."""
        mine, theirs = self.parts, other.parts
        return [name for name in mine if mine[name] != theirs[name]]

    @cached_property
    def text(self) -> str:
        return f"{SCHEME}:{sha256(_canonical(self.parts)).hexdigest()}"

    def __str__(self) -> str:
        return self.text


def weights_digest(checkpoint: Checkpoint) -> str:
    """SHA-256 of the model's settings and of every tensor, large ones in pieces."""
    hashed = sha256()
    settings = {k: v for k, v in checkpoint.config.items() if k not in NOT_THE_MODEL and not k.startswith("_")}
    _add(hashed, checkpoint.format.encode())
    _add(hashed, _canonical(settings))
    for name in sorted(checkpoint.tensors):
        tensor = checkpoint.tensors[name]
        _add(hashed, f"{name} {tensor.view.dtype} {tensor.view.shape}".encode("utf-8", "surrogatepass"))
        for piece in _sampled(memoryview(tensor.view.buffer()).cast("B")):
            _add(hashed, piece)
    checkpoint.release()
    return hashed.hexdigest()


def tokenizer_digest(tokenizer: Tokenizer | None) -> str:
    """SHA-256 of what a tokenizer does, whatever its files are called; "none" for a model that only takes ids."""
    if tokenizer is None:
        return "none"
    hashed = sha256()
    pieces: Iterable[str | None] = map(tokenizer.token, range(tokenizer.vocab_size))
    _add(hashed, "\0".join(piece or "" for piece in pieces).encode("utf-8", "surrogatepass"))
    _add(hashed, _canonical([list(map(int, tokenizer.encode(probe))) for probe in PROBES]))
    return hashed.hexdigest()


def _add(hashed: Any, data: bytes | memoryview) -> None:
    hashed.update(len(data).to_bytes(8, "little"))
    hashed.update(data)


def _sampled(data: memoryview) -> Iterator[memoryview]:
    if len(data) <= SAMPLE_BYTES:
        yield data
        return
    count = SAMPLE_BYTES // PIECE_BYTES
    for i in range(count):
        start = (len(data) - PIECE_BYTES) * i // (count - 1)
        yield data[start : start + PIECE_BYTES]


def _canonical(value: Any) -> bytes:
    """JSON that is the same for equal values: keys sorted, nothing but ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode("ascii")
