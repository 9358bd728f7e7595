"""Preference training (Rafailov et al., DPO): of two answers the chosen one becomes likelier, the rejected one less so,
as far as they differ from what the model without its adapter says.

A pair's loss is -log sigmoid(beta * margin), where the margin is by how much more the chosen answer's log-probability
has risen than the rejected one's. Its gradient by a log-probability is one number for each answer, so that a step is a
step of ordinary training whose tokens have that number as their share: + for the chosen answer, - for the rejected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.graph.passes.learn import UP
from weft.train.learner import Lesson
from weft.train.run import Batch, Run

if TYPE_CHECKING:
    import numpy as np


@frozen(eq=False)
class Pair:
    """Two answers to the same prompt. The shares of both lessons are 0 or 1."""

    chosen: Lesson
    rejected: Lesson

    @property
    def targets(self) -> int:
        return self.chosen.targets + self.rejected.targets


def flat_lessons(items: Sequence[Any]) -> list[Lesson]:
    """Lessons as they are, and both lessons of each pair."""
    return [one for item in items for one in ((item.chosen, item.rejected) if isinstance(item, Pair) else (item,))]


class PreferenceRun(Run):
    """A run over pairs."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self._known: dict[int, tuple[float, float]] = {}  # by a pair's identity, under the model as it was
        super().__init__(*given, **more)
        unchanged = {name: value * 0 if name.startswith(UP) else value for name, value in self.parameters.items()}
        self._before = {**unchanged, **self.learner.start}  # without an adapter

    def _check_lessons(self) -> None:
        for number, pair in enumerate([*self.lessons, *self.valid]):
            if not (pair.chosen.targets and pair.rejected.targets):
                raise InputError("train", f"pair {number} has an answer without a token", field="lessons", index=number)
        if not self.lessons:
            raise InputError("train", "there is nothing to learn from", field="lessons")

    def length(self, pair: Pair) -> int:
        return len(pair.chosen.ids) + len(pair.rejected.ids)

    def learn(self, batch: Sequence[int]) -> Batch:
        pairs = [self.lessons[index] for index in batch]
        margins = self.margins(pairs)
        beta = self.options.beta
        shares = [beta * _sigmoid(-beta * margin) for margin in margins]
        weighted = [
            Lesson(lesson.ids, lesson.shares * lesson.shares.dtype.type(share))
            for pair, weight in zip(pairs, shares)
            for lesson, share in ((pair.chosen, weight), (pair.rejected, -weight))
        ]
        sums = self.no_gradient()
        for part in self.parts(weighted):
            _, sums = self.learner.gradients(part, self.parameters, sums)
        loss = math.fsum(_loss(beta * margin) for margin in margins)
        facts = {
            "accuracy": sum(margin > 0 for margin in margins) / len(pairs),
            "margin": beta * math.fsum(margins) / len(pairs),
        }
        targets = sum(pair.targets for pair in pairs)
        return Batch(loss, len(pairs), sums, sum(map(self.length, pairs)), targets, facts)

    def measure(self) -> float:
        """The mean loss of a validation pair."""
        margins = self.margins(self.valid)
        return math.fsum(_loss(self.options.beta * margin) for margin in margins) / len(margins)

    def margins(self, pairs: Sequence[Pair]) -> list[float]:
        """By how much more each pair's chosen answer has become likelier than its rejected one."""
        unknown = [pair for pair in pairs if id(pair) not in self._known]
        if unknown:
            self._known.update(zip(map(id, unknown), self._likelihoods(unknown, self._before)))
        now = self._likelihoods(pairs, self.parameters)
        before = [self._known[id(pair)] for pair in pairs]
        return [(c - c0) - (r - r0) for (c, r), (c0, r0) in zip(now, before)]

    def _likelihoods(self, pairs: Sequence[Pair], parameters: dict[str, np.ndarray]) -> list[tuple[float, float]]:
        """The log-probabilities of both answers."""
        losses = self.each_loss(flat_lessons(pairs), parameters)
        return [(-chosen, -rejected) for chosen, rejected in zip(losses[::2], losses[1::2])]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _loss(x: float) -> float:
    """-log sigmoid(x)"""
    return math.log1p(math.exp(-x)) if x >= 0 else math.log1p(math.exp(x)) - x
