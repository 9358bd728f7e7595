"""Attention on matrix units: over pages of halves, and within a step. With other types of keys and values, and longer
heads, the shaders compute it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from weft.backends.webgpu.launch import BLOCKS, Call, Defines, Launch, paged

ROWS = 16  # of a matrix product
WARPS = 4  # of a workgroup
CHANNELS = 32  # that four lanes read at once
LARGEST = 128  # channels, whose sums a warp keeps in registers


def attention(call: Call) -> Iterator[Launch] | None:
    """The launches of an attention_paged, or None where the shader's own are wanted."""
    tokens, heads, dim = call.shape(0)
    places, defines = paged(call, tokens, 2)
    if dict(defines)["KV"] != "f16" or dim % ROWS or dim > LARGEST or call.given(6):
        return None
    return _launches(call, tokens, heads, dim, places)


def whole(call: Call) -> Iterator[Launch] | None:
    """The launch of an attention within the step's own tokens, or None where the shader's is wanted."""
    if call.shape(0)[2] > LARGEST:
        return None
    return within(call, {"scale": float(call.attrs["scale"])}, {"PARTS": 2})


def within(call: Call, numbers: dict[str, float], defines: dict[str, Any]) -> Iterator[Launch]:
    """Of an attention or one of its variants without sinks: `numbers` and `defines` say how it computes."""
    tokens, heads, dim = call.shape(0)
    table_at = 5 if call.instr.op == "attention" else 4
    sinks = (call.vector(4),) if table_at == 5 and call.given(4) else ()
    table = (call.vector(table_at), call.vector(table_at + 1)) if call.given(table_at) else ()
    reach = call.shape(table_at + 1)[0] // 2 if table else 0
    attrs, sequences = call.attrs, call.shape(3)[0] - 1
    places: dict[str, Any] = {"q": call.at(0), "k": call.at(1), "v": call.at(2), "segments": call.at(3)}
    places |= {"out": call.out(), "sequences": sequences, "heads": heads, "key_heads": call.shape(1)[1]}
    places |= {"window": attrs.get("window", 0), "reach": reach, **numbers}
    cap = float(attrs.get("softcap", 0.0))
    places |= {"cap": cap} if cap else {}
    sizes = {
        "CAUSAL": attrs.get("causal", False),
        "SINKS": len(sinks),
        "TABLE": len(table),
        "CAPPED": cap > 0,
        "DIM": dim,
    }
    sizes |= {"WHOLE": dim % CHANNELS == 0, **defines}
    given = tuple((name, str(value)) for name, value in sizes.items())
    most = tokens + ROWS * sequences  # a tile that is not full for each sequence
    yield Launch("attention_whole", given, places, (*sinks, *table), most, WARPS * ROWS, heads)


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
