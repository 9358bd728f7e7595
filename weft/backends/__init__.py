"""Backends run programs. `reference` is numpy and always there; the others are present where their machine is."""

from weft.backends.base import Backend


def backends_present() -> list[Backend]:
    """One backend per way this machine can run a program: the reference, and the CPU at each of its levels."""
    from weft.backends.reference import ReferenceBackend

    found: list[Backend] = [ReferenceBackend()]
    try:
        from weft.backends.cpu import CpuBackend, levels_present
    except ImportError:  # the compiled core is not built
        return found
    return found + [CpuBackend(level=level) for level in levels_present()]
