"""The CPU: programs run by the compiled core, at one of the instruction-set levels this machine has."""

from weft.backends.cpu.backend import CpuBackend, levels_present
from weft.backends.cpu.binding import native_weight, stored_shape, weight_layouts

__all__ = ["CpuBackend", "levels_present", "native_weight", "stored_shape", "weight_layouts"]
