"""How many threads, and why: the affinity mask, the cgroup's CPU quota, cores that are only hyper-threads, the user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Generic, TypeVar

from weft import flags
from weft.errors import InputError
from weft.frozen import frozen

T = TypeVar("T")

MAX_THREADS = 64


@frozen
class ThreadPlan:
    """`count` threads will be used; `reasons` says how that came about, one sentence per limit looked at."""

    count: int
    reasons: tuple[str, ...]


class Soon(Generic[T]):
    """What `make` returns, made by a thread of its own: worth it where `make` is native and lets others run."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._over = Event()
        # No daemon: the interpreter ends those that come back from native code by unwinding it, which ends the process.
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._made.append(self._make())
        except BaseException as error:  # raised by `get`
            self._error = error
        finally:
            self._over.set()

    def get(self) -> T:
        """Wait for it; raises what went wrong."""
        self._over.wait()  # `join` that Ctrl-C ends counts the thread as ended, and the process would not wait for it
        if self._error is not None:
            raise self._error
        return self._made[0]


def plan_threads(wanted: int | None = None) -> ThreadPlan:
    """The number of threads for this process: `wanted`, else WEFT_THREADS, else what the machine really gives."""
    if wanted is not None and (type(wanted) is not int or wanted < 1):
        raise InputError("threads", "must be a whole number of at least 1, or None", field="threads", given=wanted)
    allowed = _allowed_cpus()
    reasons = [f"{len(allowed)} logical CPUs in the affinity mask"]
    limit = len(allowed)
    cores = _physical_cores(allowed)
    if 0 < cores < limit:
        reasons.append(f"they are {cores} physical cores; hyper-threads share one set of vector units")
        limit = cores
    quota = cgroup_cpus()
    if quota is not None:
        reasons.append(f"the cgroup grants {quota:.2f} CPUs")
        limit = min(limit, max(1, int(quota)))
    asked = wanted if wanted is not None else flags.get("WEFT_THREADS")
    if asked:
        reasons.append(f"{asked} asked for" + ("" if wanted is not None else " by WEFT_THREADS"))
        limit = asked
    count = max(1, min(limit, MAX_THREADS))
    return ThreadPlan(count, (*reasons, f"so {count} thread{'s' if count > 1 else ''}"))


def _allowed_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _physical_cores(cpus: set[int]) -> int:
    """Distinct cores behind `cpus`, 0 when the system does not say."""
    cores = set()
    for cpu in cpus:
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            return 0
    return len(cores)


def cgroup_cpus() -> float | None:
    """CPUs that the cgroup's quota grants, None without a quota. Looks at v2 and v1, the process's own group first."""
    for folder in _cgroup_folders():
        try:
            quota, period = (folder / "cpu.max").read_text().split()[:2]
            if quota != "max":
                return int(quota) / int(period)
        except (OSError, ValueError):
            pass
        try:
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                return quota_us / int((folder / "cpu.cfs_period_us").read_text())
        except (OSError, ValueError):
            pass
    return None


def _cgroup_folders() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    folders = []
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            base = root if not controllers else root / controllers
            inner = base / path.lstrip("/")
            # Limits of a parent hold too; the nearest one that says something is asked first.
            while inner != base and base in inner.parents:
                folders.append(inner)
                inner = inner.parent
    except (OSError, ValueError):
        pass
    return [*folders, root, root / "cpu", root / "cpu,cpuacct"]
