"""What decides a run's numbers, in one place: a run that goes on must have the same."""

from __future__ import annotations

import math
from typing import Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.train.optimiser import SCHEDULES


@frozen
class Options:
    """How a run learns.

    rank, alpha    of each adapted matrix; its change is scaled by alpha / rank, with `rslora` by alpha / sqrt(rank)
    targets        "all-linear", names of modules, or a regular expression for their whole names
    rate, schedule the rate after the warm-up, which takes a part `warmup` of all steps, and what becomes of it
    epochs, steps  how often all rows are learnt, or how many steps are made, whatever the rows
    batch_tokens   how many tokens a step of the optimiser learns from; a longer row is a step of its own
    decay, clip    AdamW's decay of the matrices; the most that a gradient's norm may be, 0 for any
    dropout        the part of each adapter's inputs that a step leaves out
    loss           which tokens are learnt: "assistant", "completion", "all"; None what the rows are for
    too_long       what becomes of rows of more than `max_length` tokens: "error", "cut", "split", "drop"
    valid_every    steps between two measures of the validation loss, 0 for ten in a run
    patience       stop after so many measures without a better one, 0 for never
    beta           of preference training: how strongly the model is held to where it began
    """

    rank: int = 8
    alpha: float = 16.0
    targets: Any = "all-linear"
    rslora: bool = False
    rate: float = 2e-4
    schedule: str = "cosine"
    warmup: float = 0.03
    epochs: int = 1
    steps: int = 0
    batch_tokens: int = 8192
    decay: float = 0.0
    clip: float = 1.0
    dropout: float = 0.0
    seed: int = 0
    loss: str | None = None
    max_length: int = 2048
    too_long: str = "error"
    valid_every: int = 0
    patience: int = 0
    beta: float = 0.1

    def __post_init__(self) -> None:
        for name in ("rank", "epochs", "batch_tokens"):
            self._check(name, type(getattr(self, name)) is int and getattr(self, name) >= 1, "must be at least 1")
        for name in ("steps", "valid_every", "patience", "seed"):
            self._check(name, type(getattr(self, name)) is int and getattr(self, name) >= 0, "must be 0 or more")
        for name in ("alpha", "rate", "beta"):
            self._check(name, _finite(getattr(self, name)) and getattr(self, name) > 0, "must be above zero")
        for name in ("decay", "clip"):
            self._check(name, _finite(getattr(self, name)) and getattr(self, name) >= 0, "must be 0 or more")
        self._check("rank", self.rank <= 256, "must be at most 256")
        self._check("warmup", _finite(self.warmup) and 0 <= self.warmup <= 1, "must be 0 to 1, a part of all steps")
        self._check("dropout", _finite(self.dropout) and 0 <= self.dropout < 1, "must be 0 or more, and below 1")
        self._check("schedule", self.schedule in SCHEDULES, f"must be one of {', '.join(SCHEDULES)}")

    def _check(self, name: str, right: bool, what: str) -> None:
        if not right:
            raise InputError("train", what, field=name, given=getattr(self, name))

    @property
    def scale(self) -> float:
        """What the product of both matrices is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
