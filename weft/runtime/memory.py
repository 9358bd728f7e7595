"""What is free: the smaller of the machine's available memory and what the cgroup leaves."""

from dataclasses import dataclass
from pathlib import Path

SHARE = 0.9  # a plan may use this much of what is free


@dataclass(frozen=True)
class FreeMemory:
    available_bytes: int
    reason: str


def free_memory() -> FreeMemory:
    """Bytes a load may count on, and where the number comes from."""
    available, reason = _available_bytes(), "available memory of the machine"
    left = _cgroup_left()
    if left is not None and left < available:
        available, reason = left, "what the cgroup's limit leaves"
    return FreeMemory(available, reason)


def _available_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 1 << 62  # unknown: never a reason to refuse


def _cgroup_left() -> int | None:
    root = Path("/sys/fs/cgroup")
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = (root / limit_file).read_text().strip()
            if limit == "max" or int(limit) >= 1 << 60:
                continue
            return max(0, int(limit) - int((root / used_file).read_text()))
        except (OSError, ValueError):
            continue
    return None
