"""Programs as text for people: a printer, and a parser that is its inverse.

    program toy

    input ids : i32[T]
    weight @embed.weight : f32[100, 64]
    kv $kv.0 : f16[2, 16]
    table &lora/head.weight : f32[100, 64]
    output hidden : f32[T, 64]
    slot 0 : 256*T

    %0 : f32[T, 64] = embedding(ids, @embed.weight)  ; slot 0
    hidden : f32[T, 64] = scale(%0) {by=2.0}

Weights are marked @, states $ and tables &; an absent operand is `-`, and absent integers at the end are left out. The
golden programs in tests/golden/programs are this text, so a change to a model or a pass is reviewed as a diff of it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.errors import FormatError, WeftError
from weft.graph.program import KINDS, Instr, Program, Value, read_attrs, written_attrs
from weft.ops.registry import Op, find
from weft.ops.spec import Dim, Spec, as_dtype, linear, parse_size
from weft.ops.state import STATE_KINDS

MARK = {"weight": "@", "table": "&", **dict.fromkeys(STATE_KINDS, "$")}

TYPE = r"(\w+)\[([^\]]*)\]"
DECLARATION = re.compile(rf"({'|'.join(kind for kind in KINDS if kind != 'buffer')}) ([^\s]+) : {TYPE}")
SLOT = re.compile(r"slot (\d+) : (\S+)")
RESULT = re.compile(rf"([^\s,]+) : {TYPE}")
CALL = re.compile(r"(?P<op>\w+)\((?P<operands>[^()]*)\)(?: \{(?P<attrs>[^{}]*)\})?(?P<slots>  ; slot [\d, ]+)?")


def to_text(program: Program) -> str:
    """The program as text; `from_text` reads it back exactly."""
    table = program.table
    lines = [f"program {program.name}", ""]
    for value in program.values:
        if value.kind != "buffer":
            lines.append(f"{value.kind} {MARK.get(value.kind, '')}{value.name} : {value.spec}")
    lines += [f"slot {index} : {size}" for index, size in enumerate(program.slots)]
    lines.append("")
    lines += [_instr_text(instr, table) for instr in program.body]
    return "\n".join(lines) + "\n"


def _instr_text(instr: Instr, table: Mapping[str, Value]) -> str:
    results = ", ".join(f"{name} : {table[name].spec}" for name in instr.outputs)
    shown = list(instr.inputs)
    while shown and shown[-1] is None and _left_out(instr.meaning, len(shown) - 1):
        shown.pop()
    operands = ", ".join("-" if name is None else MARK.get(table[name].kind, "") + name for name in shown)
    attrs = ", ".join(f"{name}={_attr_text(value)}" for name, value in written_attrs(instr).items())
    slots = ", ".join(str(table[name].slot) for name in instr.outputs if table[name].slot is not None)
    line = f"{results} = " if results else ""
    line += f"{instr.op}({operands})" + (f" {{{attrs}}}" if attrs else "")
    return line + (f"  ; slot {slots}" if slots else "")


def _attr_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def from_text(text: str) -> Program:
    """The program that `to_text` printed, not verified; raises FormatError with the line for anything else."""
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            reader.read(line)
        except (WeftError, ValueError, KeyError) as error:
            raise FormatError(
                "program text", f"cannot be read ({error})", field="line", index=number, given=line
            ) from error
    return reader.program()


class _Reader:
    def __init__(self) -> None:
        self.name: str | None = None
        self.table: dict[str, Value] = {}
        self.slots: list[Dim] = []
        self.body: list[Instr] = []

    def read(self, line: str) -> None:
        if not line:
            return
        if self.name is None and line.startswith("program "):
            self.name = line.removeprefix("program ")
        elif found := DECLARATION.fullmatch(line):
            kind, marked, *spec = found.groups()
            if not marked.startswith(MARK.get(kind, "")):
                raise ValueError(f"the name of a {kind} must be marked {MARK[kind]}")
            self._declare(marked.removeprefix(MARK.get(kind, "")), kind, _spec(*spec))
        elif found := SLOT.fullmatch(line):
            if int(found[1]) != len(self.slots):
                raise ValueError(f"slot {len(self.slots)} must come next")
            self.slots.append(linear(parse_size(found[2])))
        else:
            results, _, call = line.rpartition(" = ")
            self._instr(results, CALL.fullmatch(call))

    def _declare(self, name: str, kind: str, spec: Spec) -> None:
        if name in self.table:
            raise ValueError(f"{name} is declared twice")
        self.table[name] = Value(name, kind, spec.dtype, spec.shape)

    def _instr(self, results: str, found: re.Match[str] | None) -> None:
        if found is None or ", ".join(result[0] for result in RESULT.finditer(results)) != results:
            raise ValueError("neither a declaration nor an instruction")
        op = find(found["op"])
        outputs = [self._result(*result.groups()) for result in RESULT.finditer(results)]
        buffers = [name for name in outputs if self.table[name].kind == "buffer"]
        for name, slot in zip(buffers, re.findall(r"\d+", found["slots"] or "")):
            self.table[name] = replace(self.table[name], slot=int(slot))
        operands = [self._operand(word.strip()) for word in found["operands"].split(",") if word.strip()]
        while len(operands) < len(op.operands) and _left_out(op, len(operands)):
            operands.append(None)
        attrs = read_attrs(op, _attrs(op, found["attrs"] or ""), self.table[outputs[0]] if outputs else None)
        self.body.append(Instr(op.name, tuple(operands), tuple(outputs), attrs))

    def _result(self, name: str, dtype: str, sizes: str) -> str:
        spec = _spec(dtype, sizes)
        if name not in self.table:
            self._declare(name, "buffer", spec)
        elif self.table[name].spec != spec:
            raise ValueError(f"{name} was declared as {self.table[name].spec}")
        return name

    def _operand(self, word: str) -> str | None:
        if word == "-":
            return None
        name = word[1:] if word[0] in MARK.values() else word
        if name not in self.table:
            raise ValueError(f"{name} is not declared yet")
        if word != MARK.get(self.table[name].kind, "") + name:
            raise ValueError(f"{name} is of kind {self.table[name].kind}, which is not marked so")
        return name

    def program(self) -> Program:
        if self.name is None:
            raise FormatError("program text", "the first line must be: program <name>")
        values = tuple(value for kind in KINDS for value in self.table.values() if value.kind == kind)
        return Program(self.name, values, tuple(self.body), tuple(self.slots))


def _left_out(op: Op, index: int) -> bool:
    """Whether this operand is not written where it is absent and the last: optional integers, as those of groups, and
    the axes of rotations."""
    one = op.operands[index]
    return one.optional and (one.role == "integers" or one.name == "axes")


def _spec(dtype: str, sizes: str) -> Spec:
    return Spec(tuple(parse_size(_number(size.strip())) for size in sizes.split(",")), as_dtype(dtype))


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _attrs(op: Op, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, text.split(", ")):
        name, _, word = part.partition("=")
        kind = op.attributes[name].kind
        if kind == "bool":
            found[name] = {"true": True, "false": False}[word]
        else:
            found[name] = {"int": int, "float": float}.get(kind, str)(word)
    return found
