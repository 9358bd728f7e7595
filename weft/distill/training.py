"""Students: an adapter on what the teacher said, one on its likeliest words, or a classifier."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from weft.distill.labelling import LABELS, MANIFEST
from weft.distill.rows import Prompting
from weft.errors import FormatError, InputError, NotFoundError
from weft.train.data.rows import Data, Row, read_rows

STUDENTS = ("lora", "logits", "classifier")


def train(student: str, model: str | os.PathLike[str], data: Data, **options: Any) -> Any:
    """Train a student of `model` on the folder that `label` has written, on a file of rows, or on rows.

    "lora" learns what the teacher said and "logits" its likeliest words too (`temperature`, `soft`): both are trainings
    as `weft.train.lora` gives, to iterate over, with its options. "classifier" trains a head on the embedder `model`,
    with the teacher's probabilities where rows have them, and is done when it returns; it takes the options of
    `weft.classify.train_classifier`.
    """
    rows = labelled_rows(data)
    if "valid" in options and not isinstance(options["valid"], float):
        options["valid"] = None if options["valid"] is None else labelled_rows(options["valid"])
    if student == "lora":
        from weft.train import lora

        if options.get("valid") is not None and not isinstance(options["valid"], float):
            options["valid"] = said_rows(options["valid"])
        return lora(model, said_rows(rows), **options)
    if student == "logits":
        from weft.distill.logits import logits

        return logits(model, rows, **options)
    if student == "classifier":
        from weft.classify import train_classifier

        return train_classifier(model, rows, **{"soft": True, **options})
    raise InputError("distill", f"must be one of {', '.join(STUDENTS)}", field="student", given=student)


def said_rows(data: Data) -> Data:
    """Rows whose answer is a label, as the prompt that the teacher read and the label: what an adapter learns."""
    rows = list(read_rows(data))
    if not any(_only_label(row) for row in rows):
        return data
    prompting = _prompting(data)
    made = []
    for row in rows:
        if not _only_label(row):
            raise row.fault("has no label, and other rows have")
        if prompting is None:
            advice = "name the folder of the labelling, which knows the prompt; or train a classifier on the labels"
            raise row.fault("has a label, and no prompt that it is the answer to", advice=advice)
        made.append({"prompt": prompting.text(row), "completion": row.fields["label"]})
    return made


def _only_label(row: Row) -> bool:
    return isinstance(row.fields.get("label"), str) and not {"completion", "messages"} & set(row.fields)


def _prompting(data: Data) -> Prompting | None:
    """How the rows of a labelling were asked, if its manifest is beside them."""
    path = Path(data).with_name(MANIFEST) if isinstance(data, (str, os.PathLike)) else None
    if path is None or not path.is_file():
        return None
    try:
        asked = json.loads(path.read_bytes())["prompt"]
        return Prompting(asked["template"], asked["system"], tuple(asked["labels"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(MANIFEST, f"does not say how rows were asked: {error!r}") from None


def labelled_rows(data: Data) -> Data:
    """The file of labels of a labelling's folder; anything else as it is."""
    if not isinstance(data, (str, os.PathLike)) or not Path(data).is_dir():
        return data
    if not (Path(data) / LABELS).is_file():
        what = f"{data} has no {LABELS}"
        raise NotFoundError("distill", what, advice="name a folder that `weft distill label` has written, or a file")
    return Path(data) / LABELS
