"""The rules of a program, as a checker. Backends trust what passed; a program from a file has to pass first."""

from itertools import pairwise

from weft.dtype import DTYPES
from weft.errors import FormatError, InputError, ShapeError
from weft.graph.lifetime import lifetimes, may_overwrite
from weft.graph.program import BUFFER, KINDS, NAME, Instr, Program, Value
from weft.ops.registry import catalogue
from weft.ops.spec import Dim, linear

MAX_RANK = 4  # csrc/core/kernel.h: Operand
MAX_SIZE = 2**40  # of an axis
MAX_BYTES = 2**60  # of a value, per symbol: the core computes sizes in 64 bits
TYPES = {
    "input": ("f32", "i32", "bf16", "a8_32", "a8_256", "i8"),
    "buffer": ("f32", "bf16", "a8_32", "a8_256", "i8"),
    "output": ("f32", "bf16", "a8_32", "a8_256", "i8"),
    "state": ("f32", "f16"),
    "weight": ("f32", "f16", "bf16", *(d.name for d in DTYPES.values() if d.gguf is not None and d.quantised)),
}


def verify(program: Program) -> None:
    """Raise FormatError naming the value or instruction that breaks a rule."""
    _need(program.name.isprintable(), program, "name", "must be printable")
    _check_values(program)
    written: set[str] = {value.name for value in program.values if value.kind in ("input", "weight", "state")}
    for index, instr in enumerate(program.body):
        _check_instr(program, index, instr, written)
        written.update(instr.outputs)
    for value in program.values:
        _need(value.name in written, program, value.name, f"{value.kind} is never written")
    if program.slots or any(value.slot is not None for value in program.values):
        _check_slots(program)


def _need(condition: bool, program: Program, where: object, message: str) -> None:
    if not condition:
        raise FormatError(f"[program {program.name}] {where}: {message}")


def _check_values(program: Program) -> None:
    seen: set[str] = set()
    for value in program.values:
        name = value.name
        _need(name not in seen, program, name, "name is used twice")
        seen.add(name)
        _need(value.kind in KINDS, program, name, f"unknown kind {value.kind}")
        pattern = BUFFER if value.kind == "buffer" else NAME
        _need(pattern.fullmatch(name) is not None, program, name, f"not the name of a {value.kind}")
        _need(value.dtype.name in TYPES[value.kind], program, name, f"a {value.kind} cannot be {value.dtype}")
        _need(value.slot is None or value.kind == "buffer", program, name, f"a {value.kind} has no slot")
        _need(value.kind != "state" or len(value.shape) == 2, program, name, "a state is [heads, dim]")
        _check_shape(program, value)


def _check_shape(program: Program, value: Value) -> None:
    _need(0 < len(value.shape) <= MAX_RANK, program, value.name, f"{value.spec} must have 1 to {MAX_RANK} axes")
    for size in value.shape:
        form = linear(size)
        grows = all(0 <= coefficient < MAX_SIZE for coefficient in form.coefficients[:3])
        known = -MAX_SIZE < form.const < MAX_SIZE and (isinstance(size, Dim) or size >= 0)
        _need(grows and known, program, value.name, f"{size} is not a size")
        fixed = value.kind not in ("weight", "state") or isinstance(size, int)
        _need(fixed, program, value.name, f"a {value.kind} has fixed sizes: got {value.spec}")
    symbolic = sum(isinstance(size, Dim) for size in value.shape)
    _need(symbolic <= 1, program, value.name, f"{value.spec} has more than one symbolic axis")
    whole = isinstance(value.shape[-1], int) and value.shape[-1] % value.dtype.block == 0
    _need(whole or not value.dtype.quantised, program, value.name, f"rows of {value.spec} are not whole blocks")
    small = all(abs(coefficient) < MAX_BYTES for coefficient in linear(value.spec.nbytes).coefficients)
    _need(small, program, value.name, f"{value.spec} is beyond all memory")


def _check_instr(program: Program, index: int, instr: Instr, written: set[str]) -> None:
    where, table = f"{index} {instr.op}", program.table
    _need(instr.op in catalogue(), program, where, "unknown op")
    for name in (*instr.operands, *instr.outputs):
        _need(name in table, program, where, f"unknown value {name}")
    for name in instr.operands:
        _need(name in written, program, where, f"{name} is read before it is written")
    for name in instr.outputs:
        _need(name not in written, program, where, f"{name} is written twice, or is no result")
        _need(instr.outputs.count(name) == 1, program, where, f"{name} is written twice")
    op = instr.meaning
    _need(len(instr.inputs) == len(op.operands), program, where, f"takes {len(op.operands)} operands")
    try:
        operands, attrs = op.bind(instr.inputs, instr.attrs)
        _need(attrs == dict(instr.attrs), program, where, f"attributes {dict(instr.attrs)} are not complete: {attrs}")
        results = op.infer([None if name is None else table[name].spec for name in operands], attrs)
    except (InputError, ShapeError) as error:
        raise FormatError(f"[program {program.name}] {where}: {error}") from error
    for operand, given in zip(op.operands, instr.inputs):
        if given is not None:
            kind, role = table[given].kind, operand.role
            fits = kind == role if role in ("weight", "state") else kind != "state"  # a weight may stand for an array
            _need(fits, program, where, f"{operand.name} must be a {role}: got the {kind} {given}")
    _need(len(results) == len(instr.outputs), program, where, f"has {len(results)} results")
    for spec, name in zip(results, instr.outputs):
        _need(table[name].spec == spec, program, where, f"{name} is {table[name].spec}, the op gives {spec}")
    if instr.op == "reshape":
        kinds = [table[name].kind for name in (*instr.operands, *instr.outputs)]
        _need(kinds == ["buffer", "buffer"], program, where, "only buffers are reshaped, into buffers")


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
