"""The program that a model becomes: flat, frozen data that prints (text.py), serialises and compares.

Names say what a value is. Buffers are `%0`, `%1`, … in the order they are written, with a label after a dot where the
model named one (`%7.attn_out`); everything else has the name the model gave it. The JSON form is the one the native
core reads: docs/design/core.md.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any, ClassVar

from weft.dtype import DType
from weft.errors import FormatError, InputError, NotFoundError, ShapeError
from weft.frozen import frozen
from weft.ops.registry import Op, find
from weft.ops.spec import Dim, Shape, Spec, as_dtype, linear, parse_size
from weft.ops.state import STATE_KINDS

VERSION = 1
NAME = re.compile(r"\w[\w./:-]*")  # of everything but buffers; also of labels
BUFFER = re.compile(rf"%\d+(?:\.{NAME.pattern})?")
KINDS = ("input", "weight", *STATE_KINDS, "table", "buffer", "output")


@frozen
class Value:
    """Something instructions read or write. Only a planned buffer has a slot."""

    name: str
    kind: str
    dtype: DType
    shape: Shape
    slot: int | None = None

    @cached_property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)

    @property
    def label(self) -> str:
        """The name for debugging: the label of a buffer ("" without one), the name of anything else."""
        return self.name.partition(".")[2] if self.kind == "buffer" else self.name


@frozen
class Instr:
    """One op. An absent optional operand is None; every attribute of the op is there, in the op's order."""

    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operands(self) -> tuple[str, ...]:
        """The operands that are present."""
        return tuple(name for name in self.inputs if name is not None)

    @property
    def meaning(self) -> Op:
        return find(self.op)


@frozen
class Program:
    """Values by kind, in the order of KINDS, and the instructions in order. `slots` once planned."""

    name: str
    values: tuple[Value, ...]
    body: tuple[Instr, ...]
    slots: tuple[Dim, ...] = ()
    parsed: ClassVar[bool] = True  # as opposed to a prepared one from the program cache

    def of_kind(self, kind: str) -> tuple[Value, ...]:
        return tuple(value for value in self.values if value.kind == kind)

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        return self.of_kind("input")

    @property
    def weights(self) -> tuple[Value, ...]:
        return self.of_kind("weight")

    @property
    def states(self) -> tuple[Value, ...]:
        """Paged keys and values first, then recurrent states, then those of convolutions."""
        return tuple(value for value in self.values if value.kind in STATE_KINDS)

    @property
    def tables(self) -> tuple[Value, ...]:
        return self.of_kind("table")

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        return self.of_kind("output")

    @cached_property
    def table(self) -> dict[str, Value]:
        return {value.name: value for value in self.values}

    @cached_property
    def writer(self) -> dict[str, int]:
        """The index of the instruction that writes a value."""
        return {name: index for index, instr in enumerate(self.body) for name in instr.outputs}

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """The indices of the instructions that read a value, each as often as it reads it."""
        found: dict[str, tuple[int, ...]] = {value.name: () for value in self.values}
        for index, instr in enumerate(self.body):
            for name in instr.operands:
                found[name] += (index,)
        return found

    def only_reader(self, name: str) -> int | None:
        """The only instruction that reads a buffer, once; None where others read it, or where it is not a buffer."""
        readers = self.readers[name]
        return readers[0] if len(readers) == 1 and self.table[name].kind == "buffer" else None

    @property
    def program(self) -> "Program":
        """Itself: what is compiled is a Program, or a prepared one that makes its Program where asked."""
        return self

    @cached_property
    def json(self) -> str:
        """The form the native core reads."""
        slots = [{**{s: getattr(d, s) for s in "TBL" if getattr(d, s)}, "const": d.const} for d in self.slots]
        document = {
            "weft": VERSION,
            "name": self.name,
            "values": [_value_to_json(value) for value in self.values],
            "slots": slots,
            "body": [_instr_to_json(instr) for instr in self.body],
        }
        return json.dumps(document, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Program":
        """The program that `to_json` wrote, not verified; raises FormatError for anything else."""
        try:
            document = json.loads(text)
            if document["weft"] != VERSION:
                raise FormatError("program", f"must be {VERSION}", field="version", given=document["weft"])
            values = tuple(_value_from_json(value) for value in document["values"])
            table = {value.name: value for value in values}
            body = tuple(_instr_from_json(instr, table) for instr in document["body"])
            slots = tuple(Dim(**{key: _typed(int, size) for key, size in slot.items()}) for slot in document["slots"])
            return cls(_typed(str, document["name"]), values, body, slots)
        except (KeyError, TypeError, ValueError, AttributeError, NotFoundError, RecursionError) as error:
            raise FormatError("program", f"not a program: {type(error).__name__} {error}") from error


def arrange(name: str, values: Iterable[Value], body: Iterable[Instr]) -> Program:
    """The canonical program of these parts, unplanned: passes end with this, so equal programs print equally.

    Buffers are renumbered in the order they are written, unwritten ones dropped, and values grouped by kind.
    """
    body = tuple(body)
    table = {value.name: value for value in values}
    written = [name for instr in body for name in instr.outputs if table[name].kind == "buffer"]
    renamed: dict[str | None, str] = {}
    for number, old in enumerate(written):
        label = table[old].label
        renamed[old] = f"%{number}.{label}" if label else f"%{number}"
    groups: dict[str, list[Value]] = {kind: [] for kind in KINDS}
    for value in table.values():
        if value.kind != "buffer":
            groups[value.kind].append(value if value.slot is None else replace(value, slot=None))
    buffers = [table[old] for old in written]
    groups["buffer"] = [Value(renamed[value.name], "buffer", value.dtype, value.shape) for value in buffers]
    new_body = tuple(
        Instr(
            instr.op,
            tuple([renamed.get(operand, operand) for operand in instr.inputs]),
            tuple([renamed.get(result, result) for result in instr.outputs]),
            instr.attrs,
        )
        for instr in body
    )
    return Program(name, tuple(value for kind in KINDS for value in groups[kind]), new_body)


def bind_sizes(program: Program, inputs: Mapping[str, Any]) -> dict[str, int]:
    """The values of T, B and L in a step, from the shapes of its inputs; raises InputError where they do not fit."""
    sizes: dict[str, int] = {}
    wanted = {value.name: value for value in program.inputs}
    if set(inputs) != set(wanted):
        raise InputError(program.name, f"inputs must be {', '.join(wanted)}", given=list(inputs))
    for name, value in wanted.items():
        shape = tuple(inputs[name].shape)
        if len(shape) != len(value.shape):
            raise InputError(program.name, f"must be {value.spec}", field=name, given=shape)
        for size, want in zip(shape, value.shape):
            form = linear(want)
            unknown = [symbol for symbol in "TBL" if getattr(form, symbol) and symbol not in sizes]
            if len(unknown) == 1:
                rest = size - form.at(**{**dict.fromkeys("TBL", 0), **sizes})
                sizes[unknown[0]] = rest // getattr(form, unknown[0])
            if form.at(**sizes) != size or any(number < 0 for number in sizes.values()):
                known = ", ".join(f"{symbol}={number}" for symbol, number in sizes.items())
                raise InputError(program.name, f"must be {value.spec} with {known}", field=name, given=shape)
    return {symbol: sizes.get(symbol, 0) for symbol in "TBL"}


def _shape_attribute(op: Op) -> str | None:
    """The attribute that only repeats the result's shape (reshape has one): not written out, read back from there."""
    return next((name for name, attribute in op.attributes.items() if attribute.kind == "shape"), None)


def written_attrs(instr: Instr) -> dict[str, Any]:
    """The attributes that text and JSON carry."""
    hidden = _shape_attribute(instr.meaning)
    return {name: value for name, value in instr.attrs.items() if name != hidden}


def read_attrs(op: Op, attrs: Mapping[str, Any], result: Value | None) -> dict[str, Any]:
    """All attributes, from the written ones and the first result."""
    hidden = _shape_attribute(op)
    return {**attrs, hidden: result.shape} if hidden and result is not None else dict(attrs)


def _value_to_json(value: Value) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else str(size) for size in value.shape]
    slot = {} if value.slot is None else {"slot": value.slot}
    return {"name": value.name, "kind": value.kind, "dtype": value.dtype.name, "shape": shape, **slot}


def _value_from_json(entry: Mapping[str, Any]) -> Value:
    if entry["kind"] not in KINDS:
        raise ShapeError("program", "unknown kind of value", given=entry["kind"])
    shape = tuple(parse_size(size) for size in entry["shape"])
    slot = _typed(int, entry["slot"]) if "slot" in entry else None
    return Value(_typed(str, entry["name"]), entry["kind"], as_dtype(entry["dtype"]), shape, slot)


def _instr_to_json(instr: Instr) -> dict[str, Any]:
    return {"op": instr.op, "in": list(instr.inputs), "out": list(instr.outputs), "attrs": written_attrs(instr)}


def _instr_from_json(entry: Mapping[str, Any], table: Mapping[str, Value]) -> Instr:
    inputs = tuple(None if name is None else _typed(str, name) for name in entry["in"])
    outputs = tuple(_typed(str, name) for name in entry["out"])
    attrs = read_attrs(find(entry["op"]), entry["attrs"], table[outputs[0]] if outputs else None)
    return Instr(entry["op"], inputs, outputs, attrs)


def _typed(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
