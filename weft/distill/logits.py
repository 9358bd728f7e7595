"""Learning from a teacher's likeliest words: beside the loss of the word that was said, the Kullback-Leibler divergence
of the student's distribution from the teacher's, both at a temperature (Hinton et al.).

The teacher's distribution is that of the K words that are kept of each place, at the temperature, with a sum of 1; the
student's is over all words. As usual the divergence is multiplied by the temperature's square, so that its gradient
does not shrink with it. A token's loss is (1 - soft) times the one and soft times the other; where nothing is kept of
the teacher, it is the first alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.graph.passes.learn import PARTS, SHARES, WORDS, with_loss
from weft.train.data.rows import Data
from weft.train.data.taught import Taught, read_taught
from weft.train.learner import Arrays, Learner, Lesson
from weft.train.options import Options
from weft.train.training import Training

if TYPE_CHECKING:
    import numpy as np

    from weft.graph import Program


@frozen
class TaughtOptions(Options):
    """How a student learns from logits, beside what `Options` has.

    temperature    of both distributions: above 1 the less likely words count more
    soft           what the teacher's distribution counts against the words that were said, 0 to 1
    """

    temperature: float = 2.0
    soft: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._above_zero("temperature")
        known = isinstance(self.soft, (int, float)) and not isinstance(self.soft, bool)
        self._check("soft", known and 0 <= self.soft <= 1, "must be 0 to 1")


class TaughtLearner(Learner):
    """Losses and gradients of lessons with up to `words` words of a teacher at each place."""

    def __init__(self, *given: Any, words: int, temperature: float, soft: float, **more: Any) -> None:
        self.words, self.temperature, self.soft = words, float(temperature), float(soft)
        super().__init__(*given, **more)

    def _ended(self, program: Program) -> Program:
        return with_loss(program, words=self.words, temperature=self.temperature)

    def each_loss(self, lessons: Sequence[Lesson], parameters: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        found = super().each_loss(lessons, parameters)
        return [
            (loss + self._soft_parts(lesson)[2]).astype(loss.dtype) for loss, lesson in zip(found, lessons, strict=True)
        ]

    def gradients(self, lessons: Sequence[Lesson], *given: Any, **more: Any) -> tuple[float, Arrays]:
        loss, sums = super().gradients(lessons, *given, **more)
        return loss + float(sum(self._soft_parts(lesson)[2].sum() for lesson in lessons)), sums

    def _given(self, lessons: Sequence[Lesson]) -> Arrays:
        import numpy as np

        made = super()._given(lessons)
        words, parts, _, hard = zip(*map(self._soft_parts, lessons))
        shares = made[SHARES] * np.concatenate(hard)
        return {**made, SHARES: shares, WORDS: np.concatenate(words), PARTS: np.concatenate(parts)}

    def _soft_parts(self, lesson: Lesson) -> tuple[np.ndarray, ...]:
        """Of each target: the teacher's words, what each counts, the constant that makes a divergence of the loss, and
        what the word that was said counts."""
        import numpy as np

        rows = np.flatnonzero(lesson.shares[1:] != 0) + 1
        if not isinstance(lesson, Taught):
            none = np.zeros((len(rows), self.words))
            return none.astype(np.int32), none.astype(np.float32), none[:, 0], np.ones(len(rows), np.float32)
        chances = tempered(lesson.logs[rows], self.temperature)
        weight = self.soft * self.temperature**2 * lesson.shares[rows].astype(np.float64)[:, None]
        logs = np.log(np.where(chances > 0, chances, 1.0))
        hard = np.where(chances.any(axis=1), 1.0 - self.soft, 1.0)
        constant = (weight * chances * logs).sum(axis=1)
        return lesson.words[rows], (weight * chances).astype(np.float32), constant, hard.astype(np.float32)


def tempered(logs: np.ndarray, temperature: float) -> np.ndarray:
    """The distribution of rows of log-probabilities at a temperature, float64; a row of minus infinity stays zero."""
    import numpy as np

    flat = logs.astype(np.float64) / temperature
    highest = flat.max(axis=1, keepdims=True)
    powers = np.exp(flat - np.where(np.isfinite(highest), highest, 0.0))
    total = powers.sum(axis=1, keepdims=True)
    return powers / np.where(total > 0, total, 1.0)


class TaughtTraining(Training):
    """A training on rows that `weft distill label --top-k` has made."""

    options_of = TaughtOptions
    options: TaughtOptions

    def read(self, data: Data) -> Any:
        most = min(self.options.max_length, self.base.positions)
        encoder = self.base.encoder(self.options.loss)
        return read_taught(data, encoder, max_length=most, too_long=self.options.too_long)

    def made_learner(self, changes: Any, **how: Any) -> TaughtLearner:
        lessons = [lesson for data in (self.data, self.valid) if data for lesson in data.lessons]
        largest = max(int(lesson.words.max()) for lesson in lessons)
        if largest >= self.base.vocab_size:
            what = f"the teacher's word {largest} is outside the student's {self.base.vocab_size}: they do not fit"
            raise UnsupportedError("train", what)
        self._evened(max(lesson.words.shape[1] for lesson in lessons))
        how |= {"temperature": self.options.temperature, "soft": self.options.soft}
        return TaughtLearner(self.base.checkpoint, changes, words=self.data.lessons[0].words.shape[1], **how)

    def _evened(self, words: int) -> None:
        """All lessons with the same number of words, those that are missing impossible."""
        for data in (self.data, self.valid):
            if data:
                data.lessons = [lesson.widened(words) for lesson in data.lessons]


def logits(model: Any, data: Data, **options: Any) -> TaughtTraining:
    """Train a LoRA adapter of `model` on a teacher's likeliest words: iterate over the result. Options as for
    `weft.train.lora`, with `temperature` and `soft`."""
    return TaughtTraining("logits", model, data, **options)
