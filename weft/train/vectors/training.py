"""Training of embedders and rerankers from names to files: a model and rows in, a folder with what was learnt out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from weft.computes import AUTO
from weft.errors import InputError, MemoryPlanError
from weft.graph.passes.learn import LowRank
from weft.runtime.memory import SHARE, free_memory
from weft.train import kept
from weft.train.data.rows import Data
from weft.train.learner import Choice, choose_by
from weft.train.options import given_options
from weft.train.run import STEP_TOKENS, first_parameters
from weft.train.targets import changes_of, choose
from weft.train.training import COPIES, SAVE_EVERY_S, decimal_size
from weft.train.vectors.examples import Examples, read_examples
from weft.train.vectors.folder import check_writable
from weft.train.vectors.learner import VectorLearner, matrices, weights
from weft.train.vectors.options import VectorOptions
from weft.train.vectors.run import Taught, VectorRun, taught
from weft.train.vectors.trainee import open_embedder, open_reranker

SHORT = 4  # tokens of a text, at least: for a bound of the memory


class VectorTraining(kept.Keeping):
    """Iterate over it: every element is a step that is done. With `output` its state is kept there every so often, and
    at the end a model in sentence-transformers' form or, for a rank above 0, an adapter, and a report."""

    def __init__(
        self,
        kind: str,
        model: str | os.PathLike[str],
        data: Data,
        *,
        output: str | os.PathLike[str] | None = None,
        valid: float | Data | None = None,
        resume: bool = False,
        merged: bool = False,
        memory: int | None = None,
        threads: int | None = None,
        backend: str | None = None,
        save_every: float = SAVE_EVERY_S,
        **options: Any,
    ) -> None:
        self.kind, self.output, self.save_every = kind, None if output is None else Path(output), save_every
        self.memory = memory
        self.options = _options(kind, options)
        self.merged = bool(self.options.rank) and (merged or kind == "reranker")  # rerankers take no adapters
        self.check_output(resume)
        machine = {"threads": threads, "backend": backend}
        if kind == "reranker":
            self.base = open_reranker(model, self.options.max_length, self.options.seed, **machine)
            if self.base.head is not None and self.options.rank:
                what = "must be 0: the model has no classifier, and a new one is trained in full"
                raise InputError("train", what, field="rank", given=self.options.rank, advice="train without --lora")
        else:
            self.base = open_embedder(model, self.options.max_length, self.options.prompts, **machine)
        self.weights = self.base.adaptable(matrices(self.base.encoder))
        if self.merged or not self.options.rank:
            check_writable(self.base.checkpoint)
        self._read(data, valid)
        self.learner = self._learner()
        self.chosen = self._choose_compute(resume)
        self.run = VectorRun(
            self.learner, self.lessons, self.options, valid=self.valid_lessons, step_tokens=self._step_tokens()
        )
        if resume:
            self.take_up()

    def _read(self, data: Data, valid: float | Data | None) -> None:
        self.data: Examples = read_examples(data, self.options.loss)
        self.valid: Examples | None = None
        if isinstance(valid, float):
            if not 0 < valid < 1:
                raise InputError("train", "must be a file, or a part between 0 and 1", field="valid", given=valid)
            self.data, self.valid = self.data.parted(valid, self.options.seed)
        elif valid is not None:
            self.valid = read_examples(valid, self.options.loss)
        if self.valid is not None and len(self.valid) < 2:
            raise InputError("train", "must have at least two examples", field="valid", given=len(self.valid))
        self.lessons, self.cut = taught(self.base, self.data)
        self.valid_lessons: list[Taught] = taught(self.base, self.valid)[0] if self.valid is not None else []
        self._check_vectors()

    def _check_vectors(self) -> None:
        size, dims = self.base.encoder.dimension, self.options.dims
        if dims and max(dims) > size:
            raise InputError("train", f"must be at most {size}, the length of vectors", field="dims", given=max(dims))
        if self.options.loss == "mse" and self.data.labels is not None and self.data.labels.shape[1] != size:
            what = f"has vectors of {self.data.labels.shape[1]} numbers, and the model's have {size}"
            raise InputError("train", what, field="data", advice="use a teacher with vectors of the same length")

    def _learner(self) -> VectorLearner:
        given = self.options.dropout
        dropout = None if isinstance(given, str) else float(given)
        if not self.options.rank:
            return VectorLearner(self.base.encoder, weights=list(weights(self.base.encoder)), dropout=dropout)
        modules = choose(self.weights, self.options.targets, model_type=self.base.checkpoint.model_type)
        change = LowRank(self.options.rank, self.options.scale)
        return VectorLearner(self.base.encoder, changes_of(self.weights, modules, change), dropout=dropout)

    def _choose_compute(self, resume: bool) -> Choice | None:
        """Settle what products with frozen weights are computed in; what "auto" found, if it was measured. A run that
        goes on keeps what it began with, whatever a measurement would find now."""
        chosen, compute = None, self.options.compute
        if not self.options.rank and compute not in ("f32", AUTO):
            what = "must be f32: where all weights are trained, none is frozen"
            raise InputError("train", what, field="compute", given=compute, advice="train an adapter (--lora 8)")
        if compute == AUTO and resume and self.output is not None:
            compute = kept.compute(self.output)
        if compute == AUTO:
            chosen = self._measured() if self.options.rank else None
            compute = chosen.compute if chosen else "f32"
        self.learner.use(compute)
        self.options = replace(self.options, compute=compute)
        return chosen

    def _measured(self) -> Choice:
        import numpy as np

        probe = [max((one for lesson in self.lessons for one in lesson.sequences), key=len)]
        parameters = first_parameters(self.learner.shapes, self.options.seed)
        seed = np.ones((1, self.base.encoder.dimension), np.float32)
        learner = self.learner
        return choose_by(learner, lambda: learner.gradients(probe, parameters, seed, learner.no_gradient(), ["probe"]))

    def memory_plan(self, tokens: int) -> dict[str, int]:
        """Bytes that a training takes whose parts have so many tokens."""
        work = self.learner.work_bytes(tokens, max(1, tokens // SHORT))
        state = 4 * COPIES * self.learner.parameters
        return {"weights": self.base.checkpoint.size_bytes, "matrices": state, "work": work}

    def _step_tokens(self) -> int:
        """The most tokens of a part for which there is memory."""
        sequences = [one for lesson in (*self.lessons, *self.valid_lessons) for one in lesson.sequences]
        longest = max(map(len, sequences))
        room = self.memory or int(SHARE * free_memory().available_bytes)
        tokens = max(STEP_TOKENS, longest)
        while tokens > longest and sum(self.memory_plan(tokens).values()) > room:
            tokens = max(longest, tokens * 7 // 8)
        plan = self.memory_plan(tokens)
        left = room - plan["weights"] - plan["matrices"]
        if plan["work"] > left and not self.learner.fit(left, tokens, max(1, tokens // SHORT)):
            plan = self.memory_plan(tokens)
            least = decimal_size(sum(plan.values()))
            parts = ", ".join(f"{name} {decimal_size(size)}" for name, size in plan.items())
            what = f"a text of {tokens} tokens needs at least {least} ({parts}), and {decimal_size(room)} may be used"
            advice = f"give --memory {least.replace(' ', '')}, train with --lora 8, or a smaller --max-length"
            raise MemoryPlanError("train", what, advice=advice)
        return tokens

    @cached_property
    def about(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "base": kept.base_digest(self.base.checkpoint),
            "data": self.data.digest(),
            "valid": self.valid.digest() if self.valid else None,
            **asdict(self.options),
        }

    def estimate(self) -> dict[str, float]:
        """Seconds of the whole training, measured on one part of a batch, and tokens a second."""
        import numpy as np

        run = self.run
        part = next(run.pieces([run.lessons[index] for index in next(run.batches())]))
        seed = np.zeros((len(part), self.base.encoder.dimension), np.float32)
        seconds = 0.0
        for some in (part[:1], part):  # the first makes the measure of the other fair
            began = time.perf_counter()
            self.learner.vectors(some, run.parameters)
            draws = [f"probe {number}" for number in range(len(some))]
            self.learner.gradients(some, run.parameters, seed[: len(some)], self.learner.no_gradient(), draws)
            seconds = time.perf_counter() - began
        rate = sum(map(len, part)) / seconds
        tokens = sum(run.length(run.lessons[index]) for batch in run.batches() for index in batch)
        return {"seconds": tokens / rate, "tokens_per_second": rate}

    def write(self) -> None:
        assert self.output is not None
        if not self.options.rank:
            self.run.save_model(self.output, self.base, best=True)
            return
        about: dict[str, Any] = {"base": self.base.name, "weights": self.weights}
        self.run.save(self.output, best=True, **about)
        if self.run.best is not None:
            self.run.save(self.output / "last", **about)
        if self.merged:
            self.run.save_model(self.output / "merged", self.base, best=True)

    @property
    def title(self) -> str:
        """What kind of training this is, for people."""
        return self.kind.capitalize() + (" by LoRA" if self.options.rank else "")

    def facts(self) -> Iterator[tuple[str, str]]:
        """What is learnt, for people."""
        texts = self.data.width * len(self.data)
        yield "rows", f"{self.data.rows:,}"
        yield "examples", f"{len(self.data):,} of {self.data.width} texts"
        yield "tokens", f"{sum(lesson.tokens for lesson in self.lessons):,}"
        if self.cut:
            yield "texts cut", f"{self.cut:,} of {texts:,}, to {self.base.limit} tokens"
        if self.base.head is not None:
            yield "classifier", "new: the model has none"
        yield "loss", self.options.loss + (f", vectors of {_listed(self.options.dims)}" if self.options.dims else "")
        if self.valid is not None:
            yield "validation", f"{self.valid.rows:,} rows, measured by {self.run.measure_name}"

    def shown_rows(self, rows: int, tokens: int) -> Iterator[list[tuple[str, bool]]]:
        """The texts of the first examples."""
        for lesson in self.lessons[:rows]:
            known = lesson.label is not None and self.options.loss != "mse"
            label = f"  [{lesson.label:g}]" if known else ""
            yield [("  |  ".join(text[: 4 * tokens] for text in lesson.texts) + label, False)]

    def uses(self) -> list[str]:
        """Commands that use what was learnt."""
        base, folder = self.base.name, self.output
        if self.kind == "reranker":
            return [f'weft rerank {folder}{"/merged" if self.options.rank else ""} "a question" documents.txt']
        if not self.options.rank:
            return [f"weft embed -m {folder} --input texts.txt --output vectors.npy"]
        return [f"weft embed -m {base} --adapter {folder} --input texts.txt --output vectors.npy"]


def _options(kind: str, given: dict[str, Any]) -> VectorOptions:
    if kind == "reranker":
        given = {"loss": "binary", **given}
    if "dims" in given:
        given = {**given, "dims": tuple(given["dims"])}
    found = given_options(VectorOptions, given)
    if (found.loss == "binary") is not (kind == "reranker"):
        what = "is of rerankers only" if found.loss == "binary" else "must be binary for a reranker"
        raise InputError("train", what, field="loss", given=found.loss)
    return found


def _listed(dims: tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(dims, reverse=True))) + " numbers"


def embedder(model: str | os.PathLike[str], data: Data, **options: Any) -> VectorTraining:
    """Train an embedding model on rows of texts that belong together, or have a score: iterate over the result.

    `output` is the folder for the model or, with a `rank`, for the adapter (with `merged` the whole model too), `valid`
    a file, rows or a part of the data (0.05) to measure on, `resume` goes on with a run that was stopped, `memory` is
    the most bytes to use, `threads` how many cores. The other options are those of `weft.train.VectorOptions`.
    """
    return VectorTraining("embedder", model, data, **options)


def reranker(model: str | os.PathLike[str], data: Data, **options: Any) -> VectorTraining:
    """Train a cross-encoder on pairs of a query and a document with a label of 0 to 1. Options as for `embedder`.

    An encoder without a classifier gets a new one, drawn from `seed`; all weights are trained then.
    """
    return VectorTraining("reranker", model, data, **options)
