"""The fingerprint of all that decides the bytes of a page: pages on disk are never taken for another model's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from weft import digest

if TYPE_CHECKING:
    from weft.backends.base import Backend
    from weft.runtime.checkpoint import Checkpoint
    from weft.runtime.prepared import Prepared

SAMPLE_BYTES = 64 << 10  # of a tensor that a fingerprint reads
SAMPLES = 16  # pieces of it, at equal distances


def fingerprint(checkpoint: Checkpoint, programs: Sequence[Prepared], backend: Backend) -> str:
    """32 hex digits of all that decides the bits of a page beside the tokens: programs, weights, the backend.

    Hashes the size and modification time of each file and 64 kB of each tensor, which takes a tenth of a second;
    reading all of a large model would take many. A changed model has another fingerprint. So has a copy with a new
    date: its pages are computed again.
    """
    hashed = blake2b(digest_size=16)
    digest.add(hashed, *backend.digest, *map(_computed, programs))
    for name, values in (constant for prepared in programs for constant in prepared.constants.items()):
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
    """What the program computes, without its inputs: they differ only in the width of the page table. A context that
    changes positions is in the constants."""
    program = json.loads(prepared.json)
    values = [value for value in program["values"] if value["kind"] != "input"]
    return json.dumps([values, program["body"]])


def _sampled(data: memoryview) -> Iterator[memoryview]:
    """All of the bytes if they are few, else SAMPLES pieces spread from the first byte to the last."""
    if len(data) <= SAMPLE_BYTES:
        yield data
        return
    size = SAMPLE_BYTES // SAMPLES
    yield from (data[start : start + size] for start in digest.spread(len(data), size, SAMPLES))
