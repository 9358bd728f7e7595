"""Mixtures of experts: which experts a token goes to, its rows by expert, and the sum of the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.backends.webgpu.launch import LANES, Call, Defines, Launch, count, kernel


@kernel("route")
def route(call: Call) -> Iterator[Launch]:
    rows, experts = call.shape(0)
    attrs = call.attrs
    defines: Defines = tuple((name.upper(), str(attrs[name])) for name in ("sigmoid", "normalise"))
    bias = (call.vector(1),) if call.given(1) else ()
    places: dict[str, Any] = {"scores": call.at(0), "chosen": call.out(), "weights": call.out(1), "rows": rows}
    places |= {"experts": experts, "top": attrs["top"], "scale": float(attrs["scale"]), "eps": float(attrs["eps"])}
    yield Launch("route", (*defines, ("BIAS", str(len(bias)))), places, bias, rows)


@kernel("group")
def group(call: Call) -> Iterator[Launch]:
    choices, experts = call.shape(0), call.attrs["experts"]
    places = {"chosen": call.at(0), "count": count(choices), "experts": experts, "top": choices[1]}
    places |= {name: call.out(index) for index, name in enumerate(("rows", "starts", "places"))}
    yield Launch("group", (), places, (), experts)


@kernel("combine")
def combine(call: Call) -> Iterator[Launch]:
    cols, total = call.shape(0)[1], count(call.results[0].shape)
    places = {name: call.at(index) for index, name in enumerate(("x", "places", "weights"))}
    places |= {"out": call.out(), "count": total, "cols": cols, "top": call.shape(1)[1]}
    shared = call.given(3)
    if shared:
        places |= {"shared_rows": call.at(3), "share": call.at(4)}
    yield Launch("combine", (("SHARED", str(shared)),), places, (), total, LANES)
