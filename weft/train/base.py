"""What every learner has: a program of a model with some weights trained, its gradients, and the memory they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.graph import T
from weft.graph.grad import INTO, differentiate, parts
from weft.graph.passes import decompose, optimise
from weft.graph.passes.learn import DOWN, MASK, UP, LowRank, with_lora
from weft.graph.passes.trained import with_trained
from weft.graph.plan import plan
from weft.runtime.prepared import prepare
from weft.train.order import mask

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.base import Executable
    from weft.graph import Program
    from weft.runtime.prepared import Prepared
    from weft.runtime.programs import Programs

Arrays = dict[str, "np.ndarray"]


class BaseLearner:
    """`changes` names the weights with trained changes, `weights` those that are trained themselves.

    With `dropout` gradients are those of changes that do not see this part of their inputs; results see all of them.
    """

    def __init__(
        self,
        programs: Programs,
        traced: tuple[Program, Arrays],
        changes: Mapping[str, LowRank],
        weights: Sequence[str],
        dropout: float,
    ) -> None:
        if not changes and not weights:
            raise InputError("train", "must name at least one weight", field="targets", given=[])
        both = sorted(set(changes).intersection(weights))
        if both:
            what = "cannot be trained in full and have a trained change too"
            raise InputError("train", what, field="weights", given=both)
        self.checkpoint, self.backend = programs.checkpoint, programs.backend
        self.changes = dict(sorted(changes.items()))
        self.weights = sorted(set(weights))
        self.dropout = dropout
        self._programs = programs
        program, more = with_trained(traced[0], self.weights)
        self._constants = {**traced[1], **more}
        self._base = self._ended(with_lora(program, self.changes))
        masked = bool(dropout and changes)
        self._learnt = self._ended(with_lora(program, self.changes, masked=True)) if masked else self._base
        self.shapes: dict[str, tuple[int, ...]] = self._trained_shapes()
        self.again = 0  # parts of the program that are computed again, to save memory
        self._plans: dict[int, Prepared] = {}

    def _ended(self, program: Program) -> Program:
        """The program with what it is differentiated for at its end."""
        return program

    def _seeds(self) -> dict[str, str] | None:
        """What `differentiate` begins with."""
        return None

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(map(prod, self.shapes.values()))

    @property
    def start(self) -> Arrays:
        """The weights that are trained themselves as the checkpoint has them, f32."""
        import numpy as np

        found = {name: self.checkpoint.tensor(name, self.shapes[name]).numpy() for name in self.weights}
        return {name: np.array(value, np.float32).reshape(self.shapes[name]) for name, value in found.items()}

    def _trained_shapes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, Any] = {value.name: value.shape for value in self._base.inputs}
        trained = [part + name for name in self.changes for part in (DOWN, UP)]
        return {name: found[name] for name in (*trained, *self.weights)}

    @cached_property
    def _results(self) -> tuple[Executable, tuple[str, ...]]:
        return self._compiled(self._planned(self._base))

    @cached_property
    def _gradients(self) -> tuple[Executable, tuple[str, ...]]:
        return self._compiled(self._planned_gradients)

    @property
    def _planned_gradients(self) -> Prepared:
        if self.again not in self._plans:
            gradients = differentiate(self._learnt, list(self.shapes), seeds=self._seeds(), again=self.again)
            self._plans[self.again] = self._planned(gradients)
        return self._plans[self.again]

    @property
    def parts(self) -> int:
        """How many parts the program has of which `again` may be computed again."""
        return len(parts(self._learnt))

    def _fit(self, memory: int, sizes: Mapping[str, int]) -> bool:
        """Compute as little again as lets gradients of a step of these sizes work in `memory` bytes."""
        low, high = 0, self.parts
        while low < high:
            self.again = (low + high) // 2
            fits = self._work(sizes) <= memory
            low, high = (low, self.again) if fits else (self.again + 1, high)
        self.again = low
        self.__dict__.pop("_gradients", None)
        return self._work(sizes) <= memory

    def _planned(self, program: Program) -> Prepared:
        planned = plan(decompose(optimise(program), self.backend.supports))
        return prepare(planned, self._constants, {}, self.backend)

    def _compiled(self, prepared: Prepared) -> tuple[Executable, tuple[str, ...]]:
        return self._programs.compile(prepared, {}), prepared.inputs

    def _work(self, sizes: Mapping[str, int]) -> int:
        masks = sum(cols for _, cols in self._masked.values()) * 4 * sizes["T"]
        return self._planned_gradients.work_bytes(**sizes) + masks

    def no_gradient(self) -> Arrays:
        """What a batch begins with."""
        import numpy as np

        return {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}

    def _into(self, sums: Mapping[str, np.ndarray]) -> Arrays:
        return {INTO + name: sums[name] for name in self.shapes}

    @cached_property
    def _masked(self) -> dict[str, tuple[str, int]]:
        """For each weight whose inputs are masked: T, B or L, what the inputs have rows of, and how many columns."""
        found: dict[str, Any] = {value.name: value.shape for value in self._learnt.inputs}
        masks = {name: found[MASK + name] for name in self.changes if MASK + name in found}
        return {name: (str(shape[0]), shape[1]) for name, shape in masks.items()}

    def _masks(self, lengths: Sequence[int], rows: Sequence[np.ndarray], draws: Sequence[str]) -> Arrays:
        """The masks of sequences of these lengths; `rows` are those of each that results are wanted of."""
        import numpy as np

        assert len(draws) == len(lengths), "a draw for each sequence"
        made = {}
        for name, (size, cols) in self._masked.items():
            masks = [mask(f"{draw} {name}", length, cols, self.dropout) for length, draw in zip(lengths, draws)]
            if size != str(T):
                masks = [part[mine] if size == "L" else part[:1] for part, mine in zip(masks, rows)]
            made[MASK + name] = np.concatenate(masks)
        return made
