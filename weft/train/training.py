"""A training from names to files: a model and data in, a folder with an adapter, its state and a report out."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.computes import AUTO
from weft.errors import InputError, MemoryPlanError, UnsupportedError
from weft.frozen import frozen
from weft.graph.passes.learn import LowRank
from weft.runtime.checkpoint import Checkpoint, open_checkpoint
from weft.runtime.memory import SHARE, free_memory
from weft.train import kept
from weft.train.adapter import read_start
from weft.train.data.encode import Encoder
from weft.train.data.lessons import read_lessons
from weft.train.data.pairs import read_pairs
from weft.train.data.rows import Data
from weft.train.learner import Choice, Learner, Lesson, choose_compute
from weft.train.options import Options, given_options
from weft.train.preference import PreferenceRun, flat_lessons
from weft.train.run import STEP_TOKENS, Run, first_parameters
from weft.train.targets import changes_of, check_dropout, choose, products, whole_modules
from weft.weights.sources import locate

if TYPE_CHECKING:
    from weft.text.chat import Template
    from weft.text.tokenizer import Tokenizer
    from weft.weights.sources import Located

RUNS: dict[str, type[Run]] = {"lora": Run, "dpo": PreferenceRun, "logits": Run}
SAVE_EVERY_S = 60.0
WARM_TOKENS = 2  # of the step that makes a measure of the next one fair
COPIES = 7  # of the matrices: they, both means, the gradient as it goes in and out, the scaled one, the best


@frozen
class Base:
    """A model to train on."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    template: Template | None
    end: int | None
    vocab_size: int
    positions: int
    weights: Mapping[str, tuple[int, ...]]  # that can be adapted

    @classmethod
    def open(cls, model: str | os.PathLike[str]) -> Base:
        from weft.models import model_module
        from weft.nn import read_config

        located = locate(os.fspath(model)).alone("train")
        checkpoint = open_checkpoint(located.path)
        weights = products(checkpoint)
        with checkpoint.naming():
            config: Any = read_config(model_module(checkpoint.model_type).Config, checkpoint.config)
        tokenizer = checkpoint.tokenizer()
        template = _template(located, checkpoint)
        stated = checkpoint.generation.get("eos_token_id", checkpoint.config.get("eos_token_id"))
        ends = [tokenizer.eos_id, *(stated if isinstance(stated, list) else [stated])]
        end = next((id for id in ends if type(id) is int), None)
        sizes = {"vocab_size": config.vocab_size, "positions": config.positions}
        return cls(os.fspath(model), checkpoint, tokenizer, template, end, **sizes, weights=weights)

    def encoder(self, loss: str | None) -> Encoder:
        """How rows become ids for this model."""
        return Encoder(self.tokenizer, self.template, self.end, loss)


def has_chat_template(model: str | os.PathLike[str]) -> bool:
    """Whether a model's files say how conversations with it are written."""
    located = locate(os.fspath(model)).alone("train")
    return _template(located, open_checkpoint(located.path)) is not None


def _template(located: Located, checkpoint: Checkpoint) -> Template | None:
    return checkpoint.chat_template or (located.entry.chat_template if located.entry else None)


class Training(kept.Keeping):
    """Iterate over it: every element is a step that is done. With `output` its state is kept there every so often, and
    at the end the adapter (`output`, the best one if there is validation data, and `output/last`) and a report."""

    options_of: type[Options] = Options

    def __init__(
        self,
        kind: str,
        model: str | os.PathLike[str],
        data: Data,
        *,
        output: str | os.PathLike[str] | None = None,
        valid: float | Data | None = None,
        start: str | os.PathLike[str] | None = None,
        resume: bool = False,
        memory: int | None = None,
        threads: int | None = None,
        backend: str | None = None,
        save_every: float = SAVE_EVERY_S,
        **options: Any,
    ) -> None:
        self.kind, self.output, self.save_every = kind, None if output is None else Path(output), save_every
        self.options = _options(self.options_of, options, start is not None)
        if kind == "dpo" and self.options.dropout:
            what = "must be 0: both log-probabilities of a pair are those of the whole model"
            raise InputError("train", what, field="dropout", given=self.options.dropout)
        self.check_output(resume)
        self.base = Base.open(model)
        self.data = self.read(data)
        self.valid = None
        if isinstance(valid, float):
            if not 0 < valid < 1:
                raise InputError("train", "must be a file, or a part between 0 and 1", field="valid", given=valid)
            self.data, self.valid = self.data.parted(valid, self.options.seed)
        elif valid is not None:
            self.valid = self.read(valid)
        self._check_ids()
        changes, first = self._changes(start)
        whole = [name for names in self.whole.values() for name in names]
        self.learner = self.made_learner(
            changes, weights=whole, dropout=self.options.dropout, threads=threads, backend=backend
        )
        self.chosen = self._choose_compute(resume, first)
        self.memory = memory
        self.run = RUNS[kind](
            self.learner,
            self.data.lessons,
            self.options,
            valid=self.valid.lessons if self.valid else (),
            start=first,
            step_tokens=self._step_tokens(),
        )
        self._start = None if first is None else _digest_of(first)
        if resume:
            self.take_up()

    def read(self, data: Data) -> Any:
        """The lessons of rows, or the pairs."""
        encoder, most = self.base.encoder(self.options.loss), min(self.options.max_length, self.base.positions)
        read: Any = read_pairs if self.kind == "dpo" else read_lessons
        return read(data, encoder, max_length=most, too_long=self.options.too_long)

    def made_learner(self, changes: Mapping[str, LowRank], **how: Any) -> Learner:
        """What finds losses and gradients."""
        return Learner(self.base.checkpoint, changes, **how)

    def _check_ids(self) -> None:
        flat = [lesson for data in (self.data, self.valid) if data for lesson in flat_lessons(data.lessons)]
        largest = max(int(lesson.ids.max()) for lesson in flat)
        if largest >= self.base.vocab_size:
            what = f"token {largest} is outside the model's {self.base.vocab_size}: tokenizer and model do not fit"
            raise UnsupportedError("train", what)
        self.longest = max(len(lesson.ids) for lesson in flat)

    @cached_property
    def whole(self) -> dict[str, list[str]]:
        """The modules that are trained in full, and their tensors."""
        names = self.options.modules_to_save
        return whole_modules(self.base.checkpoint, names) if names else {}

    def _changes(self, start: str | os.PathLike[str] | None) -> tuple[dict[str, LowRank], Any]:
        if start is not None:
            return read_start(Path(start), self.base.checkpoint, self.base.weights)
        model_type = self.base.checkpoint.model_type
        modules = choose(self.base.weights, self.options.targets, model_type=model_type)
        modules = [module for module in modules if module not in self.whole]
        if not modules:
            what = "names every target, so that nothing is left to adapt"
            raise InputError("train", what, field="modules_to_save", given=list(self.options.modules_to_save))
        check_dropout(modules, self.options.dropout)
        change = LowRank(self.options.rank, self.options.scale)
        return changes_of(self.base.weights, modules, change, model_type), None

    def _choose_compute(self, resume: bool, first: Any) -> Choice | None:
        """Settle what products are computed in; what "auto" found, if it was measured. A run that goes on keeps what it
        began with, whatever a measurement would find now."""
        chosen, compute = None, self.options.compute
        if compute == AUTO and resume and self.output is not None:
            compute = kept.compute(self.output)
        if compute == AUTO:
            own = first_parameters(self.learner.shapes, self.options.seed, self.learner.start)
            begin = own if first is None else first
            chosen = choose_compute(self.learner, flat_lessons(self.data.lessons), begin)
            compute = chosen.compute
        self.learner.use(compute)
        self.options = replace(self.options, compute=compute)
        return chosen

    def memory_plan(self, tokens: int) -> dict[str, int]:
        """Bytes that a training takes whose parts have so many tokens."""
        state = 4 * COPIES * self.learner.parameters
        work = self.learner.work_bytes(tokens, tokens, tokens // WARM_TOKENS)
        return {"weights": self.base.checkpoint.size_bytes, "matrices": state, "work": work}

    def _step_tokens(self) -> int:
        """The most tokens of a part for which there is memory."""
        room = self.memory or int(SHARE * free_memory().available_bytes)
        most = max(self.options.batch_tokens if self.memory else STEP_TOKENS, self.longest)
        tokens = most
        while tokens > self.longest and sum(self.memory_plan(tokens).values()) > room:
            tokens = max(self.longest, tokens * 7 // 8)
        plan = self.memory_plan(tokens)
        left = room - plan["weights"] - plan["matrices"]
        if plan["work"] > left and not self.learner.fit(left, tokens, tokens, tokens // WARM_TOKENS):
            plan = self.memory_plan(tokens)
            parts = ", ".join(f"{name} {decimal_size(size)}" for name, size in plan.items())
            least = decimal_size(sum(plan.values()))
            raise MemoryPlanError(
                "train",
                f"a row of {tokens} tokens needs at least {least} ({parts}), and {decimal_size(room)} may be used",
                advice=f"give --memory {least.replace(' ', '')}, or a smaller --max-length with --too-long split",
            )
        return tokens

    @cached_property
    def about(self) -> dict[str, Any]:
        """What a run that goes on must have in common with its beginning."""
        return {
            "kind": self.kind,
            "base": kept.base_digest(self.base.checkpoint),
            "data": self.data.digest(),
            "valid": self.valid.digest() if self.valid else None,
            "start": self._start,
            **asdict(self.options),
        }

    def estimate(self) -> dict[str, float]:
        """Seconds of the whole training, measured on one part of a batch, and tokens a second."""
        run = self.run
        batch = [run.lessons[index] for index in next(run.batches())]
        part = next(run.parts(flat_lessons(batch)))
        tiny = Lesson(part[0].ids[:WARM_TOKENS], part[0].shares[:WARM_TOKENS] * 0 + 1)
        self.learner.gradients([tiny], run.parameters, self.learner.no_gradient(), ["tiny"])
        began = time.perf_counter()
        self.learner.gradients(part, run.parameters, self.learner.no_gradient(), list(map(str, range(len(part)))))
        rate = sum(len(lesson.ids) for lesson in part) / (time.perf_counter() - began)
        tokens = sum(run.length(run.lessons[index]) for batch in run.batches() for index in batch)
        passes = 1.6 if self.kind == "dpo" else 1.0  # a pair's log-probabilities are found before its gradient
        return {"seconds": passes * tokens / rate, "tokens_per_second": rate / passes}

    def write(self) -> None:
        from weft.train.data.sample import SAMPLE, sample_text
        from weft.weights.files import replacing

        assert self.output is not None
        about: dict[str, Any] = {"base": self.base.name, "weights": self.base.weights}
        self.run.save(self.output, best=True, **about)
        if self.run.best is not None:
            self.run.save(self.output / "last", **about)
        with replacing(self.output / SAMPLE) as out:  # for `weft merge`
            out.write(sample_text(flat_lessons((self.valid or self.data).lessons)).encode())

    @property
    def title(self) -> str:
        """What kind of training this is, for people."""
        return {"lora": "LoRA", "dpo": "Preference training", "logits": "Learning from a teacher"}[self.kind]

    def facts(self) -> Iterator[tuple[str, str]]:
        """What is learnt, for people."""
        data, valid = self.data, self.valid
        yield "rows", f"{data.rows:,}"
        yield "tokens", f"{data.tokens:,}"
        yield "learnt tokens", f"{data.targets:,} ({100 * data.targets / data.tokens:.0f} %)"
        for name in ("cut", "split", "dropped"):
            if getattr(data, name, 0):
                yield f"rows {name}", f"{getattr(data, name):,}"
        if valid is not None:
            yield "validation", f"{valid.rows:,} rows, {valid.targets:,} learnt tokens"

    def shown_rows(self, rows: int, tokens: int) -> Iterator[list[tuple[str, bool]]]:
        """The beginning of the first rows: pieces of text, and whether they are learnt. Runs of tokens are decoded
        together, so that characters stay whole."""
        for lesson in flat_lessons(self.data.lessons[:rows]):
            learnt = [False, *(lesson.shares[1:tokens] != 0).tolist()]
            pieces, start = [], 0
            for at in range(1, len(learnt) + 1):
                if at == len(learnt) or learnt[at] != learnt[start]:
                    text = self.base.tokenizer.decode(lesson.ids[start:at], skip_special=False)
                    pieces.append((text, learnt[start]))
                    start = at
            yield pieces + ([(" …", False)] if len(lesson.ids) > tokens else [])

    def uses(self) -> list[str]:
        """Commands that use the adapter."""
        base, adapter = self.base.name, self.output
        return [
            f"weft chat {base} --adapter {adapter}",
            f"weft merge {base} {adapter} -o merged.gguf --type q8_0 --max-loss 0.01",
        ]


def lora(model: str | os.PathLike[str], data: Data, **options: Any) -> Training:
    """Train a LoRA adapter of `model` on the rows of a file, or of Python: iterate over the result.

    `output` is the folder for the adapter, `valid` a file, rows or a part of the data (0.05) to measure the loss on,
    `start` an adapter to begin with, `resume` goes on with a run that was stopped, `memory` is the most bytes to use,
    `threads` how many cores. The other options are those of `weft.train.Options`.
    """
    return Training("lora", model, data, **options)


def dpo(model: str | os.PathLike[str], data: Data, **options: Any) -> Training:
    """Train a LoRA adapter on preferences: rows have a `chosen` and a `rejected` answer. Options as for `lora`."""
    return Training("dpo", model, data, **options)


def decimal_size(count: int) -> str:
    """Bytes in decimal units, rounded up, so that a limit of what is said is enough."""
    unit, name = (10**9, "GB") if count >= 10**9 else (10**6, "MB")
    return f"{math.ceil(100 * count / unit) / 100:.2f} {name}"


def _options(kind: type[Options], given: Mapping[str, Any], started: bool) -> Options:
    found = given_options(kind, given)
    fixed = [name for name in ("rank", "alpha", "targets", "rslora", "modules_to_save") if name in given]
    if started and fixed:
        what = "is given by the adapter that the training starts from"
        raise InputError("train", what, field=fixed[0], given=given[fixed[0]], advice="leave it out")
    return found


def _digest_of(arrays: Mapping[str, Any]) -> str:
    from hashlib import sha256

    hashed = sha256()
    for name, value in sorted(arrays.items()):
        hashed.update(name.encode() + value.tobytes())
    return hashed.hexdigest()
