"""A run over examples of several texts: the loss is one of their vectors, and its gradient goes back through each part.

All vectors of a batch are computed first, in parts that memory allows; then the loss, and each part again with the
gradient of its vectors; a batch that is one part is not computed again. So a batch may be as large as is wanted, and
how it is cut changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.train.order import batches as filled
from weft.train.order import distinct_batches, shuffled
from weft.train.run import Batch, Run, StepResult, first_parameters
from weft.train.vectors import evaluation, losses
from weft.train.vectors.examples import Examples
from weft.train.vectors.folder import write_model
from weft.train.vectors.options import VectorOptions
from weft.train.vectors.trainee import Trainee

if TYPE_CHECKING:
    import numpy as np

    from weft.train.vectors.learner import VectorLearner

Arrays = dict[str, "np.ndarray"]


@frozen(eq=False)
class Taught:
    """An example as tokens: a sequence for each of its vectors, and its label."""

    sequences: tuple[Any, ...]
    label: Any
    texts: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.sequences))


def taught(trainee: Trainee, examples: Examples) -> tuple[list[Taught], int]:
    """The examples as tokens, and how many of their texts were cut."""
    found, cut = trainee.sequences(examples)
    labels = [None] * len(examples) if examples.labels is None else list(examples.labels)
    return [Taught(*each) for each in zip(found, labels, examples.texts)], cut


class VectorRun(Run):
    """Iterate over it: every element is a step that is done."""

    learner: VectorLearner  # type: ignore[assignment]
    options: VectorOptions  # type: ignore[assignment]

    def __init__(
        self,
        learner: VectorLearner,
        lessons: Sequence[Taught],
        options: VectorOptions,
        *,
        valid: Sequence[Taught] = (),
        step_tokens: int,
    ) -> None:
        start = first_parameters(learner.shapes, options.seed, learner.start)
        learner.checkpoint.release()  # what is trained was read, and is not read again
        self.loss = _loss(options)
        super().__init__(learner, lessons, options, valid=valid, start=start, step_tokens=step_tokens)  # type: ignore[arg-type]
        self.measure_name = self._score_name() if valid else ""

    def _check_lessons(self) -> None:
        if not self.lessons:
            raise InputError("train", "there is nothing to learn from", field="data")

    def length(self, lesson: Taught) -> int:
        return lesson.tokens

    def batches(self) -> Iterator[list[int]]:
        """Of a fixed number of examples; for the ranking loss no text is in a batch twice."""
        epochs = count() if self.options.steps else range(self.options.epochs)
        every = (batch for epoch in epochs for batch in self._epoch(epoch))
        return islice(every, self.options.steps or None)

    def _epoch(self, epoch: int) -> Iterator[list[int]]:
        order, size = shuffled(len(self.lessons), self.options.seed, epoch), self.options.batch
        if self.options.loss == "ranking":
            return distinct_batches([lesson.texts for lesson in self.lessons], order, size)
        return (order[first : first + size] for first in range(0, len(order), size))

    def __iter__(self) -> Iterator[StepResult]:
        if self.measure_name and self.before is None and not self.done:
            self.before = self.check()
        yield from super().__iter__()

    def learn(self, batch: Sequence[int]) -> Batch:
        import numpy as np

        chosen = [self.lessons[index] for index in batch]
        parts = list(self.pieces(chosen))
        draws = self._draws(parts)
        begun = self.learner.begun(parts[0], self.parameters, draws[0]) if len(parts) == 1 else None
        if begun is not None:
            found = begun.vectors
        else:
            made = [self.learner.first_vectors(part, self.parameters, draw) for part, draw in zip(parts, draws)]
            found = np.concatenate(made)
        loss, grads = self.loss(_columns(found, len(chosen)), _labels(chosen))
        to_vectors = np.stack(grads, axis=1).reshape(-1, grads[0].shape[1]).astype(np.float32)
        sums, first = self.no_gradient(), 0
        if begun is not None:
            sums, parts = begun.gradients(to_vectors, sums), []
        for part, draw in zip(parts, draws):
            mine = to_vectors[first : first + len(part)]
            sums = self.learner.gradients(part, self.parameters, mine, sums, draw)
            first += len(part)
        return Batch(loss, 1, sums, sum(map(self.length, chosen)), len(to_vectors), {})

    def _draws(self, parts: Sequence[Sequence[Any]]) -> list[list[str]]:
        """What dropout is drawn by for each sequence of a batch: its place in the batch, and the step."""
        places = count()
        return [[f"{self.options.seed} {self.done + 1} {next(places)}" for _ in part] for part in parts]

    def pieces(self, lessons: Sequence[Taught]) -> Iterator[list[Any]]:
        """The sequences of these examples, one after the other, in parts that memory allows."""
        flat = [sequence for lesson in lessons for sequence in lesson.sequences]
        for part in filled(list(map(len, flat)), range(len(flat)), self.step_tokens):
            yield [flat[index] for index in part]

    def columns(self, lessons: Sequence[Taught], parameters: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The vectors of all first sequences, of all second ones …, float64 [examples, D] each."""
        import numpy as np

        found = np.concatenate([self.learner.vectors(part, parameters) for part in self.pieces(lessons)])
        return _columns(found, len(lessons))

    def measure(self) -> float:
        return self.check()["valid"]

    def check(self) -> dict[str, float]:
        """The mean validation loss, of as many examples at a time as are learnt together, and the score."""
        columns, size, total = self.columns(self.valid, self.parameters), self.options.batch, 0.0
        for first in range(0, len(self.valid), size):
            some = self.valid[first : first + size]
            part = [column[first : first + size] for column in columns]
            total += len(some) * self.loss(part, _labels(some))[0]
        return {"valid": total / len(self.valid), "score": self._scored(self.valid, columns)[1]}

    def better(self, result: StepResult, best: StepResult) -> bool:
        assert result.score is not None and best.score is not None
        return result.score > best.score

    def _score_name(self) -> str:
        labels = _labels(self.valid)
        if self.options.loss == "binary":
            return evaluation.relevance_name(labels)
        return evaluation.score_name(labels, len(self.valid[0].sequences))

    def _scored(self, lessons: Sequence[Taught], columns: Sequence[np.ndarray]) -> tuple[str, float]:
        if self.options.loss == "binary":
            return evaluation.relevance(columns[0][:, 0], _labels(lessons))
        return evaluation.scored(columns, _labels(lessons), [lesson.texts for lesson in lessons])

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        tensors, facts = super().state()
        return tensors, {**facts, "before": self.before}

    def restore(self, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        super().restore(tensors, facts)
        self.before = facts["before"]

    def save(self, folder: Path, *, base: str = "", best: bool = False, **about: Any) -> None:
        """Write an adapter of PEFT."""
        task = "SEQ_CLS" if self.options.loss == "binary" else "FEATURE_EXTRACTION"
        super().save(folder, base=base, best=best, task=task, dropout=0.0, **about)

    def save_model(self, folder: Path, trainee: Trainee, *, best: bool = False) -> None:
        """Write the whole model, changes of adapters added: a folder that weft and sentence-transformers load."""
        chosen = self.best[1] if best and self.best is not None else self.parameters
        write_model(trainee, folder, self.learner.changes, chosen, dims=self.options.dims)


def _loss(options: VectorOptions) -> losses.Loss:
    if options.loss == "binary":
        return losses.binary
    return losses.loss_of(options.loss, scale=options.sharpness, margin=options.margin, dims=options.dims)


def _columns(vectors: np.ndarray, examples: int) -> list[np.ndarray]:
    wide = vectors.reshape(examples, -1, vectors.shape[1]).astype("f8")
    return [wide[:, at] for at in range(wide.shape[1])]


def _labels(lessons: Sequence[Taught]) -> Any:
    import numpy as np

    return None if not lessons or lessons[0].label is None else np.stack([lesson.label for lesson in lessons])
