"""The key/value state of all layers: pages as bytes, and the fingerprint of all that decides those bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from weft import _core, digest
from weft.dtype import dtype
from weft.errors import InputError
from weft.runtime.paged.pages import PAGE_TOKENS

if TYPE_CHECKING:
    from weft.runtime.checkpoint import Checkpoint
    from weft.runtime.prepared import Prepared, WantedState

# What kv_dtype may be, and the element type of programs that it stands for.
KV_TYPES = {"f32": "f32", "f16": "f16", "bf16": "bf16", "int8": "i8"}
SCALE_BYTES = 4  # beside a key or value of codes

SAMPLE_BYTES = 64 << 10  # of a tensor that a fingerprint reads
SAMPLES = 16  # pieces of it, at equal distances


def page_bytes(states: Iterable[WantedState]) -> int:
    """Bytes of one page: PAGE_TOKENS keys and values of every layer."""

    def row(kind: str, dim: int) -> int:
        return dim * dtype(kind).size_bytes + (SCALE_BYTES if kind == "i8" else 0)

    return sum(2 * PAGE_TOKENS * heads * row(kind, dim) for _, kind, heads, dim in states)


class State:
    """`pages` pages of every layer's keys and values. Memory is taken from the system where it is first written to.

    A page as bytes is its part in each layer, in the program's order. Reading and writing one is for the thread that
    runs the steps, between them.
    """

    def __init__(self, states: Sequence[WantedState], pages: int) -> None:
        self.pages = pages
        self.page_bytes = page_bytes(states)
        made = _core.KvState.make_all([(kind, heads, dim) for _, kind, heads, dim in states], pages)
        self.layers = {name: layer for (name, *_), layer in zip(states, made, strict=True)}

    def read_page(self, page: int) -> bytes:
        self._check(page)
        out = bytearray(self.page_bytes)
        for layer, part in self._parts(memoryview(out)):
            layer.read_page(page, part)
        return bytes(out)

    def write_page(self, page: int, data: bytes | bytearray | memoryview) -> None:
        self._check(page)
        given = memoryview(data).cast("B")
        if len(given) != self.page_bytes:
            raise InputError(f"[state] a page has {self.page_bytes} bytes: got {len(given)}")
        for layer, part in self._parts(given):
            layer.write_page(page, part)

    def copy_page(self, source: int, target: int) -> None:
        self._check(source)
        self._check(target)
        for layer in self.layers.values():
            layer.copy_page(source, target)

    def _parts(self, data: memoryview) -> Iterator[tuple[Any, memoryview]]:
        start = 0
        for layer in self.layers.values():
            yield layer, data[start : start + layer.page_bytes]
            start += layer.page_bytes

    def _check(self, page: int) -> None:
        if not 0 <= page < self.pages:
            raise InputError(f"[state] pages are 0 to {self.pages - 1}: got {page}")


def fingerprint(checkpoint: Checkpoint, prepared: Prepared, level: str) -> str:
    """32 hex digits of all that decides the bits of a page beside the tokens: program, weights, the core, its level.

    Of the files their sizes and times of change are taken, of every tensor 64 kB in pieces: a tenth of a second where
    reading all of a large model would take many. So another model, or the same changed in place, has another
    fingerprint; a copy with a new date has another one too, and what was kept for the first is made again.
    """
    hashed = blake2b(digest_size=16)
    digest.add(hashed, _core_digest(), level, _computed(prepared))
    for name, values in prepared.constants.items():
        digest.add(hashed, name, values)
    for file in checkpoint.files:
        found = os.stat(file.path)
        digest.add(hashed, f"{found.st_size} {found.st_mtime_ns}")
    for name, tensor in checkpoint.tensors.items():
        digest.add(hashed, f"{name} {tensor.view.dtype} {tensor.view.shape}")
        digest.add(hashed, *_sampled(memoryview(tensor.view.buffer()).cast("B")))
    checkpoint.release()
    return hashed.hexdigest()


def _computed(prepared: Prepared) -> str:
    """What the program computes. Of its inputs only the number of pages could differ: a context that stretches nothing
    decides nothing, and one that does is in the constants."""
    program = json.loads(prepared.text)
    values = [value for value in program["values"] if value["kind"] != "input"]
    return json.dumps([values, program["body"]])


def _sampled(data: memoryview) -> Iterator[memoryview]:
    """All of the bytes where they are few, else SAMPLES pieces from the first to the last byte."""
    if len(data) <= SAMPLE_BYTES:
        yield data
        return
    size = SAMPLE_BYTES // SAMPLES
    yield from (data[start : start + size] for start in digest.spread(len(data), size, SAMPLES))


@lru_cache(maxsize=1)
def _core_digest() -> bytes:
    """A hash of the compiled core: other kernels may round in another order."""
    with open(_core.__file__, "rb") as file:
        return blake2b(file.read(), digest_size=16).digest()
