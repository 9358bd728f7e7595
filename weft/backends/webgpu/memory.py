"""How much memory a GPU has free. WebGPU does not say, so its driver is asked: NVIDIA's library, AMD's files."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

from weft import flags

UNKNOWN = 1 << 62  # never a reason to refuse


def free_memory(name: str, kind: str, used_bytes: int) -> tuple[int, str] | None:
    """Bytes, and where the number comes from. None where it is the machine's memory that the GPU uses."""
    asked = flags.get("WEFT_GPU_MEMORY")
    if asked is not None:
        return max(0, asked - used_bytes), "what WEFT_GPU_MEMORY leaves"
    if kind in ("CPU", "IntegratedGPU"):
        return None
    for found in (_nvidia(name), _amd()):
        if found is not None:
            return found, f"free memory of {name}"
    return UNKNOWN, f"the memory of {name} is not known"


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _nvidia(name: str) -> int | None:
    """Of the first GPU of this name."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if library.nvmlInit_v2() != 0:
        return None
    try:
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            handle, found, text = ctypes.c_void_p(), _Memory(), ctypes.create_string_buffer(96)
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                continue
            library.nvmlDeviceGetName(handle, text, 96)
            if text.value.decode(errors="replace") != name and count.value > 1:
                continue
            if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(found)) == 0:
                return int(found.free)
        return None
    finally:
        library.nvmlShutdown()


def _amd() -> int | None:
    """Of the only card that the driver amdgpu shows."""
    cards = list(Path("/sys/class/drm").glob("card[0-9]*/device/mem_info_vram_total"))
    if len(cards) != 1:
        return None
    with suppress(OSError, ValueError):
        return int(cards[0].read_text()) - int(cards[0].with_name("mem_info_vram_used").read_text())
    return None
