"""Attention over pages of halves on matrix units; with other types of keys and values the shader computes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from weft.backends.webgpu.launch import BLOCKS, Call, Defines, Launch, paged

ROWS = 16  # of a matrix product
WARPS = 4  # of a workgroup that rotates
LARGEST = 128  # channels, whose sums a warp keeps in registers


def attention(call: Call) -> Iterator[Launch] | None:
    """The launches of an attention_paged, or None where the shader's own are wanted."""
    tokens, heads, dim = call.shape(0)
    places, defines = paged(call, tokens, 2)
    if dict(defines)["KV"] != "f16" or dim % ROWS or dim > LARGEST or call.given(6):
        return None
    return _launches(call, tokens, heads, dim, places)


def rotation(launch: Launch) -> Launch:
    """A rope_write by warps, of halves; the shader's own launch for other types."""
    dim = launch.params["dim"]
    if dict(launch.defines)["KV"] != "f16" or dim % 2:
        return launch
    sizes = (("DIM", str(dim)), ("ALL_ROWS", str(WARPS * dim)))
    return replace(launch, shader="rope_pages", defines=(*launch.defines, *sizes), per=WARPS)


def _launches(call: Call, tokens: Any, heads: int, dim: int, places: dict[str, Any]) -> Iterator[Launch]:
    places |= {"q": call.at(0), "out": call.out(), "heads": heads, "window": call.attrs["window"]}
    places |= {"scale": float(call.attrs["scale"]), "cap": float(call.attrs["softcap"])}
    sinks = (call.vector(5),) if call.given(5) else ()
    sunk: Defines = (("SINKS", str(len(sinks))),)
    group = heads // places["key_heads"]
    share = min(group, ROWS)
    tiles = places["key_heads"] * -(-group // share)
    state = call.bound(1).buffer

    def defines(at_once: int) -> Defines:
        sizes = {"DIM": dim, "GROUP": group, "SHARE": share, "TOKENS": at_once}
        return tuple((name, str(size)) for name, size in sizes.items())

    whole = (*defines(ROWS // share), *sunk)
    yield Launch("attention_pages", whole, places, (state, *sinks), tokens * tiles, split=False)
    parts = {"parts": call.scratch, "blocks": BLOCKS}
    part = (*defines(1), ("BLOCK", "1"), *sunk)
    buffers = (state, *sinks, call.device.counters)
    yield Launch("attention_pages", part, places | parts, buffers, tokens * tiles, times=BLOCKS, split=True)
