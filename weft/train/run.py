"""A run: lessons in, an adapter out, one step of the optimiser for each batch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.graph.passes.learn import DOWN, UP
from weft.train.learner import Learner, Lesson
from weft.train.optimiser import AdamW, Schedule, clip
from weft.train.order import batches, shuffled
from weft.weights.safetensors import write_safetensors

if TYPE_CHECKING:
    import numpy as np


@frozen
class Options:
    """How a run learns. `step_tokens` bounds the memory of a step and changes no bit; `clip` 0 clips nothing."""

    rate: float = 2e-4
    schedule: str = "cosine"
    warmup: float = 0.03  # part of all steps
    epochs: int = 1
    batch_tokens: int = 8192
    step_tokens: int = 1024
    decay: float = 0.0
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("epochs", "batch_tokens", "step_tokens"):
            if getattr(self, field) < 1:
                raise InputError("train", "must be at least 1", field=field, given=getattr(self, field))
        if not 0 <= self.warmup <= 1:
            raise InputError("train", "must be 0 to 1, a part of all steps", field="warmup", given=self.warmup)


@frozen
class StepResult:
    """One step: its number from 1, the mean loss of a target before it, its targets, the rate, the gradient's norm."""

    number: int
    loss: float
    targets: int
    rate: float
    norm: float


class Run:
    """Iterate over it: every element is a step that is done. `parameters` are the matrices as they are now.

    A token's loss is divided once, by all targets of its batch, so that how a batch is cut into steps changes nothing.
    """

    def __init__(self, learner: Learner, lessons: Sequence[Lesson], options: Options | None = None) -> None:
        self.learner = learner
        self.options = options or Options()
        self.lessons = list(lessons)
        empty = [number for number, lesson in enumerate(self.lessons) if not lesson.targets]
        if empty or not self.lessons:
            what = f"lesson {empty[0]} has no token to learn" if empty else "there is nothing to learn from"
            raise InputError("train", what, field="lessons", index=empty[0] if empty else None)
        self._lengths = [len(lesson.ids) for lesson in self.lessons]
        self.steps = sum(1 for _ in self._batches())
        warmup = math.ceil(self.options.warmup * self.steps)
        self._schedule = Schedule(self.options.rate, self.steps, self.options.schedule, warmup)
        self._rule = AdamW(decay=self.options.decay)
        self.parameters = start(learner, self.options.seed)
        self._means = self._rule.start(self.parameters)
        self.done = 0

    def _batches(self) -> Iterator[list[int]]:
        for epoch in range(self.options.epochs):
            order = shuffled(len(self.lessons), self.options.seed, epoch)
            yield from batches(self._lengths, order, self.options.batch_tokens)

    def __iter__(self) -> Iterator[StepResult]:
        for number, batch in enumerate(self._batches(), 1):
            if number > self.done:
                yield self._step(number, batch)

    def _step(self, number: int, batch: list[int]) -> StepResult:
        targets = sum(self.lessons[index].targets for index in batch)
        loss, sums = 0.0, self.learner.no_gradient()
        for part in batches(self._lengths, batch, self.options.step_tokens):
            part_loss, sums = self.learner.gradients([self.lessons[i] for i in part], self.parameters, sums)
            loss += part_loss
        gradient = {name: value / value.dtype.type(targets) for name, value in sums.items()}
        norm = clip(gradient, self.options.clip)
        rate = self._schedule.at(number)
        self._rule.step(number, rate, self.parameters, gradient, self._means)
        self.done = number
        return StepResult(number, loss / targets, targets, rate, norm)

    def save(self, folder: Path, base: str = "") -> None:
        """Write the matrices as an adapter of PEFT, which weft, peft and others load."""
        write_adapter(folder, self.learner, self.parameters, base)


def start(learner: Learner, seed: int) -> dict[str, np.ndarray]:
    """Matrices before the first step, as PEFT has them: `down` uniform within 1 / sqrt(inputs), `up` zero."""
    import numpy as np

    made = {}
    for name, shape in learner.shapes.items():
        if name.startswith(UP):
            made[name] = np.zeros(shape, np.float32)
        else:
            own = int.from_bytes(sha256(f"{seed} {name}".encode()).digest()[:8], "big")
            draws = np.random.Generator(np.random.PCG64(own)).random(shape, np.float64)
            made[name] = ((2 * draws - 1) / math.sqrt(shape[1])).astype(np.float32)
    return made


def write_adapter(folder: Path, learner: Learner, parameters: dict[str, np.ndarray], base: str = "") -> None:
    """A folder in PEFT's format: adapter_config.json and adapter_model.safetensors."""
    modules = {name: name.removesuffix(".weight") for name in learner.changes}
    whole = {name for name in modules if ":" in name}
    if whole:
        what = f"{min(whole)} is a part of a tensor, and PEFT has no words for an adapter of a part"
        raise InputError("train", what, field="targets")
    first = next(iter(learner.changes.values()))
    ranks = {modules[name]: change.rank for name, change in learner.changes.items() if change.rank != first.rank}
    alphas = {modules[name]: change.rank * change.scale for name, change in learner.changes.items()}
    alpha = first.rank * first.scale
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": first.rank,
        "lora_alpha": alpha,
        "rank_pattern": ranks,
        "alpha_pattern": {name: value for name, value in alphas.items() if value != alpha},
        "target_modules": sorted({module.rpartition(".")[2] for module in modules.values()}),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
    }
    tensors = {}
    for name, module in modules.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = parameters[DOWN + name]
        tensors[f"base_model.model.{module}.lora_B.weight"] = parameters[UP + name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    write_safetensors(folder / "adapter_model.safetensors", tensors)
