"""The rules of a program, as a checker. Backends trust what passed; a program from a file has to pass first."""

from functools import lru_cache
from itertools import pairwise
from typing import Any, NoReturn

from weft.dtype import DTYPES, DType
from weft.errors import FormatError, InputError, ShapeError
from weft.graph.lifetime import lifetimes, may_overwrite
from weft.graph.program import BUFFER, KINDS, NAME, Instr, Program
from weft.ops.registry import Op, known
from weft.ops.spec import Dim, Shape, Spec, linear
from weft.ops.state import KV_ELEMENTS, STATE_KINDS

Attrs = tuple[tuple[str, type, Any], ...]  # with their types: 1, 1.0 and True are the same key of a table

BOUND = (*STATE_KINDS, "table")  # kinds that are bound to memory of their own and are no arrays
MAX_RANK = 4  # csrc/core/kernel.h: Operand
MAX_SIZE = 2**40  # of an axis
MAX_BYTES = 2**60  # of a value, per symbol: the core computes sizes in 64 bits
TYPES = {
    "input": ("f32", "i32", "bf16", "a8_32", "a8_256", "i8"),
    "buffer": ("f32", "i32", "bf16", "a8_32", "a8_256", "i8"),
    "output": ("f32", "i32", "bf16", "a8_32", "a8_256", "i8"),
    "kv": KV_ELEMENTS,
    "recurrent": ("f32",),
    "conv": ("f32",),
    "table": ("f32",),
    "weight": tuple(d.name for d in DTYPES.values() if d.stores_weights),
}


def verify(program: Program) -> None:
    """Raise FormatError naming the value or instruction that breaks a rule."""
    _need(program.name.isprintable(), program, "name", "must be printable")
    _check_values(program)
    written: set[str] = {value.name for value in program.values if value.kind not in ("buffer", "output")}
    for index, instr in enumerate(program.body):
        _check_instr(program, index, instr, written)
        written.update(instr.outputs)
    for value in program.values:
        _need(value.name in written, program, value.name, f"{value.kind} is never written")
    if program.slots or any(value.slot is not None for value in program.values):
        _check_slots(program)


def _need(condition: bool, program: Program, where: object, message: str) -> None:
    if not condition:
        _refuse(program, where, message)


def _refuse(program: Program, where: object, message: object) -> NoReturn:
    raise FormatError(f"program {program.name}, {where}", str(message))


def _check_values(program: Program) -> None:
    seen: set[str] = set()
    for value in program.values:
        name = value.name
        if name in seen:
            _refuse(program, name, "name is used twice")
        seen.add(name)
        wrong = _wrong_kind(value.kind, value.dtype, value.shape)
        if wrong is not None:
            _refuse(program, name, wrong)
        pattern = BUFFER if value.kind == "buffer" else NAME
        if pattern.fullmatch(name) is None:
            _refuse(program, name, f"not the name of a {value.kind}")
        if value.slot is not None and value.kind != "buffer":
            _refuse(program, name, f"a {value.kind} has no slot")


# Both are called for the same few specs again and again, by the layers of a model and by each pass.


@lru_cache(maxsize=4096)
def _wrong_kind(kind: str, dtype: DType, shape: Shape) -> str | None:
    """What is wrong with values of this kind, type and shape; None if they are right."""
    if kind not in KINDS:
        return f"unknown kind {kind}"
    if dtype.name not in TYPES[kind]:
        return f"a {kind} cannot be {dtype}"
    if kind == "kv" and len(shape) != 2:
        return "a key/value state is [heads, dim]"
    if kind == "conv" and not (len(shape) == 2 and isinstance(shape[1], int) and shape[1] > 1):
        return "a convolution's state is [channels, width], at least 2 wide"
    if kind == "table" and len(shape) not in (2, 3):
        return "a table is of a weight [rows, cols] or of a stack of them"
    spec = Spec(shape, dtype)
    if not 0 < len(shape) <= MAX_RANK:
        return f"{spec} must have 1 to {MAX_RANK} axes"
    for size in shape:
        form = linear(size)
        grows = all(0 <= coefficient < MAX_SIZE for coefficient in form.coefficients[:3])
        if not (grows and -MAX_SIZE < form.const < MAX_SIZE and (isinstance(size, Dim) or size >= 0)):
            return f"{size} is not a size"
        if kind in ("weight", *BOUND) and not isinstance(size, int):
            return f"a {kind} has fixed sizes: got {spec}"
    if sum(isinstance(size, Dim) for size in shape) > 1:
        return f"{spec} has more than one symbolic axis"
    whole = isinstance(shape[-1], int) and shape[-1] % dtype.block == 0
    if dtype.quantised and not whole:
        return f"rows of {spec} are not whole blocks"
    if not all(abs(coefficient) < MAX_BYTES for coefficient in linear(spec.nbytes).coefficients):
        return f"{spec} is beyond all memory"
    return None


@lru_cache(maxsize=4096)
def _results(op: Op, specs: tuple[Spec | None, ...], attrs: Attrs) -> tuple[Spec, ...]:
    """Specs of the results; raises InputError or ShapeError where operands and attributes do not fit."""
    given = {name: value for name, _, value in attrs}
    _, checked = op.bind(specs, given)
    if checked != given:
        raise InputError(op.name, f"attributes are incomplete: they must be {checked}", given=given)
    return op.infer(specs, checked)


def _check_instr(program: Program, index: int, instr: Instr, written: set[str]) -> None:
    where, table = f"{index} {instr.op}", program.table
    if known(instr.op) is None:
        _refuse(program, where, "unknown op")
    for name in (*instr.operands, *instr.outputs):
        if name not in table:
            _refuse(program, where, f"unknown value {name}")
    for name in instr.operands:
        if name not in written:
            _refuse(program, where, f"{name} is read before it is written")
    for name in instr.outputs:
        if name in written:
            _refuse(program, where, f"{name} is written twice, or cannot be written")
        if instr.outputs.count(name) != 1:
            _refuse(program, where, f"{name} is written twice")
    op = instr.meaning
    if len(instr.inputs) != len(op.operands):
        _refuse(program, where, f"takes {len(op.operands)} operands")
    specs = tuple([None if name is None else table[name].spec for name in instr.inputs])
    attrs = tuple([(name, type(value), value) for name, value in instr.attrs.items()])
    try:
        results = _results(op, specs, attrs)
    except TypeError:  # not hashable
        _refuse(program, where, f"attributes must be numbers, words and sizes: got {dict(instr.attrs)!r:.200}")
    except (InputError, ShapeError) as error:
        details = {"field": error.field, "given": error.given, "advice": error.advice}
        raise FormatError(f"program {program.name}, {where}", error.what, **details) from error
    _check_operands(program, where, instr)
    if len(results) != len(instr.outputs):
        _refuse(program, where, f"has {len(results)} results")
    for spec, name in zip(results, instr.outputs):
        if table[name].spec != spec:
            _refuse(program, where, f"{name} is {table[name].spec}, the op gives {spec}")
    if instr.op == "reshape":
        kinds = [table[name].kind for name in (*instr.operands, *instr.outputs)]
        _need(kinds == ["buffer", "buffer"], program, where, "only buffers are reshaped, into buffers")


def _check_operands(program: Program, where: str, instr: Instr) -> None:
    for operand, given in zip(instr.meaning.operands, instr.inputs):
        if given is not None:
            kind, role = program.table[given].kind, operand.role
            # A weight may stand for an array.
            fits = kind == role if role in ("weight", *BOUND) else kind not in BOUND
            if not fits:
                _refuse(program, where, f"{operand.name} must be a {role}: got the {kind} {given}")


def _check_slots(program: Program) -> None:
    buffers = program.of_kind("buffer")
    for value in buffers:
        slot = value.slot
        _need(isinstance(slot, int) and 0 <= slot < len(program.slots), program, value.name, f"has no slot {slot}")
        room, bytes_ = program.slots[slot or 0].coefficients, linear(value.spec.nbytes).coefficients
        _need(all(a >= b for a, b in zip(room, bytes_)), program, value.name, f"does not fit its slot {slot}")
    table = program.table
    found = lifetimes(program)
    for name, life in found.items():
        _need(table[name].slot == table[life.root].slot, program, name, f"is a reshape outside the slot of {life.root}")
    by_slot: dict[int | None, list[str]] = {}
    for root in sorted({life.root for life in found.values()}, key=lambda name: found[name].start):
        by_slot.setdefault(table[root].slot, []).append(root)
    for slot, roots in by_slot.items():
        for earlier, later in pairwise(roots):  # sorted by start, so neighbours are the only pairs to check
            a, b = found[earlier], found[later]
            apart = a.end < b.start or (
                a.end == b.start > a.start and may_overwrite(program, program.body[b.start], later, a.members)
            )
            _need(apart, program, later, f"shares slot {slot} with {earlier}, which is live until {a.end}")
