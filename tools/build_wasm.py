"""Build weft.wasm and weft-threads.wasm, the core for browsers, into web/runtime.

    python tools/build_wasm.py
    python tools/build_wasm.py --for minilm.weft smollm2.weft -o FOLDER    # what these bundles need only

Both are linked from the same objects; the second one imports its memory, which workers share. The compiler is the
one of the package `ziglang` (decisions/0054). What is linked is the C interface and the kernels that encoders and small
decoders need; what nobody calls is left out.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD, RUNTIME = ROOT / "build" / "wasm", ROOT / "web" / "runtime"
# Files whose place csrc/wasm has its own for: threads, memory and folders of an operating system.
ELSEWHERE = {"core/pool.cpp", "core/memory.cpp", "bundle/folder.cpp"}
FOLDERS = ("wasm", "core", "bundle", "capi", "text", "text/load", "text/split", "unicode", "pack", "quant")
KERNELS = (
    *(
        "activate",
        "add",
        "add_layer_norm",
        "add_rms_norm",
        "add_rms_norm_a8",
        "attention",
        "attention_paged",
        "attention_paged_bf16",
        "embedding",
        "gated",
        "gated_a8",
        "l2_normalise",
        "layer_norm",
        "lora",
        "lora_embedding",
        "matmul",
    ),
    *("matmul_q", "mul", "pool", "quantise_rows", "rms_norm", "rms_norm_a8", "rope_table", "rope_write", "take_rows"),
)
# Those that decide how long a text takes; the others are made small.
FAST = {"attention", "attention_paged_bf16", "matmul", "matmul_q"}
# The types of weights that a tab runs, as in quant/dequant.cpp for WEFT_FEW_TYPES. All 23 would double the module.
TYPES = ("q4_0", "q4_1", "q5_0", "q8_0", "q4_k", "q6_k")
STATES = ("f32", "f16", "bf16")
# Of the C interface, and what a page needs to hand over bytes.
EXPORTS = (
    *(
        "malloc",
        "free",
        "weft_version",
        "weft_last_error",
        "weft_open_memory",
        "weft_close",
        "weft_cancel",
        "weft_info",
    ),
    *("weft_tokenise", "weft_detokenise", "weft_dimension", "weft_embed", "weft_page_generate", "weft_page_chat"),
    *("weft_adapter_load_memory", "weft_adapter_info", "weft_adapter_free"),
    # Steps that the page computes on a GPU.
    *("weft_begin_embed", "weft_page_begin_generate", "weft_page_begin_chat", "weft_next_step", "weft_take_logits"),
    *("weft_take_largest", "weft_finish_steps"),
)
# Of the threaded module: what a worker needs to join the team, and the memory that core.js makes (INITIAL_PAGES there).
SHARED = (
    "-Wl,--shared-memory -Wl,--import-memory -Wl,--initial-memory=16777216 "
    "-Wl,--export=weft_page_thread -Wl,--export=__stack_pointer -Wl,--export=__wasm_init_tls -Wl,--export=__tls_size "
)
# Atomics work on memory that is not shared, too: one set of objects makes both modules.
TARGET = (
    "-target wasm32-wasi -mcpu=generic+simd128+exception_handling+bulk_memory+nontrapping_fptoint+sign_ext+atomics "
    "-fwasm-exceptions -mllvm -wasm-enable-eh"
)
COMMON = (
    f"{TARGET} -std=c++20 -fno-rtti -fvisibility=hidden -ffp-contract=off -ffunction-sections -fdata-sections "
    "-Wall -Wextra -DNDEBUG -D_WASI_EMULATED_GETPID -Dthread_local="  # kernels have none of those
)


@dataclass(frozen=True)
class Parts:
    """What a module has, and where it is built."""

    kernels: Sequence[str] = KERNELS
    types: Sequence[str] = TYPES
    states: Sequence[str] = STATES
    build: Path = BUILD
    output: Path = RUNTIME


def parts_for(bundles: Sequence[Path], output: Path) -> Parts:
    """The kernels and types of these bundles alone."""
    kernels, types, states = set(), set(), {"f32"}
    for bundle in bundles:
        manifest = json.loads((bundle / "manifest.json").read_text())
        types |= {tensor["dtype"] for tensor in manifest["weights"]}
        states |= {manifest["generate"]["kv_dtype"]} if "generate" in manifest else set()
        for program in manifest["programs"].values():
            kernels |= {instruction["op"] for instruction in json.loads((bundle / program).read_text())["body"]}
    missing = sorted(kernels - {"reshape", *KERNELS}) + sorted(types - {"f32", "f16", "bf16", *TYPES})
    if missing or states - set(STATES):
        sys.exit(f"not in any module for browsers: {', '.join([*missing, *sorted(states - set(STATES))])}")
    chosen = [
        [name for name in names if name in found]
        for names, found in ((KERNELS, kernels), (TYPES, types), (STATES, states))
    ]
    return Parts(*chosen, BUILD.with_name("wasm-for"), output)


def find_zig() -> Path:
    found = find_spec("ziglang")
    if found is None or found.origin is None:
        sys.exit("the package ziglang is not installed: `make wasm` installs it")
    return Path(found.origin).parent


def rule(name: str, command: str, description: str) -> str:
    deps = "  depfile = $out.d\n  deps = gcc\n" if "-MF" in command else ""
    return f"rule {name}\n  command = {command}\n  description = {description} $out\n{deps}\n"


def write_ninja(zig: Path, parts: Parts) -> None:
    lib, generated = zig / "lib", parts.build / "generated"
    generated.mkdir(parents=True, exist_ok=True)
    version = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)[0]
    write(generated / "kernel_list.inc", "".join(f"WEFT_KERNEL({name})\n" for name in sorted(parts.kernels)))
    write(generated / "level_list.inc", "WEFT_LEVEL(wasm128)\n")
    write(generated / "state_list.inc", "".join(f"WEFT_STATE({name})\n" for name in parts.states))
    write_fewer(generated, parts)
    own = (
        f"{COMMON} -include csrc/wasm/alone.h -I{generated} -Icsrc/wasm/level -Icsrc -DWEFT_FEW_TYPES "
        f"-DWEFT_VERSION='\"{version}\"'"
    )
    level = f"{own} -DISA=wasm128 -DWEFT_ISA_wasm128"
    # The standard library of the toolchain throws nothing: what throws and catches is built from its sources.
    abi = (
        f"{TARGET} -Oz -w -D_LIBCPP_ENABLE_CXX17_REMOVED_UNEXPECTED_FUNCTIONS -DLIBCXX_BUILDING_LIBCXXABI "
        f"-DLIBCXXABI_USE_LLVM_UNWINDER -D_LIBCXXABI_HAS_NO_THREADS -D_LIBUNWIND_HIDE_SYMBOLS "
        f"-I{lib}/libcxxabi/include -I{lib}/libcxx/src -I{lib}/libunwind/include"
    )
    run = f"{zig / 'zig'}"
    exports = " ".join(f"-Wl,--export={name}" for name in EXPORTS)
    text = f"builddir = {parts.build}\n" + rule(
        "small", f"{run} c++ {own} -Oz -MMD -MF $out.d -c $in -o $out", "compiling"
    )
    text += rule("light", f"{run} c++ {level} -Os -MMD -MF $out.d -c $in -o $out", "compiling")
    text += rule("light_own", f"{run} c++ {level} -DkScaled=$own -Os -MMD -MF $out.d -c $in -o $out", "compiling")
    text += rule("quick", f"{run} c++ {level} -O2 -MMD -MF $out.d -c $in -o $out", "compiling")
    # clang gives a specialised constant a name that may be in one file only: it has another in each of these.
    text += rule("quick_own", f"{run} c++ {level} -DkScaled=$own -O2 -MMD -MF $out.d -c $in -o $out", "compiling")
    text += rule("abi", f"{run} c++ {abi} -std=c++23 -c $in -o $out", "compiling")
    text += rule("unwind", f"{run} cc {abi} -c $in -o $out", "compiling")
    text += rule(
        "link",
        f"{run} c++ {TARGET} -mexec-model=reactor -Oz -s -Wl,--gc-sections -Wl,--max-memory=4294901760 "
        f"-Wl,-z,stack-size=1048576 {exports} $shared @$out.rsp -o $out",
        "linking",
    ).replace("  description", "  rspfile = $out.rsp\n  rspfile_content = $in\n  description")
    text, objects = add_objects(text, lib, parts)
    text += f"build {parts.output / 'weft.wasm'}: link {' '.join(objects)}\n  shared =\n"
    text += f"build {parts.output / 'weft-threads.wasm'}: link {' '.join(objects)}\n  shared = {SHARED}\n"
    write(parts.build / "build.ninja", text)


def add_objects(text: str, lib: Path, parts: Parts) -> tuple[str, list[str]]:
    """The text with a rule for each object, and the objects in the order in which they are linked."""
    objects: list[str] = []

    def add(source: Path, how: str) -> None:
        place = source.relative_to(ROOT / "csrc") if source.is_relative_to(ROOT / "csrc") else Path("abi") / source.name
        objects.append(str(parts.build / "objects" / f"{place}.o"))
        nonlocal text
        text += f"build {objects[-1]}: {how} {source}\n"

    # First what takes the place of parts of the toolchain's libraries: later, those would be there already.
    add(ROOT / "csrc" / "wasm" / "system.cpp", "small")
    add(ROOT / "csrc" / "wasm" / "tag.s", "unwind")
    for name in ("cxa_exception", "cxa_personality"):
        add(lib / "libcxxabi" / "src" / f"{name}.cpp", "abi")
    add(lib / "libunwind" / "src" / "Unwind-wasm.c", "unwind")
    for folder in FOLDERS:
        for source in sorted((ROOT / "csrc" / folder).glob("*.cpp")):
            if source.relative_to(ROOT / "csrc").as_posix() not in {*ELSEWHERE, "wasm/system.cpp"}:
                add(source, "small")
    for name in parts.kernels:
        own = name in ("attention_paged", "attention_paged_bf16", "rope_write")
        how = "quick" if name in FAST else "light"
        add(ROOT / "csrc" / "kernels" / f"{name}.cpp", f"{how}_own" if own else how)
        text += f"  own = kScaled_{name}\n" if own else ""
    add(ROOT / "csrc" / "simd" / "table.cpp", "quick")
    return text, objects


def write_fewer(generated: Path, parts: Parts) -> None:
    """Copies of two headers without the types that this build leaves out; they are found before the originals."""
    formats = (ROOT / "csrc" / "pack" / "formats.h").read_text()
    rows, kept = r"\{DType::(\w+), .*\n", " ".join(f"X({name})" for name in parts.types)
    formats = re.sub(r" *" + rows, lambda row: row[0] if row[1] in parts.types else "", formats)
    formats, listed = re.subn(r"(#define WEFT_PACKED_TYPES\(X\)) \\\n(?:.*\\\n)*.*\n", rf"\1 {kept}\n", formats)
    states = (ROOT / "csrc" / "kernels" / "state_elements.h").read_text()
    states, cut = re.subn(r" *case DType::i4r:(?:.*\n)*?.*<int8_t>\(\);\n", "", states)
    for name in {"f16", "bf16"} - set(parts.states):
        states = re.sub(rf" *case DType::{name}: .*\n", "", states)
    states, ended = re.subn(
        r"default: (return .*<float>\(\);)", r"case DType::f32: \1 default: __builtin_trap();", states
    )
    assert listed == cut == ended == 1
    write(generated / "pack" / "formats.h", formats)
    write(generated / "kernels" / "state_elements.h", states)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--for", nargs="+", type=Path, dest="bundles", metavar="BUNDLE", help="leave out what these do not need"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="where the modules go; needed with --for")
    given = parser.parse_args()
    if bool(given.bundles) != bool(given.output):
        parser.error("--for and --output come together")
    parts = parts_for(given.bundles, given.output.absolute()) if given.bundles else Parts()
    ninja = shutil.which("ninja", path=str(Path(sys.executable).parent)) or shutil.which("ninja")
    if ninja is None:
        sys.exit("ninja is not installed: `make dev` installs it")
    parts.build.mkdir(parents=True, exist_ok=True)
    parts.output.mkdir(parents=True, exist_ok=True)
    write_ninja(find_zig(), parts)
    done = subprocess.run([ninja, "-f", str(parts.build / "build.ninja")], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    for module in (parts.output / "weft.wasm", parts.output / "weft-threads.wasm"):
        print(f"{module}: {module.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
