"""GPUs through WebGPU: programs run as WGSL shaders on Vulkan, Metal or Direct3D 12."""

from weft.backends.webgpu.backend import GpuBackend
from weft.backends.webgpu.device import Adapter, adapters

__all__ = ["Adapter", "GpuBackend", "adapters"]
