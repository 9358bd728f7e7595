"""The types in which keys and values are kept, as users name them and as programs do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from weft.runtime.checkpoint import Checkpoint

# What kv_dtype may be, and the element type of programs that it stands for.
KV_TYPES = {"f32": "f32", "f16": "f16", "bf16": "bf16", "int8": "i8r", "int8-plain": "i8", "int4": "i4r"}


def pick_kv_dtype(asked: str | None, checkpoint: Checkpoint, compute: str) -> tuple[str, str]:
    """The type of the KV cache and its element type."""
    if asked is None:
        asked = "f16" if compute == "f32" else "bf16"
        if all(tensor.view.dtype.name == "f32" for tensor in checkpoint.tensors.values()):
            asked = "f32"
    if asked not in KV_TYPES:
        raise UnsupportedError("load", f"must be one of {', '.join(KV_TYPES)}", field="kv_dtype", given=asked)
    return asked, KV_TYPES[asked]
