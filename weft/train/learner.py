"""A learner: the loss of sequences under a model with trained changes of some weights, and the loss's gradients.

The base stays as the checkpoint has it, mapped and quantised; what is trained goes in with every step and its gradient
comes out. A batch is any number of steps: its gradient is the same to the bit however it is cut into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.backends import Backend, open_backend
from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.graph import T
from weft.graph.grad import GRAD, INTO, differentiate, parts
from weft.graph.passes import cut_rows, dead_code, decompose, optimise
from weft.graph.passes.learn import DOWN, LOSS, MASK, SHARES, TARGETS, UP, LowRank, loss_seeds, with_lora, with_loss
from weft.graph.plan import plan
from weft.nn import Scope
from weft.nn.step import TracedStep
from weft.runtime.prepared import prepare
from weft.runtime.programs import Programs
from weft.runtime.steps import build_step, offsets
from weft.runtime.threads import plan_threads
from weft.runtime.tracing import CheckedTrace
from weft.train.order import mask

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.base import Executable
    from weft.graph import Program
    from weft.runtime.checkpoint import Checkpoint
    from weft.runtime.prepared import Prepared

Arrays = dict[str, "np.ndarray"]


@frozen(eq=False)
class Lesson:
    """A sequence to learn from: its ids, int32 [n], and for each but the first what its loss counts for, f32 [n].

    `shares[i]` belongs to the prediction of ids[i]; 0 leaves it out, and below 0 the token is made less likely. The
    first token is predicted from nothing, so its share is not used.
    """

    ids: np.ndarray
    shares: np.ndarray

    @property
    def targets(self) -> int:
        """How many tokens are learnt."""
        return int((self.shares[1:] != 0).sum())


class Learner:
    """Losses and gradients of one checkpoint; `changes` names the weights that are trained, and how.

    With `dropout` gradients are those of changes that do not see this part of their inputs; losses see all of them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        changes: Mapping[str, LowRank],
        *,
        dropout: float = 0.0,
        context: int = 0,
        threads: int | None = None,
        level: str | None = None,
        backend: str | Backend | None = None,
    ) -> None:
        if not changes:
            raise InputError("train", "must name at least one weight", field="targets", given=[])
        self.checkpoint = checkpoint
        self.changes = dict(sorted(changes.items()))
        self.backend = open_backend(backend, level=level, threads=plan_threads(threads).count)
        self._programs = Programs(checkpoint, self.backend, compute="f32")
        self._context = context
        self.dropout = dropout
        program, self._constants = self._traced()
        self._base = with_loss(with_lora(program, self.changes))
        self._learnt = with_loss(with_lora(program, self.changes, masked=True)) if dropout else self._base
        self.shapes: dict[str, tuple[int, int]] = self._trained_shapes()
        self.again = 0  # parts of the program that are computed again, to save memory
        self._plans: dict[int, Prepared] = {}

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(rows * cols for rows, cols in self.shapes.values())

    def _traced(self) -> tuple[Program, Arrays]:
        """The program of the model."""
        config, module = self._programs.config, self._programs.module
        if module.KIND != "decoder" or getattr(config, "bidirectional", False):
            what = f"{self.checkpoint.model_type} does not generate text, so it has no loss of the next token"
            raise UnsupportedError("train", what)
        with self.checkpoint.naming(), CheckedTrace(self.checkpoint.model_type, self.checkpoint) as trace:
            scope = Scope(trace, self.checkpoint.stored)
            trace.output("logits", module.forward(scope, config, TracedStep(trace, context=self._context, whole=True)))
        return cut_rows(dead_code(trace.program())), trace.constants

    def _trained_shapes(self) -> dict[str, tuple[int, int]]:
        found: dict[str, Any] = {value.name: value.shape for value in self._base.inputs}
        return {part + name: found[part + name] for name in self.changes for part in (DOWN, UP)}

    @cached_property
    def _losses(self) -> tuple[Executable, tuple[str, ...]]:
        return self._compiled(self._planned(self._base))

    @cached_property
    def _gradients(self) -> tuple[Executable, tuple[str, ...]]:
        return self._compiled(self._planned_gradients)

    @property
    def _planned_gradients(self) -> Prepared:
        if self.again not in self._plans:
            seeds = loss_seeds(self._learnt)
            gradients = differentiate(self._learnt, list(self.shapes), seeds=seeds, again=self.again)
            self._plans[self.again] = self._planned(gradients)
        return self._plans[self.again]

    @property
    def parts(self) -> int:
        """How many parts the program has of which `again` may be computed again."""
        return len(parts(self._learnt))

    def fit(self, memory: int, tokens: int, targets: int, sequences: int = 1) -> bool:
        """Compute as little again as lets `gradients` of so many tokens work in `memory` bytes; False where even all
        is too little. What is computed again changes no bit."""
        low, high = 0, self.parts
        while low < high:
            self.again = (low + high) // 2
            fits = self.work_bytes(tokens, targets, sequences) <= memory
            low, high = (low, self.again) if fits else (self.again + 1, high)
        self.again = low
        self.__dict__.pop("_gradients", None)
        return self.work_bytes(tokens, targets, sequences) <= memory

    def _planned(self, program: Program) -> Prepared:
        planned = plan(decompose(optimise(program), self.backend.supports))
        return prepare(planned, self._constants, {}, self.backend)

    def _compiled(self, prepared: Prepared) -> tuple[Executable, tuple[str, ...]]:
        return self._programs.compile(prepared, {}), prepared.inputs

    def work_bytes(self, tokens: int, targets: int, sequences: int = 1) -> int:
        """The working memory of `gradients` for so many tokens."""
        masks = sum(cols for _, cols in self._masked.values()) * 4 * tokens
        return self._planned_gradients.work_bytes(T=tokens, B=sequences, L=targets) + masks

    def losses(self, lessons: Sequence[Lesson], parameters: Mapping[str, np.ndarray]) -> float:
        """The sum of the lessons' losses, each token's times its share."""
        return float(sum(loss.astype("f8").sum() for loss in self.each_loss(lessons, parameters)))

    def each_loss(self, lessons: Sequence[Lesson], parameters: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The losses of each lesson's targets, times their shares, f32 [targets]."""
        import numpy as np

        executable, names = self._losses
        given = self._given(lessons) | dict(parameters)
        found = executable.run({name: given[name] for name in names})[LOSS]
        return np.split(found, offsets([lesson.targets for lesson in lessons])[1:-1])

    def gradients(
        self,
        lessons: Sequence[Lesson],
        parameters: Mapping[str, np.ndarray],
        sums: Arrays,
        draws: Sequence[str] = (),
    ) -> tuple[float, Arrays]:
        """The sum of the lessons' losses, and `sums` with the gradient of that sum added.

        With dropout each lesson has a text in `draws` that decides what is left out, so that neither the other lessons
        nor the number of threads do.
        """
        executable, names = self._gradients
        given = self._given(lessons) | dict(parameters) | {INTO + name: sums[name] for name in self.shapes}
        given |= self._masks(lessons, draws) if self.dropout else {}
        found = executable.run({name: given[name] for name in names})
        return float(found[LOSS].astype("f8").sum()), {name: found[GRAD + name] for name in self.shapes}

    def no_gradient(self) -> Arrays:
        """What a batch begins with."""
        import numpy as np

        return {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}

    @cached_property
    def _masked(self) -> dict[str, tuple[bool, int]]:
        """For each weight whose inputs are masked: whether these are of all tokens, and how many numbers of each."""
        found: dict[str, Any] = {value.name: value.shape for value in self._learnt.inputs}
        masks = {name: found[MASK + name] for name in self.changes if MASK + name in found}
        return {name: (str(shape[0]) == str(T), shape[1]) for name, shape in masks.items()}

    def _masks(self, lessons: Sequence[Lesson], draws: Sequence[str]) -> Arrays:
        import numpy as np

        assert len(draws) == len(lessons), "a draw for each lesson"
        made = {}
        for name, (every, cols) in self._masked.items():
            parts = [mask(f"{draw} {name}", len(one.ids), cols, self.dropout) for one, draw in zip(lessons, draws)]
            if not every:  # only rows that predict something are left
                parts = [part[:-1][one.shares[1:] != 0] for part, one in zip(parts, lessons)]
            made[MASK + name] = np.concatenate(parts)
        return made

    def _given(self, lessons: Sequence[Lesson]) -> Arrays:
        """The inputs of a step: the row of a token predicts the next one."""
        import numpy as np

        starts = offsets([len(lesson.ids) for lesson in lessons])
        rows = [np.flatnonzero(lesson.shares[1:] != 0).astype(np.int32) for lesson in lessons]
        step = build_step(
            [lesson.ids for lesson in lessons],
            rows=np.concatenate([mine + first for mine, first in zip(rows, starts)]),
        )
        targets = np.concatenate([lesson.ids[mine + 1] for lesson, mine in zip(lessons, rows)])
        shares = np.concatenate([lesson.shares[mine + 1] for lesson, mine in zip(lessons, rows)])
        return {**step.arrays(), TARGETS: targets.astype(np.int32), SHARES: shares.astype(np.float32)}
