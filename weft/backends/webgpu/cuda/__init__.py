"""NVIDIA's GPUs through CUDA, behind the same interface as WebGPU (decision 0059)."""

from weft.backends.webgpu.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
