"""Backends run programs. `reference` is numpy and always there; the others are present where their machine is."""

from __future__ import annotations

import sys
from functools import cache, lru_cache

from weft import flags
from weft.backends.base import Backend
from weft.errors import BackendError, NotFoundError

NAMES = ("cpu", "reference", "gpu", "gpu:N", "cuda", "cuda:N", "webgpu", "webgpu:N", "auto")
GPUS = ("gpu", "cuda", "webgpu")


def open_backend(name: str | Backend | None = None, *, level: str | None = None, threads: int = 1) -> Backend:
    """The backend of this name (default: WEFT_BACKEND); a Backend object is returned as it is.

    `level` and `threads` are for the CPU. "gpu" is the first GPU, "gpu:1" the second: through CUDA where its driver and
    compiler are here, else through WebGPU; "cuda" and "webgpu" say which. "auto" is the first GPU that is not a
    software device, else the CPU, which it says once.
    """
    if isinstance(name, Backend):
        return name
    name = name or flags.get("WEFT_BACKEND") or "cpu"
    if name == "auto":
        name = _automatic()
    if name == "cpu":
        from weft.backends.cpu import CpuBackend

        return CpuBackend(level, threads)
    if name == "reference":
        from weft.backends.reference import ReferenceBackend

        return ReferenceBackend()
    if is_gpu(name):
        return _open_gpu(name)
    raise NotFoundError("load", "is not a backend", field="backend", given=name, advice=f"one of {', '.join(NAMES)}")


def is_gpu(name: str) -> bool:
    """Whether this is a name of a GPU, which need not be there."""
    kind, colon, index = name.partition(":")
    return kind in GPUS and (index.isdigit() if colon else True)


def _open_gpu(name: str) -> Backend:
    kind, _, number = name.partition(":")
    index = int(number) if number else None
    if kind == "cuda" or (kind == "gpu" and not _reason_against_cuda(index or 0)):
        from weft.backends.webgpu.cuda import CudaBackend

        return CudaBackend(index)
    from weft.backends.webgpu import GpuBackend

    return GpuBackend(index)


@cache
def _reason_against_cuda(index: int = 0) -> str:
    from weft.backends.webgpu.cuda.driver import reason_against

    return reason_against(index)


@lru_cache(maxsize=1)
def _automatic() -> str:
    """ "gpu", or "cpu" and a line on standard error that says why."""
    from weft.backends.webgpu import adapters

    if not _reason_against_cuda():
        return "gpu"
    try:
        reason = "" if any(not one.software for one in adapters()) else "this machine shows no GPU"
    except BackendError as error:
        reason = f"{error.what}: {error.advice}"
    if reason:
        print(f"weft: device auto is the CPU: {reason}", file=sys.stderr)
    return "cpu" if reason else "gpu"


def backends_present() -> list[Backend]:
    """One backend per way this machine can run a program: the reference, and the CPU at each of its levels."""
    from weft.backends.reference import ReferenceBackend

    found: list[Backend] = [ReferenceBackend()]
    try:
        from weft.backends.cpu import CpuBackend, levels_present
    except ImportError:  # the compiled core is not built
        return found
    return found + [CpuBackend(level=level) for level in levels_present()]


def gpu_supports(op: str) -> bool:
    """Whether the GPU backend has a shader for an op, on a machine with a GPU or without."""
    from weft.backends.webgpu.launch import supports

    return supports(op, ())


def describe_gpus() -> tuple[list[dict[str, object]], str]:
    """The GPUs that weft finds, and which one "auto" would use or why it would use the CPU."""
    from weft.backends.webgpu import adapters
    from weft.backends.webgpu.memory import free_memory

    try:
        found = adapters()
    except BackendError as error:
        if not _reason_against_cuda():
            return _cuda_rows(), "auto is cuda:0, the first GPU of NVIDIA's driver"
        return [], f"auto is the CPU: {error.what}: {error.advice}"
    rows: list[dict[str, object]] = []
    for one in found:
        memory = free_memory(one.name, one.kind, 0)
        rows.append(
            {
                "device": f"gpu:{one.index}",
                "name": one.name,
                "api": one.api,
                "kind": one.kind,
                "driver": one.driver,
                "software": one.software,
                "buffer_bytes": one.limits["max-storage-buffer-binding-size"],
                "free_bytes": None if memory is None or memory[0] >= 1 << 62 else memory[0],
                "memory": "the machine's" if memory is None else memory[1],
            }
        )
    if not _reason_against_cuda():
        return [*_cuda_rows(), *rows], "auto is cuda:0, the first GPU of NVIDIA's driver"
    hardware = [row for row in rows if not row["software"]]
    if hardware:
        return rows, f"auto is {hardware[0]['device']}, the first that is no software device"
    return rows, "auto is the CPU: " + ("software devices are for tests" if rows else "this machine shows no GPU")


def _cuda_rows() -> list[dict[str, object]]:
    from weft.backends.webgpu.cuda.device import KIND, LARGEST
    from weft.backends.webgpu.cuda.driver import device_names
    from weft.backends.webgpu.memory import free_memory

    rows: list[dict[str, object]] = []
    for index, (name, driver) in enumerate(device_names()):
        if _reason_against_cuda(index):
            continue
        memory = free_memory(name, KIND, 0)
        free = None if memory is None or memory[0] >= 1 << 62 else memory[0]
        said = "the machine's" if memory is None else memory[1]
        row = {"device": f"cuda:{index}", "name": name, "api": "CUDA", "kind": KIND, "driver": driver}
        rows.append({**row, "software": False, "buffer_bytes": LARGEST, "free_bytes": free, "memory": said})
    return rows
