"""Experts as gpt_oss's files have them, as stacks of matrices [experts, outputs, inputs] under the names of GGUF's.

gate_up_proj has gates in its even outputs and ups in its odd ones. Matrices in bfloat16 are stored as [inputs,
outputs]; those in MXFP4 as blocks of 16 bytes beside their scales, two neighbours in a byte, where GGUF's blocks begin
with the scale and a byte has elements i and i + 16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.dtype import dtype
from weft.errors import WeightError
from weft.weights.files import MadeView, TensorView

if TYPE_CHECKING:
    import numpy as np

# What a tensor holds: the parts of its outputs, which alternate.
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def expert_stacks(tensors: Mapping[str, Any], *, halves: bool = False) -> dict[str, Any]:
    """The tensors with experts.gate_up_proj and experts.down_proj, in either form, as experts.each.gate_proj.weight and
    so on; each is made from the file when it is read. With `halves` gates come before all ups, and tensors that are
    [experts, outputs, inputs] stay as they are."""
    found: dict[str, Any] = {}
    for name, view in tensors.items():
        base, _, own = name.rpartition(".")
        stem = own.removesuffix("_blocks").removesuffix("_bias").removesuffix("_scales")
        if not base.endswith("experts") or stem not in _PARTS or (halves and _upright(tensors, base)):
            found[name] = view
        elif not own.endswith("_scales"):
            found.update(_parts(tensors, f"{base}.{stem}", base, own, stem, halves))
    return found


def _upright(tensors: Mapping[str, Any], base: str) -> bool:
    """Whether gate_up_proj is [experts, 2 inner, hidden], where down_proj is [experts, hidden, inner]."""
    gate_up, down = (tensors.get(f"{base}.{stem}") for stem in _PARTS)
    if gate_up is None or down is None or not len(gate_up.shape) == len(down.shape) == 3:
        return True  # what is wrong with them is said where they are read
    return bool(gate_up.shape[1:] == (2 * down.shape[2], down.shape[1]))


def _parts(
    tensors: Mapping[str, Any], full: str, base: str, own: str, stem: str, halves: bool
) -> dict[str, TensorView]:
    names, view = _PARTS[stem], tensors[f"{base}.{own}"]
    every = len(names)
    shape: tuple[int, ...]
    if own == stem:
        kind, make = view.dtype, partial(_turned, view)
        fits = len(view.shape) == 3 and not view.dtype.quantised
        shape = (view.shape[0], view.shape[-1], view.shape[1]) if fits else ()
    elif own.endswith("_bias"):
        fits, kind, make, shape = len(view.shape) == 2, view.dtype, partial(_plain, view), view.shape
    else:
        scales = tensors.get(f"{full}_scales")
        if scales is None:
            raise WeightError("weights", f"{full}_scales is missing, the scales of {full}_blocks")
        fits = len(view.shape) == 4 and view.shape[3] == 16 and scales.shape == view.shape[:3]
        fits = fits and view.dtype.name == scales.dtype.name == "u8"
        kind, make = dtype("mxfp4"), partial(_blocks, view, scales)
        shape = (*view.shape[:2], view.shape[2] * 32) if fits else ()
    if not fits or shape[1] % every:
        raise WeightError("weights", f"{base}.{own} has shape {view.shape} of {view.dtype}, which no experts have")
    ending = "bias" if own.endswith("_bias") else "weight"
    count = shape[1] // every
    whole = (shape[0], count, *shape[2:])
    return {
        f"{base}.each.{name}.{ending}": MadeView(kind, whole, _chosen(make, outputs))
        for name, outputs in zip(names, [_outputs(index, every, count, halves) for index in range(every)])
    }


def _outputs(index: int, every: int, count: int, halves: bool) -> slice:
    """Which outputs of a tensor part `index` of it has."""
    return slice(index * count, (index + 1) * count) if halves else slice(index, None, every)


def _chosen(make: Callable[[slice], np.ndarray], outputs: slice) -> Callable[[], np.ndarray]:
    return lambda: make(outputs)


def _turned(view: TensorView, outputs: slice) -> np.ndarray:
    return view.elements()[:, :, outputs].swapaxes(1, 2)


def _plain(view: TensorView, outputs: slice) -> np.ndarray:
    return view.elements()[:, outputs]


def _blocks(view: TensorView, scales: TensorView, outputs: slice) -> np.ndarray:
    import numpy as np

    stored = view.elements()[:, outputs]
    made = np.empty((*stored.shape[:3], 17), np.uint8)
    made[..., 0] = scales.elements()[:, outputs]
    low, high = stored[..., :8], stored[..., 8:]  # elements 0 to 15, 16 to 31
    made[..., 1::2] = (low & 15) | (high << 4)
    made[..., 2::2] = (low >> 4) | (high & 0xF0)
    return made
