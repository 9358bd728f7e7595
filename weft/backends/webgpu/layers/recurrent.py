"""Layers with a state of one size for each sequence, which a step reads from one slot and writes to another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.backends.webgpu.launch import LANES, LARGEST_DIM, Call, Defines, Launch, kernel
from weft.errors import BackendError


def slots_at(call: Call, first: int) -> tuple[dict[str, Any], Defines, tuple[Any, ...]]:
    """Parameters, definitions and buffers of the operands state, slots and segments, from `first` on."""
    places: dict[str, Any] = {"segments": call.at(first + 2), "sequences": call.shape(first + 2)[0] - 1}
    kept = call.given(first)
    if kept:
        places["slots"] = call.at(first + 1)
    return places, (("STATE", str(kept)),), (call.bound(first).buffer,) if kept else ()


@kernel("causal_conv")
def causal_conv(call: Call) -> Iterator[Launch]:
    tokens, channels = call.shape(0)
    width = call.shape(1)[-1]
    places, defines, state = slots_at(call, 2)
    places |= {"x": call.at(0), "out": call.out(), "tokens": tokens, "channels": channels, "width": width}
    buffers = [call.vector(1)]
    kind = "" if not call.given(5) else "weight" if call.is_weight(5) else "value"
    if kind == "weight":
        buffers.append(call.vector(5))
    elif kind:
        places["bias"] = call.at(5)
    items = tokens * channels
    if state:
        items = items + places["sequences"] * (channels * (width - 1))
    yield Launch("causal_conv", (*defines, ("BIAS", kind)), places, (*buffers, *state), items, LANES)


def _scan(call: Call, places: dict[str, Any], defines: Defines, buffers: tuple[Any, ...]) -> Iterator[Launch]:
    """A dispatch with a workgroup for each sequence, head and 64 columns of a state [heads, keys, values]."""
    keys = places["keys"]
    if keys > LARGEST_DIM:
        raise BackendError(call.instr.op, f"states have at most {LARGEST_DIM} rows on this backend", given=keys)
    # A software device takes seconds to compile a loop that it unrolls; others keep the state in registers only so.
    bound = "p.keys" if call.device.adapter.software else "KEYS"
    defines = (*defines, ("KEYS", str(keys)), ("LOOP", bound))
    times = places["heads"] * -(-places["values"] // LANES)
    yield Launch(call.instr.op, defines, places, buffers, places["sequences"], 1, times)


@kernel("delta_rule")
def delta_rule(call: Call) -> Iterator[Launch]:
    _, key_heads, keys = call.shape(0)
    _, heads, values = call.shape(2)
    places, defines, state = slots_at(call, 5)
    places |= {name: call.at(index) for index, name in enumerate(("q", "k", "v", "decay", "beta"))}
    places |= {"out": call.out(), "heads": heads, "key_heads": key_heads, "keys": keys, "values": values}
    places["scale"] = float(call.attrs["scale"])
    yield from _scan(call, places, (*defines, ("TILED", str(call.attrs["tiled"]))), state)


@kernel("mamba2")
def mamba2(call: Call) -> Iterator[Launch]:
    _, heads, values = call.shape(0)
    _, key_heads, keys = call.shape(1)
    places, defines, state = slots_at(call, 6)
    places |= {name: call.at(index) for index, name in enumerate(("x", "b", "c", "rate"))}
    places |= {"out": call.out(), "heads": heads, "key_heads": key_heads, "keys": keys, "values": values}
    owned = call.is_weight(4)
    if owned != call.is_weight(5):
        raise BackendError("mamba2", "decay and skip must both be weights, or both values")
    if not owned:
        places |= {"decay": call.at(4), "skip": call.at(5)}
    vectors = (call.vector(4), call.vector(5)) if owned else ()
    yield from _scan(call, places, (*defines, ("OWNED", str(owned))), (*vectors, *state))
