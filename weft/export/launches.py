"""The launches of a program for hosts with WebGPU, as a file of a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.dtype import dtype
from weft.errors import BackendError, UnsupportedError

if TYPE_CHECKING:
    from weft.backends import Backend
    from weft.runtime.prepared import Prepared

LIST = "gpu.json"


def list_of(
    prepared_on: Callable[[Backend], Prepared], tensors: Sequence[dict[str, Any]], *, needed: bool
) -> tuple[bytes | None, str]:
    """The file, or None and why there is none: an error if it is `needed`. `tensors` are those of the manifest."""
    from weft.backends.webgpu.listing import ListBackend, launch_list

    backend = ListBackend()
    stored = {entry["name"]: (dtype(entry["dtype"]), tuple(entry["shape"])) for entry in tensors}
    try:
        found = launch_list(prepared_on(backend), backend, stored)
    except (BackendError, UnsupportedError) as error:
        if needed:
            raise
        return None, error.what
    return json.dumps(found, separators=(",", ":"), allow_nan=False).encode(), ""
