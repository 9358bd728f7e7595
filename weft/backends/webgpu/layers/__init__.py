"""Layers beside those of a dense model: adapters, mixtures of experts, recurrent states. Imported for their kernels."""

from weft.backends.webgpu.layers import adapters, experts, recurrent

__all__ = ["adapters", "experts", "recurrent"]
