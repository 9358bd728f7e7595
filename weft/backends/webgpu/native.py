"""Calls of the native library that the package wgpu has no methods for, or slow ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

NO_CHECKS = 0


class Dispatch(NamedTuple):
    """A pipeline, what it is bound to, where its parameters are, and workgroups on two axes."""

    pipeline: Any
    group: Any
    place: int
    across: int
    down: int


@lru_cache(maxsize=1)
def _library() -> tuple[Any, Any] | None:
    """The functions of the library, and what makes their arguments."""
    try:
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        _ = lib.wgpuDeviceCreateShaderModuleTrusted, lib.wgpuComputePassEncoderSetBindGroup
    except (ImportError, AttributeError):
        return None
    return ffi, lib


def shader_module(device: Any, name: str, text: str) -> Any:
    """A compiled shader. Its loops are not counted and its indices not checked again: steps are checked before they
    run, and a counted loop is never unrolled."""
    library = _library()
    if library is None:
        return device.create_shader_module(label=name, code=text)
    from wgpu.backends.wgpu_native import GPUShaderModule

    ffi, lib = library
    raw = text.encode()
    kept = ffi.new("char[]", raw)
    source = ffi.new("WGPUShaderSourceWGSL *")
    source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    source.code.data, source.code.length = kept, len(raw)
    described = ffi.new("WGPUShaderModuleDescriptor *")
    described.nextInChain = ffi.cast("WGPUChainedStruct *", source)
    made = lib.wgpuDeviceCreateShaderModuleTrusted(device._internal, described, NO_CHECKS)
    return GPUShaderModule(name, made, device)


def record(work: Any, dispatches: Sequence[Dispatch]) -> None:
    """Put dispatches into a pass."""
    library = _library()
    if library is None:
        for pipeline, group, place, across, down in dispatches:
            work.set_pipeline(pipeline)
            work.set_bind_group(0, group, [place])
            work.dispatch_workgroups(across, down)
        return
    ffi, lib = library
    set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
    dispatch, to, last = lib.wgpuComputePassEncoderDispatchWorkgroups, work._internal, None
    places = ffi.new("uint32_t[]", [one.place for one in dispatches])
    for index, (pipeline, group, _, across, down) in enumerate(dispatches):
        if pipeline is not last:
            set_pipeline(to, pipeline._internal)
            last = pipeline
        set_group(to, 0, group._internal, 1, places + index)
        dispatch(to, across, down, 1)
