"""Rows as they are asked, and as they are written with an answer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft.distill.dialects import Message
from weft.errors import MISSING, InputError
from weft.frozen import frozen
from weft.train.data.rows import Data, Row, listed, read_rows

FIELD = re.compile(r"\{(\w+)\}")
TEXTS = ("text", "prompt", "input", "question")  # fields that are asked where no template is given
CLASSIFY = (
    "Classify the text. Answer with exactly one of these labels, and with nothing else:\n{labels}\n\nText: {text}"
)
MARKS = "\"'`*.,;:!()[]<> \t\n"


@frozen
class Prompting:
    """How a row becomes messages: a `template` with {fields}, a `system` message, and `labels` to choose from."""

    template: str | None = None
    system: str | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        folded = [folded_label(label) for label in self.labels]
        if len(set(folded)) < len(folded) or not all(folded):
            what = "must differ in more than case and punctuation"
            raise InputError("distill", what, field="labels", given=list(self.labels))
        if len(self.labels) == 1:
            raise InputError("distill", "must be at least two", field="labels", given=list(self.labels))

    def messages(self, row: Row) -> list[Message]:
        """The messages of one row."""
        made = [{"role": "system", "content": self.system}] if self.system else []
        if self.template is None and "messages" in row.fields:
            if self.labels:
                raise row.fault("has `messages`, and labels are asked about one text", advice="give a template")
            return [*made, *_conversation(row)]
        return [*made, {"role": "user", "content": self.text(row)}]

    def text(self, row: Row) -> str:
        """The user's message."""
        if self.template is None and not self.labels:
            return str(row.fields[asked_field(row)])
        template = CLASSIFY if self.template is None else self.template
        own = asked_field(row) if self.template is None else ""

        def value(found: re.Match[str]) -> str:
            name = own if self.template is None and found[1] == "text" else found[1]
            if name == "labels" and self.labels:
                return "\n".join(f"- {label}" for label in self.labels)
            given = row.fields.get(name)
            if given is None:
                raise row.fault(f"has no field {name!r}, which the template names (it has {row.named_fields})")
            return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)

        return FIELD.sub(value, template)

    def answered(self, row: Row, text: str) -> dict[str, Any] | None:
        """The row with the teacher's answer; None where it must be a label and is not."""
        if self.labels:
            label = chosen_label(text, self.labels)
            return None if label is None else {**row.fields, "label": label}
        if self.template is None and "messages" in row.fields:
            said = {"role": "assistant", "content": text}
            return {**row.fields, "messages": [*_conversation(row), said]}
        return {
            **{name: row.fields[name] for name in ("id",) if name in row.fields},
            "prompt": self.text(row),
            "completion": text,
        }


def read_questions(data: Data) -> list[Row]:
    """All rows; InputError if there is none."""
    rows = list(read_rows(data))
    if not rows:
        given = str(data) if isinstance(data, (str, os.PathLike)) else MISSING
        raise InputError("distill", "has no rows", field="data", given=given, advice="give rows to label")
    return rows


def asked_field(row: Row) -> str:
    """The field whose text is asked."""
    for name in TEXTS:
        if isinstance(row.fields.get(name), str):
            return name
    odd = next((name for name in TEXTS if name in row.fields), None)
    if odd is not None:
        raise row.fault(f"must have a text in the field {odd!r}", given=row.fields[odd])
    advice = "give a template that names its fields, as 'Summarise: {body}'"
    raise row.fault(f"has none of the fields {', '.join(TEXTS)} (it has {row.named_fields})", advice=advice)


def folded_label(text: str) -> str:
    """A label as answers are compared with it: without case, marks around it, and with _ and - as spaces."""
    return re.sub(r"[\s_-]+", " ", text.strip(MARKS)).casefold()


def chosen_label(text: str, labels: Sequence[str]) -> str | None:
    """The label that an answer is: all of it, or after `label:`; None if it is none."""
    lines = [line for line in text.strip().splitlines() if line.strip(MARKS)]
    if len(lines) != 1:
        return None
    line = re.sub(r"^-\s+", "", lines[0].strip())  # as labels are listed in the question
    answer = folded_label(re.sub(r"^\W*(?:label|answer|category|class)\s*[:=]", "", line, flags=re.IGNORECASE))
    return next((label for label in labels if folded_label(label) == answer), None)


def _conversation(row: Row) -> list[Message]:
    """The row's messages, checked; they must end with the user's."""
    made: list[Message] = []
    for one in listed(row, "messages"):
        role, content = (one.get("role"), one.get("content")) if isinstance(one, Mapping) else (None, None)
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            what = "must have messages with a role (system, user, assistant) and a text as content"
            raise row.fault(what, given=one)
        made.append({"role": role, "content": content})
    if made[-1]["role"] != "user":
        raise row.fault("must end with a message of the user, which the teacher answers", given=made[-1]["role"])
    return made
