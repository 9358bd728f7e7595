"""Students: an adapter on what the teacher said, one on its likeliest words, or a classifier."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.distill.labelling import FORMAT, LABELS, MANIFEST
from weft.distill.rows import Prompting
from weft.errors import MISSING, FormatError, InputError, NotFoundError
from weft.train.data.rows import Data, Row, read_rows

STUDENTS = ("lora", "logits", "classifier")


def train(student: str, model: str | os.PathLike[str], data: Data, *, chat: bool | None = None, **options: Any) -> Any:
    """Train a student of `model` on the folder that `label` has written, on a file of rows, or on rows.

    "lora" learns what the teacher said and "logits" its likeliest words too (`temperature`, `soft`): both are trainings
    as `weft.train.lora` gives, to iterate over, with its options. With `chat` a prompt and its completion are a
    conversation, which the model's chat template writes; None does so for a model that has one. "classifier" trains a
    head on the embedder `model`, with the teacher's probabilities where rows have them, and is done when it returns; it
    takes the options of `weft.classify.train_classifier`.
    """
    rows = labelled_rows(data)
    if options.get("valid") is not None and not isinstance(options["valid"], float):
        options["valid"] = labelled_rows(options["valid"])
    if student not in STUDENTS:
        raise InputError("distill", f"must be one of {', '.join(STUDENTS)}", field="student", given=student)
    if student == "classifier":
        from weft.classify import train_classifier

        if chat is not None:
            raise InputError("distill", "is for students that write: lora and logits", field="chat", given=chat)
        return train_classifier(model, rows, **{"soft": True, **options})
    from weft.distill.logits import logits
    from weft.train import lora
    from weft.train.training import has_chat_template

    how = {"chat": has_chat_template(model) if chat is None else chat, "tokens": student == "logits"}
    rows = said_rows(rows, **how)
    if options.get("valid") is not None and not isinstance(options["valid"], float):
        options["valid"] = said_rows(options["valid"], **how)
    return (lora if student == "lora" else logits)(model, rows, **options)


def said_rows(data: Data, *, chat: bool = False, tokens: bool = False) -> list[Row]:
    """Rows as an adapter learns them. A label is the completion of the prompt that the teacher read; with `chat` a
    prompt and its completion are messages, after the system message of the labelling. With `tokens` a local teacher's
    ids are what is learnt, and stay: they begin with the teacher's own template."""
    rows = list(read_rows(data))
    if not rows:
        where = str(data) if isinstance(data, (str, os.PathLike)) else MISSING
        raise InputError("distill", "has no rows to learn", field="data", given=where)
    given = [tokens and "teacher" in row.fields for row in rows]
    labels = any(_only_label(row) for row, whole in zip(rows, given) if not whole)
    if not labels and not chat:
        return rows
    prompting, made = _prompting(data), []
    for row, whole in zip(rows, given):
        fields = row.fields if whole or not labels else _completed(row, prompting, tokens)
        made.append(replace(row, fields=_spoken(fields, prompting) if chat and not whole else fields))
    return made


def _completed(row: Row, prompting: Prompting | None, tokens: bool) -> Mapping[str, Any]:
    """A row with a label as the prompt that the teacher read and its answer: the words of a server's, if they are
    learnt, which may differ from the label in case and marks."""
    if not _only_label(row):
        raise row.fault("has no label, and other rows have")
    if prompting is None:
        advice = "name the folder of the labelling, which knows the prompt; or train a classifier on the labels"
        raise row.fault("has a label, and no prompt that it is the answer to", advice=advice)
    made = {"prompt": prompting.text(row), "completion": row.fields["label"]}
    places = row.fields.get("logprobs") if tokens else None
    if not isinstance(places, list):
        return made
    words = (place[0] for place in places if isinstance(place, list) and place)
    return {**made, "completion": "".join(map(str, words)), "logprobs": places}


def _spoken(fields: Mapping[str, Any], prompting: Prompting | None) -> Mapping[str, Any]:
    """A prompt and its completion as messages."""
    asked, said = fields.get("prompt"), fields.get("completion")
    if not isinstance(asked, str) or not isinstance(said, str) or not said:
        return fields
    system = [{"role": "system", "content": prompting.system}] if prompting is not None and prompting.system else []
    messages = [*system, {"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    rest = {name: value for name, value in fields.items() if name not in ("prompt", "completion")}
    return {**rest, "messages": messages}


def _only_label(row: Row) -> bool:
    return isinstance(row.fields.get("label"), str) and not {"completion", "messages"} & set(row.fields)


def _prompting(data: Data) -> Prompting | None:
    """How the rows of a labelling were asked, if its manifest is beside them; a file that is named otherwise may lie
    beside a manifest of something else."""
    if not isinstance(data, (str, os.PathLike)) or not Path(data).with_name(MANIFEST).is_file():
        return None
    try:
        made = json.loads(Path(data).with_name(MANIFEST).read_bytes())
        if Path(data).name != LABELS and (not isinstance(made, dict) or made.get("format") != FORMAT):
            return None
        asked = made["prompt"]
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
