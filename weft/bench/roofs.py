"""The machine's roofs (peak bandwidth and arithmetic), measured in the same run as the workloads: csrc/bench/roofs.cpp.

On a shared machine they change by a factor of two within minutes, so they are measured before and after a case. The
largest value is the roof: other work on the machine can only lower it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft import _core, flags
from weft.bench.measure import Summary, rounded, summary

# Many short measurements: one that was interrupted by other work is too low, and does not affect the others.
SECONDS, REPEATS = 0.004, 40
MOST_BYTES = 1 << 30  # a buffer of this size is beyond any cache; a larger one would only take longer to fill
UNITS = {
    "read": "GB/s",
    "f32": "GFLOP/s",
    "f16": "GFLOP/s",
    "int8": "GOP/s",
    "amx_int8": "GOP/s",
    "amx_bf16": "GFLOP/s",
}


@dataclass
class Roofs:
    """Roofs of `threads` threads at an instruction-set level ("" is the best of this machine)."""

    threads: int
    level: str = ""
    _values: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.level = self.level or flags.get("WEFT_ISA") or _core.levels_present()[-1]
        self._pool = _core.Pool(self.threads)
        self.names: list[str] = list(_core.bench.roof_names(self.level))

    def read(self, size_bytes: int) -> Summary:
        """Bytes per second of reading `size_bytes` over and over: L2, L3 or memory, whichever they fit."""
        return self._get("read", self.size(size_bytes))

    @staticmethod
    def size(size_bytes: int) -> int:
        """The size of the buffer that is read for `size_bytes`: whole pages, and never more than MOST_BYTES."""
        return max(1 << 16, min(size_bytes, MOST_BYTES) >> 12 << 12)

    def unit(self, name: str) -> Summary | None:
        """Operations per second of a unit, a multiply and an add being two; None where the level does not have it."""
        return self._get(name, 0) if name in self.names else None

    def best(self, *names: str) -> tuple[str, Summary] | None:
        """The first of these units that the level has."""
        for name in names:
            found = self.unit(name)
            if found is not None:
                return name, found
        return None

    def again(self) -> None:
        """Measure every roof that was used so far again; values returned before do not change."""
        for name, size in self._values:
            self._measure(name, size)

    def _get(self, name: str, size: int) -> Summary:
        if (name, size) not in self._values:
            self._measure(name, size)
        return summary(self._values[name, size])

    def _measure(self, name: str, size: int) -> None:
        found = _core.bench.measure_roof(name, self.level, self._pool, size, SECONDS, REPEATS)
        self._values.setdefault((name, size), []).extend(found)

    def as_json(self) -> dict[str, Any]:
        """Highest and median value by name, in the units of UNITS; reads are named after their size."""
        found = {}
        for (name, size), values in self._values.items():
            seen = summary(values)
            found[roof_label(name, size)] = {"high": rounded(seen.high / 1e9), "median": rounded(seen.median / 1e9)}
        return found


@dataclass
class DeviceRoofs(Roofs):
    """Of a device with its own memory: only its bandwidth, which `copies(bytes)` measures."""

    copies: Callable[[int], list[float]] = field(default=lambda _: [])

    def __post_init__(self) -> None:
        self.names = ["read"]

    def _measure(self, name: str, size: int) -> None:
        self._values.setdefault((name, size), []).extend(self.copies(size))


def roof_label(name: str, size: int) -> str:
    """read 64 MB, amx_int8"""
    if name != "read":
        return name
    return f"read {size / 2**20:.0f} MB" if size >= 1 << 20 else f"read {size / 2**10:.0f} kB"


def standard(roofs: Roofs) -> list[dict[str, Any]]:
    """Every roof that `weft bench roofs` shows: memory, L3, L2 (a megabyte a thread), and the units."""
    asked = [("read", MOST_BYTES), ("read", 64 << 20), ("read", roofs.threads << 20)]
    asked += [(name, 0) for name in roofs.names if name != "read"]
    rows = []
    for name, size in asked:
        found = roofs.read(size) if name == "read" else roofs.unit(name)
        assert found is not None, name
        scaled = summary(value / 1e9 for value in found.values)
        facts = scaled.as_json()
        del facts["values"]
        rows.append({"name": roof_label(name, size), "unit": UNITS[name], **facts})
    return rows
