"""Backends run programs. `reference` is numpy and always there; the others are present where their machine is."""

from __future__ import annotations

from weft import flags
from weft.backends.base import Backend
from weft.errors import NotFoundError

NAMES = ("cpu", "reference")


def open_backend(name: str | Backend | None = None, *, level: str | None = None, threads: int = 1) -> Backend:
    """The backend of this name (default: WEFT_BACKEND); a Backend object is returned as it is.

    `level` and `threads` are for the CPU.
    """
    if isinstance(name, Backend):
        return name
    name = name or flags.get("WEFT_BACKEND") or "cpu"
    if name == "cpu":
        from weft.backends.cpu import CpuBackend

        return CpuBackend(level, threads)
    if name == "reference":
        from weft.backends.reference import ReferenceBackend

        return ReferenceBackend()
    raise NotFoundError("load", "is not a backend", field="backend", given=name, advice=f"one of {', '.join(NAMES)}")


def backends_present() -> list[Backend]:
    """One backend per way this machine can run a program: the reference, and the CPU at each of its levels."""
    from weft.backends.reference import ReferenceBackend

    found: list[Backend] = [ReferenceBackend()]
    try:
        from weft.backends.cpu import CpuBackend, levels_present
    except ImportError:  # the compiled core is not built
        return found
    return found + [CpuBackend(level=level) for level in levels_present()]
