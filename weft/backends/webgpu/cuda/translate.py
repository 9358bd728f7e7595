"""A shader in WGSL as a kernel in CUDA's C++, by a handful of rewrites.

Shaders are written in a part of WGSL that differs from C++ in its declarations only: functions, variables, structs and
bindings are rewritten, expressions stay as they are, with WGSL's functions and vectors from prelude.h. A kernel written
for CUDA (kernels/*.cu) goes through the same preprocessor and has the same parameters, bindings and library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from weft.backends.webgpu.shader import Shader
from weft.errors import BackendError
from weft.frozen import frozen

FOLDER = Path(__file__).parent
BINDING = re.compile(r"@group\(0\) @binding\((\d+)\) var<(storage, read_write|storage, read|uniform)> (\w+): (.+);")
SHARED = re.compile(r"var<workgroup> (\w+): (.+?);")
LAUNCHED = re.compile(r"var<launched> (\w+): array<uint4, (\d+)>;")  # more than a kernel has without being asked
PRIVATE = re.compile(r"var<private> (\w+): (.+?);")
CONSTANT = re.compile(r"const (\w+)(?:: [^=]+?)? = (.+);")
ALIAS = re.compile(r"alias (\w+) = (.+);")
STRUCT = re.compile(r"struct (\w+) \{(.*?)\}", re.DOTALL)
MAIN = re.compile(r"@compute (?:@cluster_size\((\d+)\) )?@workgroup_size\((.+?)\)\s*fn main\((.*?)\)\s*\{", re.DOTALL)
FUNCTION = re.compile(r"\bfn (\w+)\(([^)]*)\)(?: -> ([^{]+?))? \{", re.DOTALL)
BUILTIN = re.compile(r"@builtin\((\w+)\) (\w+): ([\w<>]+)")
FUNCTIONS = (
    "fma", "min", "max", "clamp", "abs", "round", "sqrt", "floor", "select", "dot", "countOneBits", "countLeadingZeros",
    "unpack2x16float", "workgroupBarrier", "workgroupUniformLoad",
)  # fmt: skip
FLOAT = re.compile(r"(?<![\w.])(\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")
VALUES = {
    "workgroup_id": "vec3<u32>(blockIdx.x, blockIdx.y, 0u)",
    "num_workgroups": "vec3<u32>(gridDim.x, gridDim.y, 1u)",
    "local_invocation_index": "threadIdx.x",
    "local_invocation_id": "vec3<u32>(threadIdx.x, 0u, 0u)",
}


@frozen
class Kernel:
    """CUDA's text of a shader, with the kernel `entry`; its threads, the workgroup's invocations; the bytes of shared
    memory that a launch has to ask for; and whether it waits for the launches before it itself."""

    shader: Shader
    text: str
    threads: int
    launched: int = 0
    early: bool = False


@cache
def prelude() -> str:
    return (FOLDER / "prelude.h").read_text()


def _plain(text: str) -> str:
    """Without comments, and with floats that C++ takes for floats."""
    return FLOAT.sub(r"\1f", re.sub(r"//[^\n]*", "", text))


def _parameters(text: str) -> str:
    parts = [part.strip().partition(": ") for part in text.replace("\n", " ").split(",") if part.strip()]
    return ", ".join(f"{kind} {name}" for name, _, kind in parts)


def _statements(text: str) -> str:
    """Declarations and functions within bodies."""
    text = re.sub(r"\blet (\w+): ([^=;]+?) = ", r"const \2 \1 = ", text)
    text = re.sub(r"\blet (\w+) = ", r"const auto \1 = ", text)
    text = re.sub(r"\bvar (\w+): ([^=;]+?) = ", r"\2 \1 = ", text)
    text = re.sub(r"\bvar (\w+): ([^=;]+?);", r"\2 \1{};", text)
    text = re.sub(r"\bvar (\w+) = ", r"auto \1 = ", text)
    text = re.sub(r"\.(xy|zw|xyz)\b", r".\1()", text)
    return re.sub(rf"\b({'|'.join(FUNCTIONS)})\(", r"w_\1(", text)


def _struct(found: re.Match[str]) -> str:
    parts = re.split(r",(?![^<]*>)", found[2].replace("\n", " "))
    fields = [field.strip().partition(": ") for field in parts if field.strip()]
    return f"struct {found[1]} {{ {' '.join(f'{kind} {name};' for name, _, kind in fields)} }};"


OUTSIDE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (STRUCT, _struct),
    (SHARED, lambda one: f"__shared__ {one[2]} {one[1]};"),
    (LAUNCHED, lambda one: f"LAUNCHED({one[1]}, {one[2]});"),
    (CONSTANT, lambda one: f"CONST auto {one[1]} = {one[2]};"),
    (ALIAS, lambda one: f"using {one[1]} = {one[2]};"),
)


def _pieces(text: str) -> Iterator[str]:
    """The declarations of a shader, one by one."""
    depth = start = 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0 and letter in ";}":
            yield text[start : at + 1].strip()
            start = at + 1


def translated(made: Shader) -> Kernel:
    """The kernel of a specialised shader."""
    text = _plain(made.text)
    outside: list[str] = []  # the kernel's struct: structs, constants and shared memory, in their order
    bindings: dict[str, tuple[str, str]] = {}
    head = STRUCT.match(text.lstrip())
    assert head is not None and head[1] == "Params"

    def bound(found: re.Match[str]) -> str:
        if found[2] != "uniform":
            element = re.fullmatch(r"array<(.+)>", found[4])
            assert element is not None, found[4]
            bindings[found[3]] = (element[1], "" if found[2].endswith("write") else "const ")
        return ""

    text = BINDING.sub(bound, text)
    main = MAIN.search(text)
    if main is None:
        raise BackendError("shader", f"{made.name} has no entry point that CUDA could have")
    arguments = BUILTIN.findall(main[3])
    given = ", ".join(VALUES[what] for what, _, _ in arguments)
    taken = ", ".join(f"{kind} {name}" for _, name, kind in arguments)
    text = f"{text[: main.start()]}FN void body({taken}) {{{text[main.end() :]}"
    text = FUNCTION.sub(lambda one: f"FN {one[3] or 'void'} {one[1]}({_parameters(one[2])}) {{", text)
    inside = []
    for piece in _pieces(text):
        for pattern, form in OUTSIDE:
            found = pattern.fullmatch(piece)
            if found is not None:
                outside.append(_statements(form(found)))
                break
        else:
            inside.append(_statements(PRIVATE.sub(r"\2 \1;", piece)))
    members = "".join(f"  {const}{kind}* __restrict__ {name};\n" for name, (kind, const) in bindings.items())
    passed = "".join(f", {const}{kind}* __restrict__ {name}" for name, (kind, const) in bindings.items())
    names = "".join(f", {name}" for name in bindings)
    joined = "\n".join(outside)
    together, alone = (f"__cluster_dims__({main[1]}, 1, 1) ", ", 1") if main[1] else ("", "")
    return Kernel(
        made,
        f"{prelude()}\n{joined}\nstruct Shader {{\n  const Params& p;\n{members}" + "\n".join(inside) + "\n};\n"
        f'extern "C" __global__ void {together}__launch_bounds__({main[2]}{alone}) entry(const Params p{passed}) {{\n'
        f"  Shader shader{{p{names}}};\n  shader.body({given});\n}}\n",
        _threads(main[2], text),
        sum(16 * int(one[2]) for one in LAUNCHED.finditer(text)),
        "those_before_end()" in text,
    )


def _threads(size: str, text: str) -> int:
    """A workgroup's invocations: a number, or a constant of the text."""
    found = re.search(rf"const {size} = (\d+)u?;", text)
    return int(size.rstrip("u")) if found is None else int(found[1])
