"""How much memory a GPU has free. WebGPU does not say, so its driver is asked: NVIDIA's program, AMD's files."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from weft import flags

UNKNOWN = 1 << 62  # never a reason to refuse
ASK = ("nvidia-smi", "--query-gpu=name,memory.free", "--format=csv,noheader,nounits")
ASK_S = 20.0


def free_memory(name: str, kind: str, used_bytes: int) -> tuple[int, str] | None:
    """Bytes, and where the number comes from, beside `used_bytes` of this process. None where it is the machine's
    memory that the GPU uses."""
    asked = flags.get("WEFT_GPU_MEMORY")
    if asked is not None:
        return max(0, asked - used_bytes), "what WEFT_GPU_MEMORY leaves"
    if kind in ("CPU", "IntegratedGPU"):
        return None
    found = _at_start(name)
    if found is None:
        return UNKNOWN, f"the memory of {name} is not known"
    return max(0, found - used_bytes), f"free memory of {name}"


@lru_cache(maxsize=8)
def _at_start(name: str) -> int | None:
    """What was free when it was asked first."""
    found = _nvidia(name)
    return _amd() if found is None else found


def _nvidia(name: str) -> int | None:
    """Of the GPU of this name, or the only one."""
    try:
        said = subprocess.run(ASK, capture_output=True, text=True, timeout=ASK_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.rpartition(",") for line in said.splitlines() if line.strip()]
    chosen = [row for row in rows if row[0].strip() == name] or (rows if len(rows) == 1 else [])
    with suppress(ValueError, IndexError):
        return int(chosen[0][2]) << 20
    return None


def _amd() -> int | None:
    """Of the only card that the driver amdgpu shows."""
    cards = list(Path("/sys/class/drm").glob("card[0-9]*/device/mem_info_vram_total"))
    if len(cards) != 1:
        return None
    with suppress(OSError, ValueError):
        return int(cards[0].read_text()) - int(cards[0].with_name("mem_info_vram_used").read_text())
    return None
