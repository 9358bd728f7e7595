"""From rows with labels to a classifier: vectors once, a head, its temperature and threshold by texts it has not seen.

Without validation data each fold of the rows is measured by a head trained on the others; the head that is kept has
learnt all rows. Folds have a share of every label (`weft/tiny/calibration.py`).
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.classify.classifier import Classifier, check_threshold, save
from weft.classify.measures import Measures, measured, threshold_for
from weft.computes import AUTO
from weft.embed import Embedder
from weft.errors import InputError
from weft.frozen import frozen
from weft.tiny.calibration import choose_c, fit_temperature, out_of_fold, smoothed
from weft.tiny.logistic import Head, fit_head, log_softmax
from weft.train.data.rows import Data, Row, read_rows

if TYPE_CHECKING:
    import numpy as np

TEXTS, LABELS = ("text", "sentence", "input"), ("label", "category", "class")


@frozen
class Examples:
    """Texts and their labels; `chances` are a teacher's probabilities of labels, empty where a row has none."""

    texts: list[str]
    labels: list[str]
    chances: list[dict[str, float]]

    @property
    def names(self) -> list[str]:
        """All labels, in their order."""
        return sorted({*self.labels, *(name for row in self.chances for name in row)})


@frozen
class Trained:
    """A classifier and how it was found: `measures` are of texts that the measured heads had not learnt (`held_out`
    says which), `c` the weight of the data, `seconds` by part, `size_bytes` of the folder."""

    folder: Path
    labels: list[str]
    rows: int
    c: float
    temperature: float
    threshold: float
    held_out: str
    measures: Measures
    seconds: dict[str, float]
    size_bytes: int


def read_examples(data: Data, *, soft: bool = False) -> Examples:
    """The texts and labels of a file, or of Python objects; if `soft`, the `probabilities` that rows have, too."""
    texts, labels, chances = [], [], []
    for row in read_rows(data):
        texts.append(_field(row, TEXTS, "text"))
        labels.append(_field(row, LABELS, "label"))
        chances.append(_chances(row) if soft else {})
    if not texts:
        raise InputError("classify", "there is no row to learn from", field="data")
    return Examples(texts, labels, chances)


def _chances(row: Row) -> dict[str, float]:
    """A row's probabilities of labels with a sum of 1; InputError where they are none."""
    given = row.fields.get("probabilities")
    if given is None:
        return {}
    good = isinstance(given, dict) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
        for value in given.values()
    )
    total = math.fsum(given.values()) if good else 0.0
    if not 0.9 < total < 1.1:  # what is written has few digits
        raise row.fault("must have an object of labels and probabilities, of a sum of 1", given=given)
    return {str(name): value / total for name, value in given.items()}


def train_classifier(
    model: str | os.PathLike[str],
    data: Data,
    output: str | os.PathLike[str],
    *,
    valid: Data | None = None,
    c: float | str = AUTO,
    soft: bool = False,
    threshold: float | None = None,
    precision: float | None = None,
    compute: str = "f32",
    threads: int | None = None,
    truncate: str = "head",
    progress: bool | None = None,
) -> Trained:
    """Train a head on the frozen vectors of `model` and write it to the folder `output`.

    `c` is the weight of the data against the penalty, as in scikit-learn; "auto" tries some on folds of the data.
    `soft` learns the `probabilities` that rows have of a teacher in place of their one label. `threshold` is the
    probability below which a text gets no label; `precision` finds the lowest one at which this share of held-out
    answers is right. `valid` are rows to measure with; without them, folds of the data are.
    """
    folder, given = Path(output), Asked(threshold, precision, c)
    check_new(folder)
    examples = read_examples(data, soft=soft)
    names = checked_names(examples)
    tests = None if valid is None else checked_valid(read_examples(valid), names)
    options = {"compute": compute, "truncate": truncate}
    embedder = Embedder(os.fspath(model), threads=threads, **options)  # type: ignore[arg-type]
    times = {"began": time.perf_counter()}
    vectors = embedder.encode(examples.texts, progress=progress)
    tested = None if tests is None else embedder.encode(tests.texts, progress=progress)
    times["vectors"] = time.perf_counter()
    wanted_of = _soft(examples, names) if any(examples.chances) else numbers(examples.labels, names)
    weight = choose_c(examples.texts, vectors, wanted_of, len(names)) if c == AUTO else float(c)
    times["choice of c"] = time.perf_counter()
    head = fit_head(vectors, wanted_of, len(names), c=weight)
    times["head"] = time.perf_counter()
    if tests is not None and tested is not None:
        held = HeldOut("valid", head.logits(tested), numbers(tests.labels, names))
    else:
        logits, wanted, folds = out_of_fold(examples.texts, vectors, wanted_of, len(names), weight)
        held = HeldOut(f"{folds} folds", logits, wanted)
    times["held out"] = time.perf_counter()
    trained = {"soft": sum(map(bool, examples.chances))} if soft else {}
    base = {"base": embedder.lasting_name, "fingerprint": str(embedder.fingerprint), "options": options}
    return written(folder, head, examples, held, given, {**trained, "c": weight}, base, times)


@frozen
class Asked:
    """What was asked for: a threshold or a precision, and the weight of the data; errors are known before any work."""

    threshold: float | None
    precision: float | None
    c: float | str

    def __post_init__(self) -> None:
        if self.threshold is not None and self.precision is not None:
            raise InputError("classify", "cannot be given beside threshold", field="precision")
        if self.precision is not None and not 0 < self.precision <= 1:
            raise InputError("classify", "must be above 0 and at most 1", field="precision", given=self.precision)
        if self.c != AUTO and (isinstance(self.c, str) or not 0 < self.c < math.inf):
            raise InputError("classify", f"must be a number above 0, or {AUTO}", field="c", given=self.c)
        check_threshold(self.threshold or 0.0)

    def least(self, sure: np.ndarray, wanted: np.ndarray) -> float:
        """The threshold, which for a precision is found on held-out probabilities."""
        return (self.threshold or 0.0) if self.precision is None else _precise(sure, wanted, self.precision)


@frozen(eq=False)
class HeldOut:
    """Logits and labels of texts that their heads have not learnt, and what texts these are."""

    name: str
    logits: np.ndarray
    wanted: np.ndarray


def written(
    folder: Path,
    head: Head,
    examples: Examples,
    held: HeldOut,
    asked: Asked,
    trained: dict[str, Any],
    base: dict[str, Any],
    times: dict[str, float],
) -> Trained:
    """Write a classifier whose temperature and threshold held-out texts decide. `trained` and `base` are what its
    description says of the training and of the embedder, `times` when each part of the work ended."""
    names = examples.names
    temperature = fit_temperature(held.logits, smoothed(held.wanted, len(names)))
    sure = _softmax(held.logits / temperature)
    least = asked.least(sure, held.wanted)
    measures = measured(sure, held.wanted, least)
    facts = {"rows": len(examples.texts), "data_sha256": digest_of(examples), "held_out": held.name, **trained}
    found = {"labels": names, "temperature": temperature, "threshold": least}
    save(folder, head, {**found, **base, "trained": facts, "measures": asdict(measures)})
    seconds = {name: at - before for (_, before), (name, at) in pairwise(times.items())}
    rows, size = len(examples.texts), folder_size(folder)
    return Trained(folder, names, rows, trained["c"], temperature, least, held.name, measures, seconds, size)


def folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_new(folder: Path) -> None:
    """InputError for a folder in which something is."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("classify", f"{folder} is not empty", field="output", advice="name a new folder")


def checked_names(examples: Examples) -> list[str]:
    if len(examples.names) < 2:
        raise InputError("classify", "must have at least two labels", field="data", given=examples.names)
    return examples.names


def evaluate(classifier: Classifier, data: Data, *, progress: bool | None = None) -> Measures:
    """Measures of a classifier on rows with labels."""
    examples = checked_valid(read_examples(data), classifier.labels)
    vectors = classifier.embedder.encode(examples.texts, progress=progress)
    wanted = numbers(examples.labels, classifier.labels)
    return measured(classifier.probabilities(vectors), wanted, classifier.threshold)


def _soft(examples: Examples, names: list[str]) -> np.ndarray:
    """What is wanted of each label, [rows, labels]: the teacher's probabilities, or all of the one label."""
    import numpy as np

    made = np.zeros((len(examples.texts), len(names)))
    places = {name: number for number, name in enumerate(names)}
    for row, label, chances in zip(made, examples.labels, examples.chances):
        for name, value in (chances or {label: 1.0}).items():
            row[places[name]] = value
    return made


def _softmax(logits: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.exp(log_softmax(logits))


def _precise(sure: np.ndarray, wanted: np.ndarray, precision: float) -> float:
    found = threshold_for(sure, wanted, precision)
    if found is None:
        what = f"cannot be reached: no share of the held-out texts is answered with {precision:.1%} right"
        raise InputError("classify", what, field="precision", given=precision, advice="ask for less, or give more rows")
    return found


def checked_valid(examples: Examples, names: list[str]) -> Examples:
    strange = sorted(set(examples.labels) - set(names))
    if strange:
        raise InputError("classify", "has labels that the training data has not", field="valid", given=strange[:5])
    return examples


def numbers(labels: list[str], names: list[str]) -> np.ndarray:
    import numpy as np

    places = {name: number for number, name in enumerate(names)}
    return np.array([places[label] for label in labels], np.int64)


def _field(row: Row, names: tuple[str, ...], what: str) -> str:
    for name in names:
        value = row.fields.get(name)
        if isinstance(value, str) and value:
            return value
        if name in LABELS and type(value) in (int, bool):
            return str(value)
    raise row.fault(f"has no {what}: none of the fields {', '.join(names)} (it has {row.named_fields})")


def digest_of(examples: Examples) -> str:
    from weft import digest

    hashed = sha256()
    digest.add(hashed, *examples.texts, *examples.labels)
    if any(examples.chances):
        digest.add(hashed, json.dumps(examples.chances, sort_keys=True))
    return hashed.hexdigest()
