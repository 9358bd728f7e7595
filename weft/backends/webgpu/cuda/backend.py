"""The GPU backend through CUDA: the same programs, launches and shaders, with products on matrix units."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from weft.backends.webgpu.backend import GpuBackend
from weft.backends.webgpu.cuda.device import KERNELS, open_cuda
from weft.backends.webgpu.cuda.narrow import supports
from weft.dtype import DType


class CudaBackend(GpuBackend):
    """`index` chooses among several GPUs."""

    batch_tokens = 16_384

    def __init__(self, index: int | None = None, device: Any = None) -> None:
        self.device: Any = open_cuda(index) if device is None else device
        self.name = "gpu-cuda"

    def supports(self, op: str, dtypes: Sequence[DType]) -> bool:
        return supports(op, dtypes) or super().supports(op, dtypes)

    @property
    def key(self) -> str:
        return f"cuda {_kernels_digest().hex()} {super().key}"

    @property
    def digest(self) -> tuple[str | bytes, ...]:
        return (*super().digest, _kernels_digest())


@lru_cache(maxsize=1)
def _kernels_digest() -> bytes:
    digest = blake2b(digest_size=16)
    for path in sorted(one for one in KERNELS.parent.rglob("*") if one.suffix in (".cu", ".h", ".py")):
        digest.update(path.read_bytes())
    return digest.digest()
