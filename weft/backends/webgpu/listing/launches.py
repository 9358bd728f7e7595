"""The list of a program's launches, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.backends.base import Planned, WantedState, fixed, wanted_states
from weft.backends.webgpu.executable import (
    BLOCK,
    FEW_BLOCKS,
    MOST_PARTS,
    Places,
    launches_of,
    split_of,
)
from weft.backends.webgpu.launch import BLOCKS, MANY, WORD, Form, Launch, bits
from weft.backends.webgpu.listing.backend import ListBackend, ListedBuffer, ListedState, listed_weights
from weft.backends.webgpu.shader import Shader, shader
from weft.backends.webgpu.top import top_launches
from weft.dtype import DType
from weft.errors import UnsupportedError
from weft.graph.program import Program, Value
from weft.ops.spec import Dim, linear

LIST_VERSION = 1
ALL_LOGITS = "logits"  # the output of which the largest of a row can be read alone


def launch_list(
    planned: Planned, backend: ListBackend, stored: Mapping[str, tuple[DType, tuple[int, ...]]]
) -> dict[str, Any]:
    """What a host needs to run a program with the weights of a bundle, `stored`: see docs/design/bundle.md."""
    program = planned.program
    for value in program.values:
        if value.kind in ("input", "output", "buffer") and value.dtype.name not in backend.device.holds:
            raise UnsupportedError("export", f"{value.name} is {value.dtype}; shaders hold f32 and i32")
    bound: dict[str, Any] = dict(listed_weights(backend.layouts(program), stored, backend.device.largest_buffer))
    states: list[WantedState] = list(wanted_states(program))
    bound |= {state.name: ListedState(state) for state in states}
    places = Places(program)
    writer = _Writer()
    written = [writer.launch(one) for one in launches_of(program, places, bound, backend.device)]
    heads, part_words = split_of(program)
    found: dict[str, Any] = {
        "weft_gpu": LIST_VERSION,
        "inputs": [_value(value, places) for value in program.inputs],
        "outputs": [_value(value, places) for value in program.outputs],
        "inputs_end": form(places.inputs_end),
        "outputs_at": form(places.outputs_start),
        "end": form(places.end),
        "launches": written,
        "split": {
            "heads": heads,
            "part_words": part_words,
            "busy": backend.device.busy,
            "block": BLOCK,
            "few": FEW_BLOCKS,
            "most_bytes": MOST_PARTS,
        },
        "largest": _largest(program, places, writer),
    }
    return {**found, "shaders": writer.shaders, "buffers": writer.buffers}


def form(value: Form) -> int | list[int]:
    """A form of T, B, L and 1 as a number, where it has no symbol, or as its coefficients."""
    coefficients = linear(value).coefficients
    return list(coefficients) if any(coefficients[:3]) else coefficients[3]


def _largest(program: Program, places: Places, writer: _Writer) -> dict[str, Any] | None:
    """Launches that find the largest number of each row of logits."""
    if [value.name for value in program.outputs] != [ALL_LOGITS]:
        return None
    (width,) = fixed(program.outputs[0].shape[1:])
    source, scratch = _words(places.of[ALL_LOGITS]), _words(places.end)
    launches, at = top_launches(width, 1, source, scratch)
    return {"launches": [writer.launch(one) for one in launches], "at": form(linear(at) * WORD)}


def _words(place: Dim) -> Dim:
    return Dim(*(part // WORD for part in place.coefficients))


def _value(value: Value, places: Places) -> dict[str, Any]:
    shape = [form(size) for size in value.shape]
    return {"name": value.name, "dtype": value.dtype.name, "shape": shape, "at": form(places.of[value.name])}


class _Writer:
    """Launches as JSON has them; shaders and buffers that several share are written once."""

    def __init__(self) -> None:
        self.shaders: list[dict[str, Any]] = []
        self.buffers: list[dict[str, Any]] = []
        self._shaders: dict[str, int] = {}
        self._buffers: dict[int, tuple[int, ListedBuffer]] = {}  # with the buffer: its id is not another's then

    def launch(self, launch: Launch) -> dict[str, Any]:
        made = shader(launch.shader, (*launch.defines, ("HALF", "")))
        assert {name for name, _ in made.params} == set(launch.params), launch.shader
        found: dict[str, Any] = {
            "shader": self._shader(made),
            "params": [_param(launch.params[name]) for name, _ in made.params],
            "buffers": [self._buffer(getattr(one, "buffer", one)) for one in launch.buffers],
            "items": form(launch.items),
        }
        optional = {
            "per": (launch.per, 1),
            "times": (0 if launch.times is BLOCKS else launch.times, 1),
            "least": (launch.least, 0),
            "most": (launch.most, MANY),
            "split": (launch.split, None),
            "beside": (form(launch.beside), 0),
        }
        return found | {name: value for name, (value, usual) in optional.items() if value != usual}

    def _shader(self, made: Shader) -> int:
        if made.text not in self._shaders:
            self._shaders[made.text] = len(self.shaders)
            about = {"name": made.name, "params": len(made.params), "written": list(made.written)}
            self.shaders.append({**about, "text": made.text})
        return self._shaders[made.text]

    def _buffer(self, buffer: ListedBuffer) -> int:
        if id(buffer) not in self._buffers:
            self._buffers[id(buffer)] = len(self.buffers), buffer
            self.buffers.append(_described(buffer))
        return self._buffers[id(buffer)][0]


def _described(buffer: ListedBuffer) -> dict[str, Any]:
    if buffer.state:
        return {"state": buffer.state, "page_bytes": buffer.nbytes}
    pieces = []
    for piece in buffer.pieces:
        about: dict[str, Any] = {"weight": piece.weight, "at": piece.at, "first": piece.first, "rows": piece.rows}
        more = {"stride": piece.stride, "codes": list(piece.codes) if piece.codes else None}
        pieces.append({name: value for name, value in (about | more).items() if value})
    return {"bytes": buffer.nbytes, "pieces": pieces}


def _param(value: Any) -> Any:
    """A number, the coefficients of T, B, L and 1, or "blocks"."""
    if value is BLOCKS:
        return "blocks"
    coefficients = bits(value)
    return list(coefficients) if any(coefficients[:3]) else coefficients[3]
