"""A planned program as binding needs it: its JSON for the core, and which weights, states and tables it wants. Nothing
here imports the catalogue of ops, so that a program from the cache runs without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.errors import FormatError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.graph import Program

Facts = Mapping[str, int]


class WantedWeight(NamedTuple):
    """A weight: its shape in the file, and the layout that the kernels want (weft/backends/cpu/binding.py)."""

    name: str
    shape: tuple[int, ...]
    layout: str


class WantedState(NamedTuple):
    name: str
    dtype: str
    heads: int
    dim: int


class WantedTable(NamedTuple):
    """The adapters of a weight [rows, cols]."""

    name: str
    rows: int
    cols: int


@frozen
class Prepared:
    """`work` are the bytes of the arena for each T, B and L, and those that are always there; `facts` are numbers from
    the model's config that whoever runs the program has to know."""

    text: str
    weights: tuple[WantedWeight, ...]
    states: tuple[WantedState, ...]
    constants: Mapping[str, bytes]  # float32, of weights that are in no file
    work: tuple[int, int, int, int]
    facts: Facts
    tables: tuple[WantedTable, ...] = ()

    @cached_property
    def program(self) -> Program:
        from weft.graph import Program

        return Program.from_json(self.text)

    def work_bytes(self, *, T: int, B: int = 1, L: int = 0) -> int:
        """Bytes of arena that a step of these sizes takes."""
        return sum(factor * size for factor, size in zip(self.work, (T, B, L, 1)))

    def lines(self) -> tuple[str, str]:
        """Two lines of JSON, of which the second is the program."""
        constants = {name: values.hex() for name, values in self.constants.items()}
        about = [self.weights, self.states, constants, self.work, self.facts, self.tables]
        return json.dumps(about, separators=(",", ":")), self.text

    @classmethod
    def from_lines(cls, about: str, text: str) -> Prepared:
        """Read what `lines` wrote; FormatError for anything else. Whether it is a program, the core says."""
        try:
            weights, states, constants, work, facts, tables = json.loads(about)
            return cls(
                text,
                tuple(WantedWeight(name, tuple(shape), layout) for name, shape, layout in weights),
                tuple(WantedState(*state) for state in states),
                {name: bytes.fromhex(values) for name, values in constants.items()},
                (int(work[0]), int(work[1]), int(work[2]), int(work[3])),
                {str(name): int(value) for name, value in facts.items()},
                tuple(WantedTable(*table) for table in tables),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise FormatError(f"[program] not a prepared program: {type(error).__name__} {error}") from error


def prepare(program: Program, constants: Mapping[str, np.ndarray], facts: Facts) -> Prepared:
    """What binding a planned program needs."""
    from weft.backends.cpu.binding import stored_shape, weight_layouts
    from weft.graph.plan import arena

    layouts = weight_layouts(program)
    shapes: dict[str, Any] = {value.name: value.shape for value in program.weights}
    return Prepared(
        text=program.to_json(),
        weights=tuple(WantedWeight(n, stored_shape(s, layouts[n]), layouts[n]) for n, s in shapes.items()),
        states=tuple(WantedState(v.name, v.dtype.name, *_fixed(v.shape)) for v in program.states),
        constants={name: values.tobytes() for name, values in constants.items() if name in layouts},
        work=arena(program).coefficients,
        facts=facts,
        tables=tuple(WantedTable(v.name, *_fixed(v.shape)) for v in program.tables),
    )


def _fixed(shape: tuple[Any, ...]) -> tuple[int, int]:
    heads, dim = shape
    return heads, dim
