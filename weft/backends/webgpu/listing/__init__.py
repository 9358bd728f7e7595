"""Launches as data, for hosts that run a program with WebGPU and without Python."""

from weft.backends.webgpu.listing.backend import ListBackend
from weft.backends.webgpu.listing.launches import LIST_VERSION, launch_list

__all__ = ["LIST_VERSION", "ListBackend", "launch_list"]
