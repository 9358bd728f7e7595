"""Backends run programs. `reference` is numpy and always there; the others are present where their machine is."""

from importlib import import_module
from typing import Any

from weft.backends.base import Backend


def backends_present() -> list[Backend]:
    """One backend per way this machine can run a program: the reference, and the CPU at each of its levels."""
    from weft.backends.reference import ReferenceBackend

    found: list[Backend] = [ReferenceBackend()]
    try:
        cpu: Any = import_module("weft.backends.cpu")
    except ImportError:  # the compiled core is not built
        return found
    if hasattr(cpu, "CpuBackend"):
        found += [cpu.CpuBackend(level=level) for level in cpu.levels_present()]
    return found
