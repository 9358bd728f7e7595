"""Build weft.wasm and weft-threads.wasm, the core for browsers, into web/runtime: python tools/build_wasm.py

Both are linked from the same objects; the second one imports its memory, which workers share. The compiler is the
one of the package `ziglang` (decisions/0054). What is linked is the C interface and the kernels that encoders and small
decoders need; what nobody calls is left out.
"""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD, OUTPUT = ROOT / "build" / "wasm", ROOT / "web" / "runtime" / "weft.wasm"
THREADED = OUTPUT.with_name("weft-threads.wasm")
# Files whose place csrc/wasm has its own for: threads, memory and folders of an operating system.
ELSEWHERE = {"core/pool.cpp", "core/memory.cpp", "bundle/folder.cpp"}
FOLDERS = ("wasm", "core", "bundle", "capi", "text", "text/load", "text/split", "unicode", "pack", "quant")
KERNELS = (
    *(
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
        "matmul",
    ),
    *("matmul_q", "mul", "pool", "quantise_rows", "rms_norm", "rms_norm_a8", "rope_table", "rope_write", "take_rows"),
)
# Those that decide how long a text takes; the others are made small.
FAST = {"attention", "attention_paged_bf16", "matmul", "matmul_q"}
# The types of weights that a tab runs, as in quant/dequant.cpp for WEFT_FEW_TYPES. All 23 would double the module.
TYPES = ("q4_0", "q4_1", "q5_0", "q8_0", "q4_k", "q6_k")
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


def find_zig() -> Path:
    found = find_spec("ziglang")
    if found is None or found.origin is None:
        sys.exit("the package ziglang is not installed: `make wasm` installs it")
    return Path(found.origin).parent


def rule(name: str, command: str, description: str) -> str:
    deps = "  depfile = $out.d\n  deps = gcc\n" if "-MF" in command else ""
    return f"rule {name}\n  command = {command}\n  description = {description} $out\n{deps}\n"


def write_ninja(zig: Path) -> None:
    lib, generated = zig / "lib", BUILD / "generated"
    generated.mkdir(parents=True, exist_ok=True)
    version = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)[0]
    write(generated / "kernel_list.inc", "".join(f"WEFT_KERNEL({name})\n" for name in sorted(KERNELS)))
    write(generated / "level_list.inc", "WEFT_LEVEL(wasm128)\n")
    write_fewer(generated)
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
    text = f"builddir = {BUILD}\n" + rule("small", f"{run} c++ {own} -Oz -MMD -MF $out.d -c $in -o $out", "compiling")
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
    text, objects = add_objects(text, lib)
    text += f"build {OUTPUT}: link {' '.join(objects)}\n  shared =\n"
    text += f"build {THREADED}: link {' '.join(objects)}\n  shared = {SHARED}\n"
    write(BUILD / "build.ninja", text)


def add_objects(text: str, lib: Path) -> tuple[str, list[str]]:
    """The text with a rule for each object, and the objects in the order in which they are linked."""
    objects: list[str] = []

    def add(source: Path, how: str) -> None:
        place = source.relative_to(ROOT / "csrc") if source.is_relative_to(ROOT / "csrc") else Path("abi") / source.name
        objects.append(str(BUILD / "objects" / f"{place}.o"))
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
    for name in KERNELS:
        own = name in ("attention_paged", "attention_paged_bf16", "rope_write")
        how = "quick" if name in FAST else "light"
        add(ROOT / "csrc" / "kernels" / f"{name}.cpp", f"{how}_own" if own else how)
        text += f"  own = kScaled_{name}\n" if own else ""
    add(ROOT / "csrc" / "simd" / "table.cpp", "quick")
    return text, objects


def write_fewer(generated: Path) -> None:
    """Copies of two headers without the types that this build leaves out; they are found before the originals."""
    formats = (ROOT / "csrc" / "pack" / "formats.h").read_text()
    rows, kept = r"\{DType::(\w+), .*\n", " ".join(f"X({name})" for name in TYPES)
    formats = re.sub(r" *" + rows, lambda row: row[0] if row[1] in TYPES else "", formats)
    formats, listed = re.subn(r"(#define WEFT_PACKED_TYPES\(X\)) \\\n(?:.*\\\n)*.*\n", rf"\1 {kept}\n", formats)
    states = (ROOT / "csrc" / "kernels" / "state_elements.h").read_text()
    states, cut = re.subn(r" *case DType::i4r:(?:.*\n)*?.*<int8_t>\(\);\n", "", states)
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
    ninja = shutil.which("ninja", path=str(Path(sys.executable).parent)) or shutil.which("ninja")
    if ninja is None:
        sys.exit("ninja is not installed: `make dev` installs it")
    BUILD.mkdir(parents=True, exist_ok=True)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    write_ninja(find_zig())
    done = subprocess.run([ninja, "-f", str(BUILD / "build.ninja"), *sys.argv[1:]], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    for module in (OUTPUT, THREADED):
        print(f"{module.relative_to(ROOT)}: {module.stat().st_size:,} bytes")


main()
