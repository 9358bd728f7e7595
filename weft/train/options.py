"""What decides a run's numbers, in one place: a run that goes on must have the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

from weft.computes import AUTO, TRAINING_COMPUTES
from weft.errors import InputError
from weft.frozen import frozen
from weft.train.optimiser import SCHEDULES

L = TypeVar("L", bound="Learning")


@frozen
class Learning:
    """What all kinds of training have.

    rank, alpha    of each adapted matrix; its change is scaled by alpha / rank, with `rslora` by alpha / sqrt(rank)
    targets        "all-linear", names of modules, or a regular expression for their whole names; "experts" are named
    rate, schedule the rate after the warm-up, which takes a part `warmup` of all steps, and what becomes of it
    epochs, steps  how often all rows are learnt, or how many steps are made, whatever the rows
    decay, clip    AdamW's decay of the matrices; the most that a gradient's norm may be, 0 for any
    valid_every    steps between two validations, 0 for ten in a run
    patience       stop after so many validations without a better one, 0 for never
    compute        what products with the frozen base are computed in: "f32", "f16" (of processors with half-precision
                   arithmetic), "bf16", or "auto": the machine's faster one where it is measured to be so, and near f32
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
    decay: float = 0.0
    clip: float = 1.0
    seed: int = 0
    valid_every: int = 0
    patience: int = 0
    compute: str = "f32"

    def __post_init__(self) -> None:
        self._whole(1, "epochs")
        self._whole(0, "rank", "steps", "valid_every", "patience", "seed")
        self._above_zero("alpha", "rate")
        for name in ("decay", "clip"):
            self._check(name, _finite(getattr(self, name)) and getattr(self, name) >= 0, "must be 0 or more")
        self._check("rank", self.rank <= 256, "must be at most 256")
        self._check("warmup", _finite(self.warmup) and 0 <= self.warmup <= 1, "must be 0 to 1, a part of all steps")
        self._check("schedule", self.schedule in SCHEDULES, f"must be one of {', '.join(SCHEDULES)}")
        computes = (*TRAINING_COMPUTES, AUTO)
        self._check("compute", self.compute in computes, f"must be one of {', '.join(computes)}")

    def _whole(self, least: int, *names: str) -> None:
        what = f"must be at least {least}" if least else "must be 0 or more"
        for name in names:
            self._check(name, type(getattr(self, name)) is int and getattr(self, name) >= least, what)

    def _above_zero(self, *names: str) -> None:
        for name in names:
            self._check(name, _finite(getattr(self, name)) and getattr(self, name) > 0, "must be above zero")

    def _check(self, name: str, right: bool, what: str) -> None:
        if not right:
            raise InputError("train", what, field=name, given=getattr(self, name))

    @property
    def scale(self) -> float:
        """What the product of both matrices is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@frozen
class Options(Learning):
    """How a run over tokens learns, beside what all kinds have.

    modules_to_save  names of modules whose matrices or tables are trained in full, and saved with the adapter
    batch_tokens   how many tokens a step of the optimiser learns from; a longer row is a step of its own
    dropout        the part of each adapter's inputs that a step leaves out
    loss           which tokens are learnt: "assistant", "completion", "all"; None what the rows are for
    too_long       what becomes of rows of more than `max_length` tokens: "error", "cut", "split", "drop"
    beta           of preference training: how strongly the model is held to where it began
    """

    modules_to_save: Any = ()
    batch_tokens: int = 8192
    dropout: float = 0.0
    loss: str | None = None
    max_length: int = 2048
    too_long: str = "error"
    beta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole(1, "rank", "batch_tokens")
        self._above_zero("beta")
        names = self.modules_to_save
        listed = isinstance(names, (list, tuple)) and all(isinstance(name, str) and name for name in names)
        self._check("modules_to_save", listed, "must be a list of names of modules, such as embed_tokens")
        self._check("dropout", _finite(self.dropout) and 0 <= self.dropout < 1, "must be 0 or more, and below 1")


def given_options(kind: type[L], given: Mapping[str, Any]) -> L:
    """Options of this kind by their names; InputError with the nearest name for one that there is not."""
    names = [field.name for field in fields(kind)]
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            advice = f"did you mean {near[0]}?" if near else f"options are {', '.join(names)}"
            raise InputError("train", f"there is no option {name}", advice=advice)
    return kind(**given)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
