"""A learner: the loss of sequences under a model with trained changes of some weights, and the loss's gradients.

The base stays as the checkpoint has it, mapped and quantised; what is trained goes in with every step and its gradient
comes out. A batch is any number of steps: its gradient is the same to the bit however it is cut into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weft.backends import Backend, open_backend
from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.graph.grad import GRAD
from weft.graph.passes import cut_rows, dead_code
from weft.graph.passes.learn import LOSS, SHARES, TARGETS, LowRank, loss_seeds, with_loss
from weft.nn import Scope
from weft.nn.step import TracedStep
from weft.runtime.programs import Programs
from weft.runtime.steps import build_step, offsets
from weft.runtime.threads import plan_threads
from weft.runtime.tracing import CheckedTrace
from weft.train.base import Arrays, BaseLearner

if TYPE_CHECKING:
    import numpy as np

    from weft.graph import Program
    from weft.runtime.checkpoint import Checkpoint


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


class Learner(BaseLearner):
    """Losses and gradients of one checkpoint; `changes` names the weights with trained changes, `weights` those that
    are trained themselves: norms, biases, tables and matrices.

    With `dropout` gradients are those of changes that do not see this part of their inputs; losses see all of them.
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
    ) -> None:
        opened = open_backend(backend, level=level, threads=plan_threads(threads).count)
        programs = Programs(checkpoint, opened, compute="f32")
        super().__init__(programs, _traced(programs, context), changes, weights, dropout)

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
        """The sum of the lessons' losses, and `sums` with the gradient of that sum added.

        With dropout each lesson has a text in `draws` that decides what is left out, so that neither the other lessons
        nor the number of threads do.
        """
        import numpy as np

        executable, names = self._gradients
        given = self._given(lessons) | dict(parameters) | self._into(sums)
        if self.dropout:
            rows = [np.flatnonzero(lesson.shares[1:] != 0) for lesson in lessons]
            given |= self._masks([len(lesson.ids) for lesson in lessons], rows, draws)
        found = executable.run({name: given[name] for name in names})
        return float(found[LOSS].astype("f8").sum()), {name: found[GRAD + name] for name in self.shapes}

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
    if module.KIND != "decoder" or getattr(config, "bidirectional", False):
        what = f"{checkpoint.model_type} does not generate text, so it has no loss of the next token"
        raise UnsupportedError("train", what)
    with checkpoint.naming(), CheckedTrace(checkpoint.model_type, checkpoint) as trace:
        scope = Scope(trace, checkpoint.stored)
        trace.output("logits", module.forward(scope, config, TracedStep(trace, context=context, whole=True)))
    return cut_rows(dead_code(trace.program())), trace.constants
