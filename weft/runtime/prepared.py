"""A planned program as binding needs it: its JSON for the core, and which weights, states and tables it wants. Nothing
here imports the catalogue of ops, so that a program from the cache runs without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from weft.backends.base import Backend, WantedState, WantedTable, WantedWeight, wanted_states, wanted_tables
from weft.errors import FormatError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.graph import Program

Facts = Mapping[str, int]


@frozen
class Prepared:
    """`work` has the arena's bytes per T, per B, per L, and the constant part; `facts` are numbers from the model's
    config that the caller needs to run the program."""

    json: str
    inputs: tuple[str, ...]  # fields of the step that it reads
    weights: tuple[WantedWeight, ...]
    states: tuple[WantedState, ...]
    constants: Mapping[str, bytes]  # float32, of weights that are in no file
    work: tuple[int, int, int, int]
    facts: Facts
    tables: tuple[WantedTable, ...] = ()
    parsed: ClassVar[bool] = False  # its Program is made where it is asked for

    @cached_property
    def program(self) -> Program:
        from weft.graph import Program

        return Program.from_json(self.json)

    def work_bytes(self, *, T: int, B: int = 1, L: int = 0) -> int:
        """Bytes of arena that a step of these sizes takes."""
        return sum(factor * size for factor, size in zip(self.work, (T, B, L, 1)))

    def lines(self) -> tuple[str, str]:
        """Two lines of JSON, of which the second is the program."""
        constants = {name: values.hex() for name, values in self.constants.items()}
        about = [self.inputs, self.weights, self.states, constants, self.work, self.facts, self.tables]
        return json.dumps(about, separators=(",", ":")), self.json

    @classmethod
    def from_lines(cls, about: str, text: str) -> Prepared:
        """Read what `lines` wrote; FormatError for anything else. The core checks the program itself."""
        try:
            inputs, weights, states, constants, work, facts, tables = json.loads(about)
            return cls(
                text,
                tuple(map(str, inputs)),
                tuple(WantedWeight(name, tuple(shape), layout) for name, shape, layout in weights),
                tuple(WantedState(name, kind, dtype, tuple(shape)) for name, kind, dtype, shape in states),
                {name: bytes.fromhex(values) for name, values in constants.items()},
                (int(work[0]), int(work[1]), int(work[2]), int(work[3])),
                {str(name): int(value) for name, value in facts.items()},
                tuple(WantedTable(*table) for table in tables),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise FormatError("program", f"not a prepared program: {type(error).__name__} {error}") from error


def prepare(program: Program, constants: Mapping[str, np.ndarray], facts: Facts, backend: Backend) -> Prepared:
    """What binding a planned program to `backend` needs."""
    from weft.graph.plan import arena

    weights = backend.layouts(program)
    names = {weight.name for weight in weights}
    return Prepared(
        json=program.json,
        inputs=tuple(value.name for value in program.inputs),
        weights=weights,
        states=wanted_states(program),
        constants={name: values.tobytes() for name, values in constants.items() if name in names},
        work=arena(program).coefficients,
        facts=facts,
        tables=wanted_tables(program),
    )
