"""Few-shot classifiers: a contrastive step teaches the encoder which texts belong together, then a head learns labels.

The encoder has learnt all labels, so that none of its own texts can say how sure the head may be. Without validation
data the same is therefore done twice: first without a part of each label's texts, which then measure, and choose the
head's weight and temperature; then with all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.classify.classifier import FILE, INSIDE
from weft.classify.pairs import every_pair, few_pairs, pair_rows
from weft.classify.training import (
    Asked,
    Examples,
    HeldOut,
    Trained,
    check_new,
    checked_names,
    checked_valid,
    digest_of,
    folder_size,
    numbers,
    read_examples,
    written,
)
from weft.computes import AUTO
from weft.embed import Embedder
from weft.errors import FormatError, InputError, NotFoundError
from weft.frozen import frozen
from weft.tiny.calibration import best_c
from weft.tiny.logistic import fit_head
from weft.train import VectorTraining
from weft.train.data.rows import Data
from weft.train.kept import FILE as STATE
from weft.weights.files import replacing

if TYPE_CHECKING:
    import numpy as np

RUN = "few-shot.json"  # what a run was begun with, until it has ended
ENCODER, MEASURING = "embedder", "measuring"  # folders of the encoder that is kept, and of the one that only measures
PAIRS = 20  # SetFit's number of iterations
HELD = 4  # one text in so many is held out to measure


@frozen
class Contrast:
    """How pairs are made: `pairs` with each label's own texts and as many with others for every text, or all pairs by
    `sampling` ("oversampling", "undersampling", "unique"); `seed` decides which."""

    pairs: int = PAIRS
    sampling: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.pairs) is not int or self.pairs < 1:
            raise InputError("classify", "must be a whole number above 0", field="pairs", given=self.pairs)
        if type(self.seed) is not int or self.seed < 0:
            raise InputError("classify", "must be a whole number from 0 on", field="seed", given=self.seed)

    def rows(self, texts: list[str], y: np.ndarray) -> list[dict[str, Any]]:
        """Rows of pairs, with the cosine that each should have."""
        labels = y.tolist()
        if self.sampling is not None:
            return pair_rows(texts, every_pair(labels, self.sampling, self.seed))
        return pair_rows(texts, few_pairs(labels, self.pairs, self.seed))


class FewShot:
    """The training of a few-shot classifier: make all steps of each of `trainings()`, then `finish()` it.

    Options that are not named here are those of `weft.train.embedder` (rate, epochs, steps, batch, rank, memory …). The
    folder `output` gets the encoder too. `resume` goes on with a run that was stopped.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        data: Data,
        output: str | os.PathLike[str],
        *,
        valid: Data | None = None,
        c: float | str = AUTO,
        threshold: float | None = None,
        precision: float | None = None,
        compute: str = "f32",
        threads: int | None = None,
        truncate: str = "head",
        progress: bool | None = None,
        pairs: int = PAIRS,
        sampling: str | None = None,
        seed: int = 0,
        resume: bool = False,
        **options: Any,
    ) -> None:
        self.model, self.folder = os.fspath(model), Path(output)
        self.asked, self.contrast = Asked(threshold, precision, c), Contrast(pairs, sampling, seed)
        self.threads, self.progress, self.options = threads, progress, options
        self.reading: dict[str, Any] = {"compute": compute, "truncate": truncate}
        self.examples = read_examples(data)
        self.names = checked_names(self.examples)
        self.y = numbers(self.examples.labels, self.names)
        self.valid = None if valid is None else checked_valid(read_examples(valid), self.names)
        self.held = _held_out(self.examples.texts, self.y) if valid is None else self.y < 0
        self.times = {"began": time.perf_counter()}
        self._begin(resume)

    def _begin(self, resume: bool) -> None:
        """Begin a run, or take up one that is the same."""
        path = self.folder / RUN
        if not resume:
            if path.is_file():
                what = f"{self.folder} has a run that has not ended"
                raise InputError("classify", what, field="output", advice="go on with --resume, or name another folder")
            check_new(self.folder)
            self.contrast.rows(self.examples.texts, self.y)  # errors of the data, before there is a folder
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as out:
                out.write(json.dumps(self._about(), indent=2).encode() + b"\n")
            return
        if (self.folder / FILE).is_file():
            raise InputError("classify", f"{self.folder} is a classifier: its training has ended", field="resume")
        if not path.is_file():
            what = f"{self.folder} has no run to go on with: there is no {RUN}"
            raise NotFoundError("classify", what, advice="leave out --resume, or name the folder of the run")
        try:
            before = json.loads(path.read_bytes())
        except ValueError as error:
            raise FormatError(RUN, f"is not JSON: {error}") from None
        for name, value in json.loads(json.dumps(self._about())).items():
            if before.get(name) != value:
                what = f"was {before.get(name)!r} when this run began"
                advice = "give what the run began with, or begin another one in another folder"
                raise InputError("classify", what, field=name, given=value, advice=advice)

    def _about(self) -> dict[str, Any]:
        """What a run that goes on must have in common with its beginning, and the training does not check itself."""
        held = sha256(self.held.tobytes()).hexdigest()
        return {"model": self.model, "data": digest_of(self.examples), "held_out": held, **asdict(self.contrast)}

    def trainings(self) -> Iterator[VectorTraining]:
        """The trainings of encoders that are left to do: iterate over each of them."""
        for name, inside in ((MEASURING, ~self.held), (ENCODER, self.y >= 0)):
            if name == MEASURING and not self.held.any():
                continue
            folder = self.folder / name
            if (folder / "report.html").is_file() and not (folder / STATE).is_file():
                continue  # has ended
            resume = (folder / STATE).is_file()
            if folder.exists() and not resume:  # was stopped before anything was saved
                shutil.rmtree(folder)
            texts = [text for text, kept in zip(self.examples.texts, inside) if kept]
            rows = self.contrast.rows(texts, self.y[inside])
            own: dict[str, Any] = {"output": folder, "resume": resume, "threads": self.threads}
            own |= {"loss": "cosine", "seed": self.contrast.seed, "merged": bool(self.options.get("rank"))}
            yield VectorTraining("embedder", self.model, rows, **own, **self.options)
            self.times["contrast" if name == ENCODER else "contrast to measure with"] = time.perf_counter()

    def finish(self) -> Trained:
        """Train the head on the new vectors and write the classifier."""
        inside = f"{ENCODER}/merged" if self.options.get("rank") else ENCODER
        embedder, vectors, tests = self._vectors(self.folder / inside, self.examples, self.valid)
        if self.valid is not None and tests is not None:
            known, learnt, name = vectors, self.y, "valid"
            asked, wanted = tests, numbers(self.valid.labels, self.names)
        else:
            measuring = self.folder / inside.replace(ENCODER, MEASURING, 1)
            _, all_vectors, _ = self._vectors(measuring, self.examples, None)
            known, learnt, asked, wanted = (
                *(all_vectors[~self.held], self.y[~self.held]),
                *(all_vectors[self.held], self.y[self.held]),
            )
            name = "by an encoder that learnt the others"
        self.times["vectors"] = time.perf_counter()
        count = len(self.names)

        def held_out(c: float) -> tuple[np.ndarray, np.ndarray]:
            return fit_head(known, learnt, count, c=c).logits(asked), wanted

        weight = best_c(held_out) if self.asked.c == AUTO else float(self.asked.c)
        self.times["choice of c"] = time.perf_counter()
        head = fit_head(vectors, self.y, count, c=weight)
        self.times["head"] = time.perf_counter()
        held = HeldOut(name, *held_out(weight))
        self.times["held out"] = time.perf_counter()
        base = {"base": INSIDE + inside, "fingerprint": str(embedder.fingerprint), "options": self.reading}
        few = {**asdict(self.contrast), "model": self.model, **self.options}
        trained = {"c": weight, "few_shot": {name: value for name, value in few.items() if _plain(value)}}
        made = written(self.folder, head, self.examples, held, self.asked, trained, base, self.times)
        shutil.rmtree(self.folder / MEASURING, ignore_errors=True)
        (self.folder / RUN).unlink(missing_ok=True)
        return replace(made, size_bytes=folder_size(self.folder))

    def _vectors(
        self, folder: Path, examples: Examples, valid: Examples | None
    ) -> tuple[Embedder, np.ndarray, np.ndarray | None]:
        embedder = Embedder(os.fspath(folder), threads=self.threads, **self.reading)
        vectors = embedder.encode(examples.texts, progress=self.progress)
        return embedder, vectors, None if valid is None else embedder.encode(valid.texts, progress=self.progress)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _held_out(texts: list[str], y: np.ndarray) -> np.ndarray:
    """Whether each text is held out to measure with: of each label one in HELD, in the order of the texts' digests; at
    least one, and never all. Equal texts are on one side."""
    import numpy as np

    found = np.zeros(len(y), bool)
    keys = np.array([sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in texts])
    for label in np.unique(y).tolist():
        rows = np.flatnonzero(y == label)
        different = np.unique(keys[rows])
        if len(different) > 1:
            found[rows] = np.isin(keys[rows], different[: max(1, len(different) // HELD)])
    learnt = np.unique(y[~found], return_counts=True)[1]
    if not found.any() or learnt.max() < 2:
        advice = "give more texts of each label, or rows to measure with (--valid)"
        raise InputError("classify", "are too few to measure with a part of them", field="data", advice=advice)
    return found
