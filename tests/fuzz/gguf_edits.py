"""Edits of GGUF files field by field: a count, length, type or offset goes wrong, the rest stays whole."""

import random
import struct
from dataclasses import dataclass, field

from fuzzing import odd_bytes, odd_number

STRING, ARRAY = 8, 9
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
ELEMENT_TYPES = (*range(4), *range(6, 15), *range(16, 31), 34, 35, 39)


@dataclass
class Part:
    """One field: its struct form, or "" for plain bytes."""

    form: str
    value: int | float | bytes

    def raw(self) -> bytes:
        return struct.pack("<" + self.form, self.value) if self.form else bytes(self.value)  # type: ignore[arg-type]


@dataclass
class File:
    """A file taken apart: the four fields of its head, a list of fields for each record, and what follows."""

    head: list[Part]
    pairs: list[list[Part]] = field(default_factory=list)
    tensors: list[list[Part]] = field(default_factory=list)
    data: bytes = b""

    def raw(self) -> bytes:
        parts = [*self.head, *(part for record in (*self.pairs, *self.tensors) for part in record)]
        return b"".join(part.raw() for part in parts) + self.data


class _Cursor:
    """Steps over the fields; struct.error and IndexError end the taking apart, wherever that is."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, form: str) -> Part:
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return Part(form, value)

    def bytes(self, size: int) -> Part:
        if size > len(self.data) - self.at:
            raise IndexError
        self.at += size
        return Part("", self.data[self.at - size : self.at])

    def text(self) -> list[Part]:
        length = self.number("Q")
        return [length, self.bytes(int(length.value))]

    def pair(self) -> list[Part]:
        parts = [*self.text(), self.number("I")]
        kind = parts[-1].value
        if kind == STRING:
            return [*parts, *self.text()]
        if kind != ARRAY:
            return [*parts, self.number(FORMS[int(kind)])]
        parts += [self.number("I"), self.number("Q")]
        element, count = int(parts[-2].value), int(parts[-1].value)
        if element != STRING:
            return [*parts, self.bytes(count * struct.calcsize("<" + FORMS[element]))]
        for _ in range(min(count, 1 << 12)):
            parts += self.text()
        return parts

    def tensor(self) -> list[Part]:
        parts = [*self.text(), self.number("I")]
        parts += [self.number("Q") for _ in range(min(int(parts[-1].value), 8))]
        return [*parts, self.number("I"), self.number("Q")]


def taken_apart(data: bytes) -> File | None:
    """The file's fields, as many records as can be made out; None when not even the head can."""
    cursor = _Cursor(data)
    if len(data) < 24:
        return None
    file = File([cursor.bytes(4), cursor.number("I"), cursor.number("Q"), cursor.number("Q")])
    start = cursor.at
    try:
        for _ in range(min(int(file.head[3].value), 1 << 12)):
            file.pairs.append(cursor.pair())
            start = cursor.at
        for _ in range(min(int(file.head[2].value), 1 << 12)):
            file.tensors.append(cursor.tensor())
            start = cursor.at
    except (struct.error, IndexError, KeyError):
        pass
    file.data = data[start:]
    return file


def edit_gguf(data: bytes, rng: random.Random) -> bytes:
    """The file with one to three edits."""
    file = taken_apart(data)
    if file is None:
        return odd_bytes(rng, data)
    before = len(data) - len(file.data)
    for _ in range(rng.randint(1, 3)):
        _edit(file, rng)
    out = file.raw()
    # The data begins at a multiple of the alignment: keep it there, so that a longer key does not move every tensor.
    if rng.random() < 0.8 and file.tensors:
        head = len(out) - len(file.data)
        padding = -before % 32
        out = out[:head] + bytes(-head % 32) + file.data[padding:]
    return out


def _edit(file: File, rng: random.Random) -> None:
    records = rng.choice([records for records in (file.pairs, file.tensors) if records] or [[file.head]])
    kind = rng.randrange(10)
    if kind == 0:
        part = rng.choice(file.head)
        part.value = _changed(part, rng)
    elif kind == 1 and file.data:
        file.data = odd_bytes(rng, file.data)
    elif kind == 2 and file.data:
        file.data = file.data[: rng.randrange(len(file.data))]
    elif kind == 3 and records[0] is not file.head:
        _move_record(file, records, rng)
    else:
        _change_record(rng.choice(records), rng)


def _move_record(file: File, records: list[list[Part]], rng: random.Random) -> None:
    """Repeat, remove or swap a record; the counts follow."""
    at, other = rng.randrange(len(records)), rng.randrange(len(records))
    kind = rng.randrange(3)
    if kind == 0:
        records.insert(other, [Part(part.form, part.value) for part in records[at]])
    elif kind == 1:
        del records[at]
    else:
        records[at], records[other] = records[other], records[at]
    file.head[2].value, file.head[3].value = len(file.tensors), len(file.pairs)


def _change_record(record: list[Part], rng: random.Random) -> None:
    at = rng.randrange(len(record))
    part = record[at]
    part.value = _changed(part, rng)
    # A text's length follows it, most of the time.
    if not part.form and at and record[at - 1].form == "Q" and rng.random() < 0.9:
        record[at - 1].value = len(bytes(part.value))  # type: ignore[arg-type]


def _changed(part: Part, rng: random.Random) -> int | float | bytes:
    if not part.form:
        return odd_bytes(rng, bytes(part.value))  # type: ignore[arg-type]
    if part.form in "fd":
        return rng.choice((0.0, -1.0, 1e-5, 1e38, float("inf"), float("nan"), rng.uniform(-4, 4)))
    if part.form == "I" and rng.random() < 0.5:
        return rng.choice((*range(13), *ELEMENT_TYPES))
    bits = 8 * struct.calcsize(part.form)
    number = odd_number(rng, int(part.value), bits)
    return number - (1 << bits) if part.form.islower() and number >> (bits - 1) else number
