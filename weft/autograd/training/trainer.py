"""`Trainer`: epochs over a loader, validation, early stopping, and checkpoints that a run is taken up from.

What a step computes depends on the seed, the number of the step and the values before it, on nothing else: dropout is
seeded step by step, batches are functions of seed and epoch. So a run that was killed and goes on from its checkpoint
has the bits of one that ran through.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.autograd.compilation import compiled
from weft.autograd.modules.module import Buffer, Module
from weft.autograd.randomness import seed
from weft.autograd.tape import no_grad
from weft.autograd.training.data import DataLoader
from weft.autograd.training.optimisers import Optimiser, clip_grad_norm, clip_grad_value, grad_norm
from weft.autograd.training.schedules import Plateau
from weft.autograd.variable import Variable
from weft.errors import BackendError, FormatError, InputError, NotFoundError

LAST, BEST = "last.safetensors", "best.safetensors"
MODEL, OPTIMISER = "model.", "optimiser."

Row = dict[str, Any]


class EarlyStopping:
    """Says when to stop: a value has not become better by `least` for `patience` epochs."""

    def __init__(
        self, patience: int = 5, *, monitor: str = "valid_loss", least: float = 0.0, higher_is_better: bool = False
    ) -> None:
        if not isinstance(patience, int) or patience < 1:
            raise InputError("EarlyStopping", "must be a whole number of at least 1", field="patience", given=patience)
        self.patience, self.monitor, self.least = patience, monitor, least
        self.sign = -1.0 if higher_is_better else 1.0
        self.best, self.waited = math.inf, 0

    def better(self, row: Row) -> bool:
        """Take the values of an epoch in; whether the watched one is the best so far."""
        if self.monitor not in row:
            values = ", ".join(name for name in row if name not in ("epoch", "step"))
            raise InputError("EarlyStopping", f"is not measured: there are {values}", field="monitor",
                             given=self.monitor)  # fmt: skip
        now = self.sign * row[self.monitor]
        found = now < self.best - self.least
        self.best, self.waited = (now, 0) if found else (self.best, self.waited + 1)
        return found

    @property
    def over(self) -> bool:
        return self.waited >= self.patience


class Trainer:
    """Trains a module. A batch is (*inputs, target); the loss is a function of the module's result and the target.

    `schedule` is at(step), or a Plateau, which watches what `stopping` watches, else the loss. With `folder` the run is
    saved after each epoch, and every `save_every` steps: `last.safetensors`, and `best.safetensors` where `stopping`
    found the best. `compile` runs each step as one program (weft.autograd.compiled).
    """

    def __init__(
        self,
        model: Module,
        optimiser: Optimiser,
        loss: Callable[[Variable, Any], Variable],
        *,
        metrics: Mapping[str, Callable[[Any, Any], float]] | None = None,
        schedule: Any = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        stopping: EarlyStopping | None = None,
        folder: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        seed: int = 0,
        nonfinite: str = "error",
        compile: bool = False,
        backend: str | None = None,
        on_step: Callable[[Row], None] | None = None,
        on_epoch: Callable[[Row], None] | None = None,
    ) -> None:
        if nonfinite not in ("error", "skip"):
            raise InputError("Trainer", "must be error or skip", field="nonfinite", given=nonfinite)
        if save_every is not None and (folder is None or save_every < 1):
            raise InputError("Trainer", "must be at least 1, and needs a folder", field="save_every", given=save_every)
        self.model, self.optimiser, self.loss = model, optimiser, loss
        self.metrics, self.schedule, self.stopping = dict(metrics or {}), schedule, stopping
        self.clip_norm, self.clip_value, self.nonfinite, self.seed = clip_norm, clip_value, nonfinite, seed
        self.folder, self.save_every = None if folder is None else Path(folder), save_every
        self.on_step, self.on_epoch = on_step, on_epoch
        self._forward = compiled(self._losses, backend=backend) if compile else self._losses
        self.history: list[Row] = []
        self.epoch, self.batch, self.step, self.skipped = 0, 0, 0, 0
        self._sums = [0.0, 0.0]  # of this epoch: losses times rows, rows
        self._batches = 0  # of an epoch

    def fit(
        self, train: DataLoader, valid: DataLoader | None = None, *, epochs: int, resume: bool = False
    ) -> list[Row]:
        """Train until `epochs` epochs are done, or `stopping` says so; returns a row of values for each epoch.

        With `resume` the run goes on from `folder`, if it was saved there. At the end the best values are set again,
        where `stopping` watched for them and they were saved.
        """
        if not isinstance(epochs, int) or epochs < 1:
            raise InputError("fit", "must be a whole number of at least 1", field="epochs", given=epochs)
        if resume and self._file(LAST).is_file():
            self.load(self._file(LAST))
            if self._batches not in (0, len(train)):
                what = f"was saved by a run with {self._batches} batches an epoch; this one has {len(train)}"
                raise InputError("Trainer", what, field=LAST, advice="use the same data and sizes, or another folder")
        self._batches = len(train)
        while self.epoch < epochs and not (self.stopping and self.stopping.over):
            row = self._one_epoch(train, valid)
            self.history.append(row)
            self._after(row)
            if self.on_epoch is not None:
                self.on_epoch(row)
        if self.stopping is not None and self.folder is not None and self._file(BEST).is_file():
            self.model.load_state_dict(_read(self._file(BEST))[0][MODEL])
        return self.history

    def _one_epoch(self, train: DataLoader, valid: DataLoader | None) -> Row:
        self.model.train()
        for batch in train.batches(self.epoch, self.batch):
            self._one_step(batch)
            self.batch += 1
            if self.save_every and self.step % self.save_every == 0 and self.batch < len(train):
                self.save(self._file(LAST))
        row: Row = {"epoch": self.epoch, "step": self.step, "loss": self._sums[0] / max(self._sums[1], 1.0)}
        if valid is not None:
            row.update({f"valid_{name}": value for name, value in self.evaluate(valid).items()})
        row["lr"] = self.optimiser.groups[0]["lr"]
        return row

    def _one_step(self, batch: Sequence[Any]) -> None:
        seed(self.seed, self.step)
        if self.schedule is not None and not isinstance(self.schedule, Plateau):
            self.optimiser.scale_rate(self.schedule.at(self.step))
        self.optimiser.zero_grad()
        buffers = [(one, one.value) for _, one in self.model.named_variables(Buffer)]
        loss, _ = self._forward(*batch)
        value, rows = loss.item(), len(batch[-1])
        number, self.step = self.step, self.step + 1
        if math.isfinite(value):
            loss.backward()
        norm = grad_norm(self.optimiser.parameters) if math.isfinite(value) else math.nan
        if not math.isfinite(norm):
            self._not_finite(number, value)
            for one, before in buffers:  # such a batch leaves no mark in running statistics
                one.value = before
            return
        if self.clip_value is not None:
            clip_grad_value(self.optimiser.parameters, self.clip_value)
        if self.clip_norm is not None:
            clip_grad_norm(self.optimiser.parameters, self.clip_norm)
        self.optimiser.step()
        self._sums = [self._sums[0] + value * rows, self._sums[1] + rows]
        if self.on_step is not None:
            self.on_step({"step": number, "loss": value, "norm": norm, "lr": self.optimiser.groups[0]["lr"]})

    def _not_finite(self, number: int, value: float) -> None:
        if self.nonfinite == "error":
            what = f"the loss of step {number}, or its gradient, is not finite: the loss is {value}"
            advice = 'use a smaller rate, clip_norm=1, look for broken rows, or skip such batches: nonfinite="skip"'
            raise BackendError("Trainer", what, advice=advice)
        self.skipped += 1

    def _losses(self, *batch: Any) -> tuple[Variable, Variable]:
        prediction = self.model(*batch[:-1])
        return self.loss(prediction, batch[-1]), prediction

    def evaluate(self, loader: DataLoader) -> dict[str, float]:
        """The mean loss over all rows, and every metric, without dropout and without a tape."""
        training, total, count = self.model.training, 0.0, 0
        found, wanted = [], []
        self.model.eval()
        try:
            with no_grad():
                for batch in loader.batches(0):
                    loss, prediction = self._forward(*batch)
                    total, count = total + loss.item() * len(batch[-1]), count + len(batch[-1])
                    found.append(prediction.value)
                    wanted.append(np.asarray(batch[-1]))
        finally:
            self.model.train(training)
        all_found, all_wanted = np.concatenate(found), np.concatenate(wanted)
        measured = {name: float(measure(all_found, all_wanted)) for name, measure in self.metrics.items()}
        return {"loss": total / count, **measured}

    def predict(self, *inputs: Any) -> np.ndarray:
        """The module's result for one batch, in use."""
        training = self.model.training
        self.model.eval()
        try:
            with no_grad():
                return self.model(*inputs).value
        finally:
            self.model.train(training)

    def _after(self, row: Row) -> None:
        """The end of an epoch: what is best, the rate of the next, the checkpoint."""
        self.epoch, self.batch, self._sums = self.epoch + 1, 0, [0.0, 0.0]
        best = self.stopping is not None and self.stopping.better(row)
        if isinstance(self.schedule, Plateau):
            watched = self.stopping.monitor if self.stopping else ("valid_loss" if "valid_loss" in row else "loss")
            self.optimiser.scale_rate(self.schedule.observe(row[watched]))
        if self.folder is not None:
            if best:  # first: a run that is killed in between finds it again
                self.save(self._file(BEST))
            self.save(self._file(LAST))

    # Checkpoints.

    def _file(self, name: str) -> Path:
        if self.folder is None:
            raise InputError("Trainer", "is needed to save and to resume", field="folder", given=None)
        return self.folder / name

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run: values of the module and of the optimiser, and where it is."""
        from weft.weights.safetensors import write_safetensors

        Path(path).parent.mkdir(parents=True, exist_ok=True)
        tensors = {MODEL + name: value for name, value in self.model.state_dict().items()}
        tensors.update({OPTIMISER + name: value for name, value in self.optimiser.state_dict().items()})
        stopping = None if self.stopping is None else [self.stopping.best, self.stopping.waited]
        plateau = self.schedule.state() if isinstance(self.schedule, Plateau) else None
        run = {
            "optimiser": type(self.optimiser).__name__, "seed": self.seed, "epoch": self.epoch, "batch": self.batch,
            "step": self.step, "skipped": self.skipped, "sums": self._sums, "batches": self._batches,
            "stopping": stopping, "plateau": plateau, "history": self.history,
        }  # fmt: skip
        write_safetensors(path, tensors, {"format": "weft.autograd.run", "run": json.dumps(run)})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a run that was saved; InputError if it was another."""
        parts, run = _read(Path(path))
        mine = {"optimiser": type(self.optimiser).__name__, "seed": self.seed}
        other = {name: run[name] for name, value in mine.items() if run[name] != value}
        if other:
            what = f"was saved by a run with {other}; this one has { {name: mine[name] for name in other} }"
            raise InputError("Trainer", what, field=str(path), advice="use the same settings, or another folder")
        self.model.load_state_dict(parts[MODEL])
        self.optimiser.load_state_dict(parts[OPTIMISER])
        self.epoch, self.batch, self.step = run["epoch"], run["batch"], run["step"]
        self.skipped, self._sums, self.history = run["skipped"], run["sums"], run["history"]
        self._batches = run["batches"]
        if self.stopping is not None and run["stopping"] is not None:
            self.stopping.best, self.stopping.waited = run["stopping"]
        if isinstance(self.schedule, Plateau) and run["plateau"] is not None:
            self.schedule.restore(run["plateau"])


def _read(path: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """The values of a checkpoint by part, and the run."""
    from weft.weights.safetensors import open_safetensors

    if not path.is_file():
        raise NotFoundError("Trainer", "does not exist", field="checkpoint", given=str(path))
    parts: dict[str, dict[str, np.ndarray]] = {MODEL: {}, OPTIMISER: {}}
    with open_safetensors(path) as file:
        if file.metadata.get("format") != "weft.autograd.run":
            raise FormatError(path.name, "is not a checkpoint of a Trainer")
        run = json.loads(file.metadata["run"])
        for name in file.tensors:
            prefix = MODEL if name.startswith(MODEL) else OPTIMISER
            parts[prefix][name.removeprefix(prefix)] = file[name].numpy()
    return parts, run
