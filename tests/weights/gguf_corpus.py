"""GGUF files built field by field, so that each field can be made wrong: the start of the hostile-file corpus."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

BOUNDARIES = (0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the scalar types


@dataclass(frozen=True)
class Field:
    """One field: `form` is its struct format ("" for plain bytes); `free` where any value is as good."""

    name: str
    form: str
    value: int | bytes
    free: bool = False

    def raw(self) -> bytes:
        return struct.pack("<" + self.form, self.value) if self.form else bytes(self.value)  # type: ignore[arg-type]


def text(name: str, value: bytes, free: bool = False) -> list[Field]:
    return [Field(f"{name} length", "Q", len(value)), Field(name, "", value, free)]


def pair(key: bytes, kind: int, *value: Field) -> list[Field]:
    name = key.decode()
    return [*text(f"key {name}", key), Field(f"type of {name}", "I", kind), *value]


def tensor(name: bytes, dims: list[int], kind: int, offset: int) -> list[Field]:
    label = name.decode()
    return [
        *text(f"name {label}", name),
        Field(f"rank of {label}", "I", len(dims)),
        *(Field(f"ne{i} of {label}", "Q", n) for i, n in enumerate(dims)),
        Field(f"element type of {label}", "I", kind),
        Field(f"offset of {label}", "Q", offset),
    ]


def good_fields() -> list[Field]:
    """A file with a value of every type, arrays of numbers and strings, and three tensors of f32, q8_0 and f16."""
    scalars = [
        pair(f"scalar.{kind}".encode(), kind, Field("scalar", f"{size}s", bytes(size), True))
        for kind, size in SIZES.items()
    ]
    pairs = [
        pair(b"general.architecture", 8, *text("value", b"llama", True)),
        pair(b"general.alignment", 4, Field("alignment", "I", 32)),
        *scalars,
        pair(
            b"numbers",
            9,
            Field("element type of numbers", "I", 5),
            Field("count of numbers", "Q", 3),
            Field("numbers", "", bytes(12), True),
        ),
        pair(
            b"words",
            9,
            Field("element type of words", "I", 8),
            Field("count of words", "Q", 2),
            *text("word 0", b"ab"),
            *text("word 1", b""),
        ),
    ]
    tensors = [tensor(b"a", [4, 2], 0, 0), tensor(b"b", [32], 8, 32), tensor(b"c", [2, 1, 3, 1], 1, 96)]
    head = [
        Field("magic", "", b"GGUF"),
        Field("version", "I", 3),
        Field("tensor count", "Q", len(tensors)),
        Field("key count", "Q", len(pairs)),
        *(field for fields in (*pairs, *tensors) for field in fields),
    ]
    size = sum(len(field.raw()) for field in head)
    return [*head, Field("padding", "", bytes(-size % 32), True), Field("data", "", bytes(32 + 64 + 12), True)]


def joined(fields: list[Field]) -> bytes:
    return b"".join(field.raw() for field in fields)


GOOD = joined(good_fields())


def with_field(name: str, value: int | bytes) -> bytes:
    """The good file with one field changed."""
    fields = good_fields()
    assert sum(field.name == name for field in fields) == 1, name
    return joined([replace(field, value=value) if field.name == name else field for field in fields])


def boundary_files() -> Iterator[tuple[str, bytes]]:
    """Every length, count, dimension, offset, alignment and type set to every boundary value it can hold."""
    fields = good_fields()
    for i, field in enumerate(fields):
        if field.form not in ("I", "Q"):
            continue
        width = 32 if field.form == "I" else 64
        near = (int(field.value) - 1, int(field.value) + 1)
        for value in sorted({*BOUNDARIES, *near}):
            if 0 <= value < 1 << width and value != field.value:
                changed = [*fields[:i], replace(field, value=value), *fields[i + 1 :]]
                yield f"{field.name} is {value}", joined(changed)


def pairwise_files() -> Iterator[tuple[str, bytes]]:
    """Two fields at once where their product or sum is what a careless reader would compute."""
    fields = {field.name: field for field in good_fields()}
    groups = [
        ("ne0 of a", "ne1 of a"),
        ("ne0 of b", "element type of b"),
        ("offset of c", "ne2 of c"),
        ("tensor count", "alignment"),
        ("offset of b", "alignment"),
        ("count of numbers", "element type of numbers"),
        ("count of words", "element type of words"),
    ]
    for first, second in groups:
        for x in BOUNDARIES:
            for y in (*BOUNDARIES, 8, 12, 16, 39):
                if x >> (32 if fields[first].form == "I" else 64) or y >> (32 if fields[second].form == "I" else 64):
                    continue
                changed = {first: x, second: y}
                raw = joined([replace(f, value=changed.get(f.name, f.value)) for f in good_fields()])
                yield f"{first} is {x}, {second} is {y}", raw


def single_faults() -> Iterator[tuple[str, bytes]]:
    """Faults that are not a number out of range."""
    for size in range(len(GOOD)):
        yield f"cut after {size} bytes", GOOD[:size]
    yield "other magic", with_field("magic", b"GGML")
    yield "big-endian", b"GGUF" + struct.pack(">I", 3) + GOOD[8:]
    yield "key given twice", with_field("key scalar.1", b"scalar.0")
    yield "key not UTF-8", with_field("key scalar.1", b"scalar.\xff")
    yield "name given twice", with_field("name b", b"a")
    yield "name not UTF-8", with_field("name b", b"\xff")
    yield "nested array", with_field("element type of numbers", 9)
    yield (
        "bool that is neither",
        GOOD.replace(b"scalar.7" + struct.pack("<I", 7) + b"\0", b"scalar.7" + struct.pack("<I", 7) + b"\2"),
    )
    yield "offset not aligned", with_field("offset of b", 40)
    yield "overlap", with_field("offset of c", 32)
    yield "same place", with_field("offset of c", 0)
    yield "row of half a block", with_field("ne0 of b", 16)
    for value in (0, 1, 4, 24, 33, 48, 1 << 21, (1 << 32) - 1):
        yield f"alignment {value}", with_field("alignment", value)
    for kind in (0, 5, 6, 10):
        yield f"alignment of type {kind}", with_field("type of general.alignment", kind)


def bombs() -> Iterator[tuple[str, bytes]]:
    """Few bytes that ask for much."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    key = struct.pack("<Q", 1) + b"k"
    for kind in (*SIZES, 8, 9):
        for count in BOUNDARIES[2:]:
            yield f"array of {count} of type {kind}", head + key + struct.pack("<IIQ", 9, kind, count)
    yield "nested arrays", head + key + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 10_000
    yield "string of 2^63", head + key + struct.pack("<IQ", 8, 1 << 63)
    many = b"".join(struct.pack("<Q", 7) + b"%07d" % i + struct.pack("<I", 0) + b"\0" for i in range(65_537))
    yield "too many keys", b"GGUF" + struct.pack("<IQQ", 3, 0, 65_537) + many
    yield "counts of 2^64", b"GGUF" + struct.pack("<IQQ", 3, (1 << 64) - 1, (1 << 64) - 1) + bytes(64)
