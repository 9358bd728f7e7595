"""Shaders as files: one per op in shaders/, what they share in shaders/lib, with a small preprocessor.

A file is WGSL and these lines:

    #include name              the text of shaders/lib/name.wgsl
    #params x, rows, eps: f32  what a launch gives: u32 unless said; the shader reads p.x, p.rows, p.eps
    #bind weight: array<u32>   a buffer beside the arena, read-only; `#bind rw state: …` one that is written, too
    #if NAME, #if NAME == word, #else, #endif
    #each i 8 … #end           the lines between, eight times, with {{i}} from 0 to 7

`{{NAME}}` becomes the definition of NAME. The arena is there without being said, with f(i), n(i) and put(i, value) for
its floats, integers and results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from weft.errors import BackendError
from weft.frozen import frozen

FOLDER = Path(__file__).parent / "shaders"
BINDING = re.compile(r"#bind (rw )?(\w+): (.+)")
FIRST_BINDING = 2  # 0 is the arena, 1 the parameters

ARENA = """\
@group(0) @binding(0) var<storage, read_write> arena: array<u32>;
@group(0) @binding(1) var<uniform> p: Params;
fn f(i: u32) -> f32 { return bitcast<f32>(arena[i]); }
fn n(i: u32) -> i32 { return bitcast<i32>(arena[i]); }
fn put(i: u32, value: f32) { arena[i] = bitcast<u32>(value); }
"""


@frozen
class Shader:
    """The text for one use, the names and types of its parameters, and whether each buffer it binds is written."""

    name: str
    text: str
    params: tuple[tuple[str, str], ...]
    written: tuple[bool, ...]


def shader_names() -> frozenset[str]:
    """The ops that have a shader."""
    return frozenset(path.stem for path in FOLDER.glob("*.wgsl"))


@cache
def _read(name: str, others: Path | None) -> str:
    if others is not None and (others / f"{name}.cu").exists():
        return (others / f"{name}.cu").read_text()
    return (FOLDER / f"{name}.wgsl").read_text()


@cache
def shader(name: str, defines: tuple[tuple[str, str], ...] = (), others: Path | None = None) -> Shader:
    """The shader of this name with these definitions; files of the folder `others` come before those of shaders/."""
    params: list[tuple[str, str]] = []
    written: list[bool] = []
    body = "\n".join(_expanded(name, dict(defines), params, written, others))
    fields = "".join(f"  {field}: {kind},\n" for field, kind in params)
    text = f"struct Params {{\n{fields}}}\n{ARENA}{body}\n"
    return Shader(name, text, tuple(params), tuple(written))


def _repeated(lines: list[str], defines: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Lines with the definitions that hold for them."""
    at = 0
    while at < len(lines):
        if not lines[at].startswith("#each "):
            yield lines[at], defines
            at += 1
            continue
        _, variable, times = _filled(lines[at], defines).split()
        end = lines.index("#end", at)
        for turn in range(int(times)):
            yield from ((line, {**defines, variable: str(turn)}) for line in lines[at + 1 : end])
        at = end + 1


def _expanded(
    name: str, given: Mapping[str, str], params: list[tuple[str, str]], written: list[bool], others: Path | None
) -> list[str]:
    lines: list[str] = []
    taken = [True]  # for each #if around the line, whether its part is used
    for line, defines in _repeated(_read(name, others).splitlines(), given):
        if line.startswith("#if "):
            taken.append(_holds(line[4:], defines))
        elif line == "#else":
            taken[-1] = not taken[-1]
        elif line == "#endif":
            taken.pop()
        elif not all(taken):
            continue
        elif line.startswith("#include "):
            lines += _expanded("lib/" + line[9:], defines, params, written, others)
        elif line.startswith("#params "):
            params += [_param(part) for part in line[8:].split(",")]
        elif found := BINDING.fullmatch(line):
            at, kind = FIRST_BINDING + len(written), "read_write" if found[1] else "read"
            lines.append(f"@group(0) @binding({at}) var<storage, {kind}> {found[2]}: {_filled(found[3], defines)};")
            written.append(bool(found[1]))
        else:
            lines.append(_filled(line, defines))
    if len(taken) != 1:
        raise BackendError("shader", f"{name}.wgsl has an #if without #endif")
    return lines


def _holds(condition: str, defines: Mapping[str, str]) -> bool:
    name, _, wanted = condition.partition(" == ")
    value = defines.get(name, "")
    return value in wanted.split("|") if wanted else value not in ("", "0", "False")


def _param(part: str) -> tuple[str, str]:
    name, _, kind = part.strip().partition(": ")
    return name, kind or "u32"


def _filled(line: str, defines: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: defines[found[1]], line)
