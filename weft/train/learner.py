"""A learner: the loss of sequences under a model with trained changes of some weights, and the loss's gradients.

The base stays as the checkpoint has it, mapped and quantised; what is trained goes in with every step and its gradient
comes out. A batch is any number of steps: its gradient is the same to the bit however it is cut into them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from weft.backends import Backend, open_backend
from weft.computes import TRAINING_COMPUTES
from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.graph import T
from weft.graph.grad import GRAD, INTO, differentiate, parts
from weft.graph.passes import cut_rows, dead_code, decompose, optimise
from weft.graph.passes.learn import (
    DOWN,
    LOSS,
    MASK,
    SHARES,
    TARGETS,
    UP,
    LowRank,
    loss_seeds,
    with_lora,
    with_loss,
)
from weft.graph.passes.lower_narrow import lower_narrow
from weft.graph.passes.trained import with_trained
from weft.graph.plan import plan
from weft.nn import Scope
from weft.nn.step import TracedStep
from weft.runtime.prepared import prepare
from weft.runtime.programs import Programs
from weft.runtime.steps import build_step, offsets
from weft.runtime.threads import plan_threads
from weft.runtime.tracing import CheckedTrace
from weft.train.order import mask
from weft.weights.rotation import refuse_rotated

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.base import Executable
    from weft.graph import Program
    from weft.runtime.checkpoint import Checkpoint
    from weft.runtime.prepared import Prepared

Arrays = dict[str, "np.ndarray"]
# Of the measurement that chooses an arithmetic.
PROBE_TOKENS, ROUNDS = 128, 3  # of a measurement
FASTER = 1.1  # times as fast as f32 pays for other last digits
NEAR = 0.05  # the norm of the difference from f32's gradient, over that one's norm


class BaseLearner:
    """`changes` names the weights with trained changes, `weights` those that are trained themselves.

    With `dropout` gradients are those of changes that do not see this part of their inputs; results see all of them.
    `learnt` is what gradients are of, where that is not the traced program itself.
    """

    def __init__(
        self,
        programs: Programs,
        traced: tuple[Program, Arrays],
        changes: Mapping[str, LowRank],
        weights: Sequence[str],
        dropout: float = 0.0,
        learnt: Program | None = None,
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
        if learnt is not None:
            program = with_trained(learnt, self.weights)[0]
        changed = masked or learnt is not None
        self._learnt = self._ended(with_lora(program, self.changes, masked=masked)) if changed else self._base
        self.shapes: dict[str, tuple[int, ...]] = self._trained_shapes()
        self.again = 0  # parts of the program that are computed again, to save memory
        self._plans: dict[tuple[str, int], Prepared] = {}
        self.compute = "f32"  # the arithmetic of products with frozen weights

    def use(self, compute: str) -> None:
        """Compute products with frozen weights in this arithmetic from now on."""
        if compute not in TRAINING_COMPUTES:
            what = f"must be one of {', '.join(TRAINING_COMPUTES)}"
            raise InputError("train", what, field="compute", given=compute)
        if compute == "f16" and compute not in self.backend.fast:
            what = f"compute f16 needs half-precision arithmetic, which {self.backend.name} does not have"
            raise UnsupportedError("train", what, advice="give --compute f32, bf16 or auto")
        if compute != self.compute:
            self.compute = compute
            self._forget("_results", "_gradients")

    def _forget(self, *made: str) -> None:
        for name in made:
            self.__dict__.pop(name, None)

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
        key = self.compute, self.again
        if key not in self._plans:
            self._plans[key] = self._prepared(self._lowered_gradients)
        return self._plans[key]

    @property
    def _lowered_gradients(self) -> Program:
        return self._lowered(differentiate(self._learnt, list(self.shapes), seeds=self._seeds(), again=self.again))

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
        self._forget("_gradients")
        return self._work(sizes) <= memory

    def _planned(self, program: Program) -> Prepared:
        return self._prepared(self._lowered(program))

    def _lowered(self, program: Program) -> Program:
        program = optimise(program)
        if self.compute != "f32":
            program = lower_narrow(program, self.compute)
        return decompose(program, self.backend.supports)

    def _prepared(self, lowered: Program) -> Prepared:
        return prepare(plan(lowered), self._constants, {}, self.backend)

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

    def _added(self, executable: Executable, given: Arrays, sums: Mapping[str, np.ndarray]) -> tuple[Arrays, Arrays]:
        """The outputs of a step of gradients, and `sums` with the gradients added, in place if the backend can."""
        found = executable.run_into(given, {GRAD + name: sums[name] for name in self.shapes})
        return found, {name: found[GRAD + name] for name in self.shapes}

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

    def piece(self, first: int, end: int) -> Lesson:
        """A part of the sequence."""
        return Lesson(self.ids[first:end], self.shares[first:end])

    @property
    def taught(self) -> tuple[np.ndarray, ...]:
        """What a teacher said of it; nothing here."""
        return ()


class Learner(BaseLearner):
    """Losses and gradients of one checkpoint; `changes` names the weights with trained changes, `weights` those that
    are trained themselves: norms, biases, tables and matrices.

    With `dropout` gradients are those of changes that do not see this part of their inputs; losses see all of them.
    `compute` is the arithmetic of products with frozen weights, "f32", "f16" or "bf16"; all else is f32.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        changes: Mapping[str, LowRank],
        *,
        weights: Sequence[str] = (),
        dropout: float = 0.0,
        context: int = 0,
        threads: int | None = None,
        level: str | None = None,
        backend: str | Backend | None = None,
        compute: str = "f32",
    ) -> None:
        opened = open_backend(backend, level=level, threads=plan_threads(threads).count)
        programs = Programs(checkpoint, opened, compute="f32")
        super().__init__(programs, _traced(programs, context), changes, weights, dropout)
        self.use(compute)

    def _ended(self, program: Program) -> Program:
        return with_loss(program)

    def _seeds(self) -> dict[str, str]:
        return loss_seeds(self._learnt)

    def fit(self, memory: int, tokens: int, targets: int, sequences: int = 1) -> bool:
        """Compute as little again as lets `gradients` of so many tokens work in `memory` bytes; False where even all
        is too little. What is computed again changes no bit."""
        return self._fit(memory, {"T": tokens, "B": sequences, "L": targets})

    def work_bytes(self, tokens: int, targets: int, sequences: int = 1) -> int:
        """The working memory of `gradients` for so many tokens."""
        return self._work({"T": tokens, "B": sequences, "L": targets})

    def losses(self, lessons: Sequence[Lesson], parameters: Mapping[str, np.ndarray]) -> float:
        """The sum of the lessons' losses, each token's times its share."""
        return float(sum(loss.astype("f8").sum() for loss in self.each_loss(lessons, parameters)))

    def each_loss(self, lessons: Sequence[Lesson], parameters: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The losses of each lesson's targets, times their shares, f32 [targets]."""
        import numpy as np

        executable, names = self._results
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
        """The sum of the lessons' losses, and `sums` with the gradient of that sum added, maybe in place.

        With dropout each lesson has a text in `draws` that decides what is left out, so that neither the other lessons
        nor the number of threads do.
        """
        import numpy as np

        executable, names = self._gradients
        given = self._given(lessons) | dict(parameters) | self._into(sums)
        if self.dropout:
            rows = [np.flatnonzero(lesson.shares[1:] != 0) for lesson in lessons]
            given |= self._masks([len(lesson.ids) for lesson in lessons], rows, draws)
        found, sums = self._added(executable, {name: given[name] for name in names}, sums)
        return float(found[LOSS].astype("f8").sum()), sums

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


def _traced(programs: Programs, context: int) -> tuple[Program, Arrays]:
    """The program of the model, and its constants."""
    checkpoint, config, module = programs.checkpoint, programs.config, programs.module
    refuse_rotated("train", checkpoint.config, "adapters are trained before, and rotated when they are loaded")
    if module.KIND != "decoder" or getattr(config, "bidirectional", False):
        what = f"{checkpoint.model_type} does not generate text, so it has no loss of the next token"
        raise UnsupportedError("train", what)
    with checkpoint.naming(), CheckedTrace(checkpoint.model_type, checkpoint) as trace:
        scope = Scope(trace, checkpoint.stored)
        trace.output("logits", module.forward(scope, config, TracedStep(trace, context=context, whole=True)))
    return cut_rows(dead_code(trace.program())), trace.constants


@frozen
class Choice:
    """What was found for the fastest arithmetic: how many times as fast as f32 it is, and how far its gradient from
    f32's is, as a part of that one's norm. `compute` is that arithmetic, or f32 where it is too slow or too far."""

    compute: str
    measured: str
    faster: float
    distance: float

    def __str__(self) -> str:
        found = f"{self.measured} is {self.faster:.2f} times as fast as f32, gradients {100 * self.distance:.2g} % away"
        return f"{self.compute}: {found}"


def choose_compute(learner: Learner, lessons: Sequence[Lesson], parameters: Mapping[str, np.ndarray]) -> Choice:
    """The arithmetic for `learner`, which is left to use it, by a measurement on a part of the longest lesson."""
    longest = max(lessons, key=lambda lesson: len(lesson.ids))
    ids = longest.ids[:PROBE_TOKENS]
    probe = [Lesson(ids, longest.shares[:PROBE_TOKENS] * 0 + 1)]
    return choose_by(learner, lambda: learner.gradients(probe, parameters, learner.no_gradient(), ["probe"])[1])


def choose_by(learner: BaseLearner, computed: Callable[[], Arrays]) -> Choice:
    """The arithmetic for `learner`, which is left to use it: the machine's faster one, if `computed`, a gradient, is
    faster in it than in f32 and near f32's."""
    fast = [name for name in TRAINING_COMPUTES if name in learner.backend.fast]
    if not fast:
        learner.use("f32")
        return Choice("f32", "f32", 1.0, 0.0)
    seconds = {"f32": math.inf, fast[0]: math.inf}
    gradients = {}
    for compute in seconds:
        learner.use(compute)
        for _ in range(ROUNDS):  # the first packs weights, or touches memory for the first time
            began = time.perf_counter()
            gradients[compute] = computed()
            seconds[compute] = min(seconds[compute], time.perf_counter() - began)
    far = distance(gradients[fast[0]], gradients["f32"])
    faster = seconds["f32"] / seconds[fast[0]]
    chosen = fast[0] if faster >= FASTER and far <= NEAR else "f32"
    learner.use(chosen)
    return Choice(chosen, fast[0], faster, far)


def distance(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> float:
    """The norm of the difference of two gradients over the wanted one's; infinite where a number is not finite."""
    off = size = 0.0
    for name, value in wanted.items():
        wide = value.astype("f8")
        off += float(((found[name] - wide) ** 2).sum())
        size += float((wide**2).sum())
    far = math.sqrt(off / size) if size else math.sqrt(off)
    return far if math.isfinite(far) else math.inf
