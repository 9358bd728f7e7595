"""What the machine says about itself; `weft doctor` prints it and benchmarks record it."""

import os
import platform
import re
from pathlib import Path

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def huge_pages() -> str:
    """The setting of transparent huge pages: always, madvise or never; "unknown" where the system has none."""
    try:
        found = re.search(r"\[(\w+)\]", HUGE_PAGES.read_text())
    except OSError:
        found = None
    return found[1] if found else "unknown"


def folder_bytes(folder: Path) -> int:
    """Bytes of the files below a folder, links not followed; 0 where there is none."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_size
            except OSError:  # gone since it was listed
                continue
    return total
