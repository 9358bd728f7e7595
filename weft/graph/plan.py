"""Memory: every buffer gets a slot of the arena, and buffers that are never live together share one.

A slot's size is a linear form of T, B and L, coefficient by coefficient the largest of its buffers', so one plan serves
every step. Each coefficient is a multiple of 64 bytes: slots laid end to end are aligned whatever the sizes, and the
arena is the exact sum of its slots.
"""

from dataclasses import replace
from typing import Any

from weft.graph.lifetime import Lifetime, lifetimes, may_overwrite
from weft.graph.program import Instr, Program
from weft.graph.verify import verify
from weft.ops.spec import Dim, linear

ALIGN = 64  # bytes: one cache line, one AVX-512 register

# The step a choice between slots is judged by: a prompt chunk of a few sequences.
TYPICAL = {"T": 512, "B": 8, "L": 8}


def plan(program: Program) -> Program:
    """The program with a slot for every buffer; verified."""
    planner = _Planner(program)
    for index, instr in enumerate(program.body):
        planner.place(index, instr)
    values = tuple(replace(value, slot=planner.slot_of.get(value.name)) for value in program.values)
    planned = replace(program, values=values, slots=tuple(planner.sizes))
    verify(planned)
    return planned


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
    """Bytes of arena a step of these sizes takes."""
    return arena(program).at(T=T, B=B, L=L)


def _aligned(size: Any) -> Dim:
    return Dim(*(-(-max(c, 0) // ALIGN) * ALIGN for c in linear(size).coefficients))


def _largest(a: Dim, b: Dim) -> Dim:
    return Dim(*(max(x, y) for x, y in zip(a.coefficients, b.coefficients)))


class _Planner:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.lives = lifetimes(program)
        self.table = program.table
        self.sizes: list[Dim] = []
        self.busy_until: list[int] = []  # the last instruction that needs what lies in the slot
        self.slot_of: dict[str, int] = {}

    def place(self, index: int, instr: Instr) -> None:
        taken: set[int] = set()
        for name in instr.outputs:
            if name not in self.lives:
                continue  # an output: its memory is the caller's
            life = self.lives[name]
            if life.root != name:
                self.slot_of[name] = self.slot_of[life.root]
                continue
            size = _aligned(self.table[name].spec.nbytes)
            slot = self._overwritten(index, instr, name, taken)
            if slot is None:
                slot = self._free(index, size, taken)
            taken.add(slot)
            self.sizes[slot] = _largest(self.sizes[slot], size)
            self.busy_until[slot] = life.end
            self.slot_of[name] = slot

    def _overwritten(self, index: int, instr: Instr, name: str, taken: set[int]) -> int | None:
        """The slot of an operand that dies here and that the result may overwrite."""
        for operand in instr.operands:
            life: Lifetime | None = self.lives.get(operand)
            dies = life is not None and life.end == index and self.slot_of[operand] not in taken
            if life and dies and may_overwrite(self.program, instr, name, life.members):
                return self.slot_of[operand]
        return None

    def _free(self, index: int, size: Dim, taken: set[int]) -> int:
        """The free slot that grows least, and among those wastes least; a new one when none is free."""
        free = [slot for slot, end in enumerate(self.busy_until) if end < index and slot not in taken]
        if not free:
            self.sizes.append(Dim())
            self.busy_until.append(-1)
            return len(self.sizes) - 1

        def price(slot: int) -> tuple[int, int]:
            now, then = self.sizes[slot].at(**TYPICAL), _largest(self.sizes[slot], size).at(**TYPICAL)
            return then - now, then - size.at(**TYPICAL)

        return min(free, key=price)
