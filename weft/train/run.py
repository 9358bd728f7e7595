"""A run: lessons in, an adapter out, one step of the optimiser for each batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import BackendError, InputError
from weft.frozen import frozen
from weft.graph.passes.learn import UP
from weft.train.adapter import write_adapter
from weft.train.learner import Learner, Lesson
from weft.train.optimiser import AdamW, Schedule, clip
from weft.train.options import Options
from weft.train.order import batches as filled
from weft.train.order import shuffled

if TYPE_CHECKING:
    import numpy as np

Arrays = dict[str, "np.ndarray"]
CHECKS = 10  # of the validation loss in a run, unless it is said how many
STEP_TOKENS = 1024


@frozen
class StepResult:
    """One step: its number from 1, the mean loss of a target before it, its tokens and targets, the rate, the norm of
    the gradient before it was clipped, and the validation loss after it where that was measured.

    Preference training also has the part of its pairs whose chosen answer the model prefers, and the mean margin.
    Training of vectors has a score beside the validation loss, of which more is better.
    """

    number: int
    loss: float
    tokens: int
    targets: int
    rate: float
    norm: float
    valid: float | None = None
    accuracy: float | None = None
    margin: float | None = None
    score: float | None = None


@frozen
class Batch:
    """What a batch gives: the sum of its losses, what the sum is divided by, its gradient, tokens and targets."""

    loss: float
    count: int
    sums: Any
    tokens: int
    targets: int
    facts: Mapping[str, float]


class Run:
    """Iterate over it: every element is a step that is done. `parameters` are the matrices as they are now.

    A token's loss is divided once, by all targets of its batch, so that how a batch is cut into parts of at most
    `step_tokens` changes nothing. `valid` are lessons that are measured and not learnt; `best` has the parameters that
    were best for them. `start` are matrices to begin with.
    """

    measure_name = ""  # of the score that validations give beside the loss, if they do
    before: dict[str, float] | None = None  # a validation before the first step

    def __init__(
        self,
        learner: Learner,
        lessons: Sequence[Any],
        options: Options | None = None,
        *,
        valid: Sequence[Any] = (),
        start: Mapping[str, np.ndarray] | None = None,
        step_tokens: int = STEP_TOKENS,
    ) -> None:
        self.learner = learner
        self.options = options or Options()
        self.lessons, self.valid = list(lessons), list(valid)
        self.step_tokens = step_tokens
        if step_tokens < 1:
            raise InputError("train", "must be at least 1", field="step_tokens", given=step_tokens)
        self._check_lessons()
        self._lengths = [self.length(lesson) for lesson in self.lessons]
        self.steps = self.options.steps or sum(1 for _ in self.batches())
        warmup = math.ceil(self.options.warmup * self.steps)
        self._schedule = Schedule(self.options.rate, self.steps, self.options.schedule, warmup)
        self._rule = AdamW(decay=self.options.decay)
        given = first_parameters(learner.shapes, self.options.seed, learner.start) if start is None else start
        self.parameters: Arrays = {name: given[name].copy() for name in learner.shapes}
        self._means = self._rule.start(self.parameters)
        self.history: list[StepResult] = []
        self.best: tuple[StepResult, Arrays] | None = None
        self._sums: Arrays | None = None  # of the batch that was learnt last
        self._whole = True  # False inside a step, where Ctrl-C may have stopped it

    def _check_lessons(self) -> None:
        empty = [number for number, lesson in enumerate(self.lessons) if not lesson.targets]
        if empty or not self.lessons:
            what = f"lesson {empty[0]} has no token to learn" if empty else "there is nothing to learn from"
            raise InputError("train", what, field="lessons", index=empty[0] if empty else None)

    @property
    def done(self) -> int:
        """How many steps are done."""
        return len(self.history)

    def length(self, lesson: Any) -> int:
        """The tokens of a lesson."""
        return len(lesson.ids)

    def batches(self) -> Iterator[list[int]]:
        """The batches of all epochs, or as many as there are steps."""
        epochs = count() if self.options.steps else range(self.options.epochs)
        each = (shuffled(len(self.lessons), self.options.seed, epoch) for epoch in epochs)
        every = (batch for order in each for batch in filled(self._lengths, order, self.options.batch_tokens))
        return islice(every, self.options.steps or None)

    def __iter__(self) -> Iterator[StepResult]:
        for batch in islice(self.batches(), self.done, None):
            if self.stopped_early:
                return
            yield self._step(batch)

    @property
    def stopped_early(self) -> bool:
        """Whether the validation loss has not become better for as long as `patience` says."""
        if not self.options.patience or self.best is None:
            return False
        return sum(step.valid is not None and step.number > self.best[0].number for step in self.history) >= (
            self.options.patience
        )

    def _step(self, batch: list[int]) -> StepResult:
        number = self.done + 1
        found = self.learn(batch)
        gradient = found.sums
        for value in gradient.values() if found.count != 1 else ():
            value /= value.dtype.type(found.count)
        threads = getattr(self.learner.backend, "threads", 1)
        norm = clip(gradient, self.options.clip, threads)
        rate = self._schedule.at(number)
        self._whole = False
        self._rule.step(number, rate, self.parameters, gradient, self._means, threads)
        result = StepResult(
            number,
            found.loss / found.count,
            found.tokens,
            found.targets,
            rate,
            norm,
            **(self.check() if self._measured(number) else {}),
            **found.facts,
        )
        if result.valid is not None and (self.best is None or self.better(result, self.best[0])):
            self.best = result, {name: value.copy() for name, value in self.parameters.items()}
        self.history.append(result)
        self._whole = True
        return result

    def check(self) -> dict[str, float]:
        """What a validation finds: fields of a step's result."""
        return {"valid": self.measure()}

    def better(self, result: StepResult, best: StepResult) -> bool:
        """Whether a validated step is the best so far."""
        return (result.valid or 0.0) < (best.valid or math.inf)

    def _measured(self, number: int) -> bool:
        every = self.options.valid_every or math.ceil(self.steps / CHECKS)
        return bool(self.valid) and (number % every == 0 or number == self.steps)

    def learn(self, batch: Sequence[int]) -> Batch:
        """The loss and the gradient of a batch, which is that of the run until the next one is learnt."""
        loss, sums = 0.0, self.no_gradient()
        chosen = [self.lessons[index] for index in batch]
        draws = iter([f"{self.options.seed} {self.done + 1} {index}" for index in batch])
        for part in self.parts(chosen):
            part_loss, sums = self.learner.gradients(part, self.parameters, sums, list(islice(draws, len(part))))
            loss += part_loss
        targets = sum(lesson.targets for lesson in chosen)
        return Batch(loss, targets, sums, sum(map(self.length, chosen)), targets, {})

    def no_gradient(self) -> Arrays:
        """What a batch begins with, in the memory of the one before."""
        if self._sums is None:
            self._sums = self.learner.no_gradient()
        else:
            for value in self._sums.values():
                value.fill(0)
        return self._sums

    def parts(self, lessons: Sequence[Lesson]) -> Iterator[list[Lesson]]:
        """The lessons in parts that a step's memory allows."""
        lengths = [len(lesson.ids) for lesson in lessons]
        for part in filled(lengths, range(len(lessons)), self.step_tokens):
            yield [lessons[index] for index in part]

    def each_loss(self, lessons: Sequence[Lesson], parameters: Mapping[str, np.ndarray]) -> list[float]:
        """The sum of each lesson's losses, the same however the lessons are cut into parts."""
        found = (self.learner.each_loss(part, parameters) for part in self.parts(lessons))
        return [math.fsum(loss.tolist()) for losses in found for loss in losses]

    def measure(self) -> float:
        """The mean loss of a target of the validation lessons."""
        losses = self.each_loss(self.valid, self.parameters)
        return math.fsum(losses) / sum(lesson.targets for lesson in self.valid)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """All that a run needs to go on, as tensors and as JSON."""
        if not self._whole:
            advice = "go on from the last state on disk, with --resume"
            raise BackendError("train", "the run was stopped inside a step, and has no state", advice=advice)
        kinds = {"parameters": self.parameters, "first": self._means[0], "second": self._means[1]}
        if self.best is not None:
            kinds["best"] = self.best[1]
        tensors = {f"{kind}/{name}": value for kind, values in kinds.items() for name, value in values.items()}
        best = None if self.best is None else self.best[0].number
        return tensors, {"history": [asdict(step) for step in self.history], "best": best}

    def restore(self, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Take up the run where `state` left it."""
        for kind, values in (("parameters", self.parameters), ("first", self._means[0]), ("second", self._means[1])):
            for name, value in values.items():
                value[...] = tensors[f"{kind}/{name}"]
        self.history = [StepResult(**step) for step in facts["history"]]
        if facts["best"] is not None:
            best = {name: tensors[f"best/{name}"].copy() for name in self.parameters}
            self.best = self.history[facts["best"] - 1], best

    def save(self, folder: Path, *, base: str = "", best: bool = False, **about: Any) -> None:
        """Write the matrices, or the best ones, as an adapter of PEFT, which weft, peft and others load."""
        chosen = self.best[1] if best and self.best is not None else self.parameters
        dropout = getattr(self.options, "dropout", 0.0)
        given: dict[str, Any] = {"rslora": self.options.rslora, "dropout": dropout, "whole": self.learner.weights}
        given |= {"model_type": self.learner.checkpoint.model_type, **about}
        write_adapter(folder, self.learner.changes, chosen, base=base, **given)


def first_parameters(
    shapes: Mapping[str, tuple[int, ...]], seed: int, start: Mapping[str, np.ndarray] | None = None
) -> Arrays:
    """Matrices before the first step, as PEFT has them: `down` uniform within 1 / sqrt(inputs), `up` zero; those of
    `start`, which are trained in full, as they are there."""
    import numpy as np

    made = dict(start or {})
    for name, shape in shapes.items():
        if name in made:
            continue
        if name.startswith(UP):
            made[name] = np.zeros(shape, np.float32)
        else:
            own = int.from_bytes(sha256(f"{seed} {name}".encode()).digest()[:8], "big")
            draws = np.random.Generator(np.random.PCG64(own)).random(shape, np.float64)
            made[name] = ((2 * draws - 1) / math.sqrt(shape[-1])).astype(np.float32)
    return made
