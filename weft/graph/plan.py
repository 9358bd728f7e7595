"""Memory: every buffer gets a slot of the arena, and buffers that are never live together share one.

A slot's size is a linear form of T, B and L, coefficient by coefficient the largest of its buffers', so one plan serves
every step. Each coefficient is a multiple of 64 bytes: slots laid end to end are aligned whatever the sizes, and the
arena is the exact sum of its slots.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from weft.graph.lifetime import Lifetime, lifetimes, may_overwrite
from weft.graph.program import Instr, Program
from weft.graph.verify import verify
from weft.ops.spec import Dim, linear

ALIGN = 64  # bytes: one cache line, one AVX-512 register

# The step for which slots are compared: a prompt chunk of a few sequences.
TYPICAL = {"T": 512, "B": 8, "L": 8}


@dataclass
class Unit:
    """Buffers that share memory in every plan: a buffer, its reshapes, and results that overwrite it in turn."""

    size: Dim
    start: int
    end: int
    names: set[str] = field(default_factory=set)

    def meets(self, other: "Unit") -> bool:
        return self.start <= other.end and other.start <= self.end


def plan(program: Program) -> Program:
    """The program with a slot for every buffer; verified.

    Units are placed largest first, each in the slot that grows least and then wastes least, so that small units fill
    the times at which a slot of large ones is free.
    """
    slots: list[list[Unit]] = []
    sizes: list[Dim] = []
    slot_of: dict[str, int] = {}
    for unit in sorted(units(program), key=lambda unit: -unit.size.at(**TYPICAL)):
        free = [slot for slot, others in enumerate(slots) if not any(unit.meets(other) for other in others)]
        if not free:
            free = [len(slots)]
            slots.append([])
            sizes.append(unit.size)
        slot = min(free, key=lambda slot: _price(sizes[slot], unit.size))
        slots[slot].append(unit)
        sizes[slot] = _largest(sizes[slot], unit.size)
        slot_of.update(dict.fromkeys(unit.names, slot))
    values = tuple(
        replace(value, slot=slot_of[value.name]) if value.name in slot_of else value for value in program.values
    )
    planned = replace(program, values=values, slots=tuple(sizes))
    verify(planned)
    return planned


def units(program: Program) -> list[Unit]:
    """The units of a program, in the order they are first written."""
    lives, table = lifetimes(program), program.table
    found: list[Unit] = []
    unit_of: dict[str, Unit] = {}
    for index, instr in enumerate(program.body):
        for name in instr.outputs:
            life = lives.get(name)
            if life is None or life.root != name:
                continue  # an output, whose memory belongs to the caller, or a reshape, which is in its root's unit
            unit = _overwritten(program, instr, name, lives, unit_of)
            if unit is None or unit.end != index:  # no operand ends here, or another result took its memory
                unit = Unit(_aligned(table[name].spec.nbytes), index, index)
                found.append(unit)
            unit.end = max(life.end, index)
            unit.names |= life.members
            unit_of.update(dict.fromkeys(life.members, unit))
    return found


def _overwritten(
    program: Program, instr: Instr, name: str, lives: dict[str, Lifetime], unit_of: dict[str, Unit]
) -> Unit | None:
    """The unit of an operand that `instr` reads last and that its result `name` may overwrite."""
    here = program.writer[name]
    for operand in instr.operands:
        life = lives.get(operand)
        if life and life.end == here and may_overwrite(program, instr, name, life.members):
            return unit_of[operand]
    return None


def arena(program: Program) -> Dim:
    """Bytes of a planned program's arena."""
    total: Any = sum((slot for slot in program.slots), Dim())
    return linear(total)


def offsets(program: Program, **sizes: int) -> list[int]:
    """Where each slot starts in the arena, in bytes, for these T, B and L."""
    at = [0]
    for slot in program.slots:
        at.append(at[-1] + slot.at(**sizes))
    return at[:-1]


def peak_bytes(program: Program, *, T: int, B: int = 1, L: int = 0) -> int:
    """Bytes of the arena for a step of these sizes."""
    return arena(program).at(T=T, B=B, L=L)


def _aligned(size: Any) -> Dim:
    return Dim(*(-(-max(c, 0) // ALIGN) * ALIGN for c in linear(size).coefficients))


def _largest(a: Dim, b: Dim) -> Dim:
    return Dim(*(max(x, y) for x, y in zip(a.coefficients, b.coefficients)))


def _price(slot: Dim, size: Dim) -> tuple[int, int]:
    """The cost of putting `size` into `slot` in a typical step: growth, then bytes left unused."""
    now, then, needed = (form.at(**TYPICAL) for form in (slot, _largest(slot, size), size))
    return then - now, then - needed
