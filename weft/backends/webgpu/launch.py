"""What one dispatch needs, and how each op becomes dispatches.

Offsets, counts and sizes are linear forms of T, B and L, as the shapes of a program are: a step puts numbers in by one
product of a matrix.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weft.backends.base import fixed
from weft.dtype import DType
from weft.errors import BackendError
from weft.frozen import frozen
from weft.ops.spec import Dim, linear
from weft.ops.state import KV_ROTATED

if TYPE_CHECKING:
    from weft.graph.program import Instr, Program, Value

Form: TypeAlias = "Dim | int"
Defines: TypeAlias = tuple[tuple[str, str], ...]
LANES = 64  # of an elementwise launch
PART = 32  # columns that a product adds up at a time; rows of weights are padded to it
MANY = 1 << 62
WIDE_NORM = 512  # columns of a norm from which 256 lanes take a row
PAGED = ("attention_paged", "attention_paged_bf16")
UNROLLED = 16  # words that attention reads at once
WORD = 4  # bytes
ROW_BLOCKS = 64  # of keys, at most, where one launch attends for one row: it keeps parts of all
TEAMS = 4  # of lanes that share the keys of a query: attention_paged.wgsl
LARGEST_DIM = 512  # channels of a head: lib/attend.wgsl
# Channels of a state's keys and values in a word: lib/pages.wgsl.
PER_WORD = {"f32": 1, "f16": 2, "bf16": 2, "i8": 4, "i8r": 4, "i4r": 8}
STORED = (
    *("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4"),
)  # types that lib/weights.wgsl reads; others are widened when they are uploaded


class Blocks:
    """The blocks of keys that a step's attention is split into: a number that each step has, like T."""


BLOCKS = Blocks()


@frozen(eq=False)
class Launch:
    """A dispatch: a shader and its definitions, parameters by name, buffers beside the arena, and ceil(items / per)
    workgroups, `times` each, which may be BLOCKS."""

    shader: str
    defines: tuple[tuple[str, str], ...]
    params: Mapping[str, Any]
    buffers: tuple[Any, ...]
    items: Form
    per: int = 1
    times: int | Blocks = 1
    least: int = 0  # it is left out where items are fewer, or more than
    most: int = MANY
    split: bool | None = None  # it is left out of steps whose attention is not split, or is
    row: bool | None = None  # it is left out of steps that are not one row of a short context, or are
    beside: Form = 0  # words of scratch memory that it writes


class Call:
    """An instruction as its kernel sees it: operands by position, absent ones None."""

    def __init__(
        self,
        instr: Instr,
        table: Mapping[str, Value],
        places: Mapping[str, Dim],
        bound: Mapping[str, Any],
        device: Any = None,
        scratch: Form = 0,
    ) -> None:
        self.device = device
        self.scratch = scratch  # where parts of a result can be kept, in words
        self.instr = instr
        self.attrs = instr.attrs
        self.values = [None if name is None else table[name] for name in instr.inputs]
        self.results = [table[name] for name in instr.outputs]
        self._places = places
        self._bound = bound

    def given(self, index: int) -> bool:
        return index < len(self.values) and self.values[index] is not None

    def is_weight(self, index: int) -> bool:
        value = self.values[index]
        return value is not None and value.kind == "weight"

    def shape(self, index: int) -> tuple[Any, ...]:
        value = self.values[index]
        assert value is not None
        return value.shape

    def at(self, index: int) -> Form:
        """Where an operand lies in the arena, in words."""
        return self.place(self.instr.inputs[index])

    def out(self, index: int = 0) -> Form:
        return self.place(self.instr.outputs[index])

    def place(self, name: str | None) -> Form:
        assert name is not None
        if name not in self._places:
            raise BackendError(self.instr.op, f"{name} is a weight, and this backend wants an array")
        return Dim(*(part // WORD for part in self._places[name].coefficients))

    def bound(self, index: int) -> Any:
        """The weight, state or table of an operand."""
        return self._bound[str(self.instr.inputs[index])]

    def vector(self, index: int) -> Any:
        """The only buffer of a weight that is kept whole."""
        (part,) = self.bound(index).parts
        return part.buffer


def count(shape: Sequence[Any]) -> Form:
    """Elements of a shape; at most one size is symbolic."""
    total: Any = 1
    for size in shape:
        total = size * total if isinstance(size, Dim) else total * size
    return total


Kernel = Callable[[Call], Iterator[Launch]]
KERNELS: dict[str, Kernel] = {}


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    def keep(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(names, function))
        return function

    return keep


def supports(op: str, dtypes: Sequence[DType]) -> bool:
    """Whether an op runs with operands of these types. Values of programs are f32 or i32; weights and states may be
    others where a kernel reads them."""
    if op == "reshape":
        return not dtypes or dtypes[0].name in ("f32", "i32")
    if op not in KERNELS:
        return False
    if not dtypes:
        return True
    names = [one.name for one in dtypes]
    if op in ("matmul", "embedding", "causal_conv"):
        return names[0] in ("f32", "i32")
    if op == "attention":
        return all(name in ("f32", "i32", "f16", "bf16") for name in names)
    if op in ("kv_write", "rope_write", "attention_paged"):
        return all(name in ("i32", *PER_WORD) for name in names)
    return all(name in ("f32", "i32") for name in names)


@kernel("add", "mul")
def pairs(call: Call) -> Iterator[Launch]:
    total, period = count(call.shape(0)), count(call.shape(1))
    weight = call.is_weight(1)
    places: dict[str, Any] = {"x": call.at(0), "y": 0 if weight else call.at(1), "out": call.out()}
    places |= {"count": total, "period": period}
    buffers = (call.vector(1),) if weight else ()
    yield Launch(call.instr.op, (("WEIGHT", str(weight)),), places, buffers, total, LANES)


@kernel("scale", "softcap", "activate")
def single(call: Call) -> Iterator[Launch]:
    total = count(call.shape(0))
    numbers = {name: float(call.attrs[name]) for name in ("by", "cap") if name in call.attrs}
    defines = (("ACTIVATION", call.attrs["kind"]),) if "kind" in call.attrs else ()
    yield Launch(
        call.instr.op, defines, {"x": call.at(0), "out": call.out(), "count": total, **numbers}, (), total, LANES
    )


@kernel("gated", "gated_clamped")
def gated(call: Call) -> Iterator[Launch]:
    total = count(call.shape(0))
    numbers = {name: float(call.attrs[name]) for name in ("limit", "alpha") if name in call.attrs}
    defines = (("ACTIVATION", call.attrs["kind"]),) if "kind" in call.attrs else ()
    places = {"gate": call.at(0), "up": call.at(1), "out": call.out(), "count": total}
    yield Launch(call.instr.op, defines, {**places, **numbers}, (), total, LANES)


@kernel("rms_norm", "layer_norm", "l2_normalise", "softmax")
def norm(call: Call) -> Iterator[Launch]:
    *leading, cols = call.shape(0)
    rows = count(leading)
    numbers = {"eps": float(call.attrs["eps"])} if "eps" in call.attrs else {}
    buffers = tuple(call.vector(index) for index in range(1, len(call.values)))
    places = {"x": call.at(0), "out": call.out(), "rows": rows, "cols": cols}
    yield Launch(call.instr.op, lanes_for(call.instr.op, cols), {**places, **numbers}, buffers, rows)


def lanes_for(op: str, cols: int) -> Defines:
    """How many lanes share a row, and how many columns each of them keeps, where the op's shader asks for it."""
    if op in ("layer_norm", "add_layer_norm"):
        return (("COLS", str(cols)),)
    if op not in ("rms_norm", "add_rms_norm"):
        return ()
    wide = cols >= WIDE_NORM
    return ("WIDE", str(wide)), ("EACH", str(-(-cols // (4 * LANES if wide else LANES))))


@kernel("add_rms_norm", "add_layer_norm")
def add_norm(call: Call) -> Iterator[Launch]:
    *leading, cols = call.shape(0)
    rows = count(leading)
    places = {"x": call.at(0), "y": call.at(1), "out": call.out(), "rows": rows, "cols": cols}
    if len(call.results) == 2:
        places["norm"] = call.out(1)
    buffers = tuple(call.vector(index) for index in range(2, len(call.values)))
    places |= {"eps": float(call.attrs["eps"])}
    yield Launch(call.instr.op, lanes_for(call.instr.op, cols), places, buffers, rows)


@kernel("take_rows")
def take_rows(call: Call) -> Iterator[Launch]:
    cols, total = call.shape(0)[1], count(call.results[0].shape)
    places = {"x": call.at(0), "chosen": call.at(1), "out": call.out(), "count": total, "cols": cols}
    yield Launch("take_rows", (), places, (), total, LANES)


@kernel("pool")
def pool(call: Call) -> Iterator[Launch]:
    cols, total = call.shape(0)[1], count(call.results[0].shape)
    places = {"x": call.at(0), "segments": call.at(1), "out": call.out(), "count": total, "cols": cols}
    yield Launch("pool", (("MODE", call.attrs["mode"]),), places, (), total, LANES)


@kernel("embedding")
def embedding(call: Call) -> Iterator[Launch]:
    (tokens,), cols = call.shape(0), call.shape(1)[1]
    weight = call.bound(1)  # a DeviceWeight
    quads = -(-cols // 4)
    for part in weight.parts:
        places = {"ids": call.at(0), "out": call.out(), "tokens": tokens, "cols": cols, "stride": weight.stride}
        places |= {"first": part.first, "rows": part.rows}
        yield Launch(
            "embedding", (("DTYPE", weight.stored), ("DEPTH", "cols")), places, (part.buffer,), tokens * quads, LANES
        )


@kernel("attention")
def attention(call: Call) -> Iterator[Launch]:
    own = None if call.device is None else call.device.attention(call)
    if own is not None:
        yield from own
        return
    tokens, heads, dim = call.shape(0)
    if dim > LARGEST_DIM:
        raise BackendError("attention", f"heads have at most {LARGEST_DIM} channels on this backend", given=dim)
    buffers = tuple(call.vector(index) for index in (4, 5, 6) if call.given(index))
    places: dict[str, Any] = {"q": call.at(0), "k": call.at(1), "v": call.at(2), "segments": call.at(3)}
    places |= {"out": call.out(), "tokens": tokens, "sequences": call.shape(3)[0] - 1, "heads": heads}
    places |= {"key_heads": call.shape(1)[1], "dim": dim, "window": call.attrs["window"]}
    places |= {"reach": call.shape(6)[0] // 2 if call.given(6) else 0}
    places |= {"scale": float(call.attrs["scale"]), "cap": float(call.attrs["softcap"])}
    defines: Defines = (
        ("CAUSAL", str(call.attrs["causal"])),
        ("SINKS", str(call.given(4))),
        ("TABLE", str(call.given(5))),
    )
    defines += (("SLOTS", str(-(-dim // LANES))), ("DIM", str(dim)))
    yield Launch("attention", defines, places, buffers, tokens * heads)


def paged(call: Call, tokens: Form, first: int) -> tuple[dict[str, Any], Defines]:
    """Where positions, segments and pages are, the operands from `first` on; and how the state before them is kept."""
    state = call.values[first - 1]
    assert state is not None
    key_heads, dim = fixed(state.shape)
    if dim > LARGEST_DIM:
        raise BackendError(call.instr.op, f"heads have at most {LARGEST_DIM} channels on this backend", given=dim)
    names = ("positions", "segments", "pages")
    places: dict[str, Any] = {name: call.at(first + index) for index, name in enumerate(names)}
    places |= {"tokens": tokens, "sequences": call.shape(first + 1)[0] - 1, "max_pages": call.shape(first + 2)[1]}
    places |= {"key_heads": key_heads, "dim": dim}
    defines: Defines = (("KV", state.dtype.name), ("PER", str(PER_WORD[state.dtype.name])))
    size = dim & -dim
    if state.dtype.name in KV_ROTATED:
        defines += (("TURNED", "1"), ("SIZE", str(size)), ("BY", str(np.float32(1) / np.sqrt(np.float32(size)))))
    return places, defines


def _centre(call: Call, at: int) -> tuple[tuple[Any, ...], Defines]:
    """The operands of a constant that keys are less, from `at` on, and what says that they are there."""
    if not call.given(at):
        return (), ()
    return (call.vector(at), call.vector(at + 1)), (("CENTRED", "1"),)


@kernel("kv_write")
def kv_write(call: Call) -> Iterator[Launch]:
    tokens, key_heads, _ = call.shape(0)
    places, defines = paged(call, tokens, 3)
    places |= {"k": call.at(0), "v": call.at(1)}
    centre, centred = _centre(call, 6)
    yield Launch("kv_write", defines + centred, places, (call.bound(2).buffer, *centre), tokens * (2 * key_heads))


@kernel("rope_table")
def rope_table(call: Call) -> Iterator[Launch]:
    (pairs,) = call.shape(1)
    tokens = call.shape(0)[-1]
    total = count([tokens, pairs])
    places = {"positions": call.at(0), "out": call.out(), "count": total, "pairs": pairs}
    places |= {"scale": float(call.attrs["scale"])}
    if not call.given(2):
        yield Launch("rope_table", (), places, (call.vector(1),), total, LANES)
        return
    buffers = (call.vector(1), call.vector(2))
    yield Launch("rope_table", (("AXES", "1"),), {**places, "tokens": tokens}, buffers, total, LANES)


@kernel("rope_turn")
def rope_turn(call: Call) -> Iterator[Launch]:
    tokens, heads, dim = call.shape(0)
    if dim > LARGEST_DIM:
        raise BackendError("rope_turn", f"heads have at most {LARGEST_DIM} channels on this backend", given=dim)
    places: dict[str, Any] = {"x": call.at(0), "table": call.at(1), "out": call.out(), "rows": tokens * heads}
    places |= {"heads": heads, "dim": dim, "pairs": call.shape(1)[1] // 2}
    defines = (("INTERLEAVED", str(call.attrs["interleaved"])),)
    yield Launch("rope_turn", defines, places, (), tokens * heads)


@kernel("rope_write")
def rope_write(call: Call) -> Iterator[Launch]:
    tokens, heads, _ = call.shape(0)
    places, defines = paged(call, tokens, 5)
    places |= {name: call.at(index) for index, name in enumerate(("q", "k", "v", "table"))}
    places |= {"out": call.out(), "heads": heads, "pairs": call.shape(3)[1] // 2}
    centre, centred = _centre(call, 8)
    defines += (("INTERLEAVED", str(call.attrs["interleaved"])), *centred)
    each = heads + 2 * call.shape(1)[1]
    launch = Launch("rope_write", defines, places, (call.bound(4).buffer, *centre), tokens * each)
    yield launch if call.device is None else call.device.specialised(launch)


@kernel("attention_paged")
def attention_paged(call: Call) -> Iterator[Launch]:
    """One dispatch, or two where a step splits the keys of a query over workgroups; with the same bits."""
    own = None if call.device is None or call.given(6) else call.device.attention(call)
    if own is not None:
        yield from own
        return
    tokens, heads, dim = call.shape(0)
    places, defines = paged(call, tokens, 2)
    places |= {"q": call.at(0), "out": call.out(), "heads": heads, "window": call.attrs["window"]}
    places |= {"scale": float(call.attrs["scale"]), "cap": float(call.attrs["softcap"])}
    sinks = (call.vector(5),) if call.given(5) else ()
    per = min(4, int(dict(defines)["PER"]))
    words = -(-dim // per)
    turned = tuple((name, value) for name, value in defines if name in ("TURNED", "SIZE", "BY"))
    defines += (("CHANNELS", "f32" if per == 1 else f"vec{per}<f32>"), ("SLOTS", str(-(-words // LANES))))
    defines += (("EACH", str(per)),)
    defines += (("WORDS", str(words)), ("CHUNKS", str(words // UNROLLED)), ("WIDTH", str(words * per)))
    sunk: Defines = (("SINKS", str(len(sinks))), ("REACH", str(call.given(6))))
    if call.given(6):
        places["reach"] = call.at(6)
    state, items = call.bound(1).buffer, tokens * heads
    whole = (*defines, *_teams(TEAMS, words * per), *sunk)
    yield Launch("attention_paged", whole, places, (state, *sinks), items, split=False)
    parts = {"parts": call.scratch, "blocks": BLOCKS}
    part = (*defines, *_teams(1, words * per), sunk[1], ("PARTS", "1"))
    yield Launch("attention_paged", part, places | parts, (state,), items, times=BLOCKS, split=True)
    names = ("positions", "out", "tokens", "heads", "dim", "window", "reach")
    kept = {name: places[name] for name in names if name in places}
    yield Launch("attention_join", sunk + turned, kept | parts, sinks, items, split=True)


def _teams(teams: int, width: int) -> Defines:
    return ("TEAMS", str(teams)), ("ALL", str(teams * LANES)), ("JOINED", str(teams * width))


def query_heads(program: Program) -> list[tuple[int, int]]:
    """Of each attention over a state, the heads of its queries and their channels."""
    shapes = [program.table[str(instr.inputs[0])].shape for instr in program.body if instr.op in PAGED]
    return [(heads, dim) for heads, dim in (fixed(shape[1:]) for shape in shapes)]


def bits(value: Any) -> tuple[int, int, int, int]:
    """A parameter as a form whose number, for any step, is the word that the shader reads."""
    if isinstance(value, float):
        return 0, 0, 0, struct.unpack("<I", struct.pack("<f", value))[0]
    coefficients = linear(value).coefficients
    return coefficients[0], coefficients[1], coefficients[2], coefficients[3]


def words(shape: Sequence[int]) -> int:
    return math.prod(shape)


def copy(call: Call) -> Iterator[Launch]:
    """The elements of an operand where the result is."""
    total = count(call.shape(0))
    yield Launch("scale", (), {"x": call.at(0), "out": call.out(), "count": total, "by": 1.0}, (), total, LANES)
