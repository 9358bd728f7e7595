"""The tree keeps its own rules: imports point down, files stay small, nothing unsafe, both languages agree."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BASE = ("errors", "flags", "dtype", "computes", "frozen", "lazy", "digest")

# A part, and what it may import beside itself and BASE. docs/design/architecture.md shows this table and says why.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "flags": ("errors", "frozen"),
    "dtype": ("frozen",),
    "computes": (),
    "frozen": (),
    "lazy": (),
    "digest": (),
    "progress": (),
    "ops": ("_core",),
    "graph": ("ops",),
    "backends": ("graph", "ops", "backends/reference", "backends/cpu", "backends/webgpu"),
    "backends/reference": ("backends", "graph", "ops"),
    "backends/cpu": ("backends", "graph", "ops", "_core"),
    "backends/webgpu": ("backends", "graph", "ops"),
    "nn": ("graph", "ops"),
    "models": ("nn", "graph", "weights/names"),
    "weights": ("weights/names", "ops", "_core"),
    "weights/names": (),
    "registry": (),
    "weights/sources": ("registry",),
    "text": ("_core",),
    "vectors": ("runtime/threads", "_core"),
    "transport": ("progress", "vectors", "_core"),
    "pictures": ("runtime/threads", "_core"),
    "runtime/threads": (),
    "runtime": (
        "runtime/threads",
        "models",
        "nn",
        "graph",
        "ops",
        "backends",
        "weights",
        "weights/names",
        "text",
        "_core",
    ),
    "describe": ("runtime", "models", "nn", "graph", "weights"),
    "autograd": ("runtime/threads", "ops", "graph", "backends", "backends/reference", "weights"),
    "quantise": (
        *("models", "nn", "graph", "ops", "backends", "runtime", "runtime/threads", "text", "embed"),
        *("weights", "weights/names", "weights/sources", "_core"),
    ),
    "export": (
        *("runtime", "backends", "backends/webgpu", "embed", "models", "text", "weights", "weights/sources"),
        *("_core", "__init__"),
    ),
    "tiny": ("autograd", "ops", "vectors", "weights", "_core"),
    "train": (
        "progress",
        *("runtime", "runtime/threads", "models", "nn", "graph", "backends"),
        *("weights", "weights/sources", "quantise", "text", "embed", "rerank", "_core"),
    ),
    "classify": ("embed", "rerank", "tiny", "train", "text", "weights"),
    "distill": ("train", "classify", "graph", "generate", "embed", "weights", "__init__"),
    "data": ("progress", "train", "embed", "text", "weights", "__init__"),
    "measure": ("runtime", "nn", "graph", "generate", "embed", "train", "weights", "weights/sources", "text"),
    "generate": ("progress", "pictures", "runtime", "nn", "graph", "text", "weights/sources"),
    "rerank": ("progress", "runtime", "generate", "text", "weights/sources"),
    "embed": ("progress", "pictures", "runtime", "runtime/threads", "text", "vectors", "weights", "weights/sources"),
    "integrations": ("embed",),
    "compat": ("embed", "rerank", "text", "vectors"),
    "ray": ("embed",),
    "serve": (
        *("classify", "generate", "embed", "rerank", "transport", "pictures", "runtime", "text", "registry"),
        *("weights/sources", "__init__"),
    ),
    "bench": (
        *("embed", "generate", "train", "runtime", "backends", "backends/cpu", "graph", "ops"),
        *("weights/sources", "_core"),
    ),
    "cli": ("*",),
    "__main__": ("cli",),
    "__init__": ("classify", "embed", "generate", "rerank", "text", "vectors", "weights/sources"),
}

# Third-party packages and the parts that may import them. All others are refused, torch and its relatives included.
THIRD_PARTY = {
    "numpy": ("dtype", "ops", "graph", "backends", "backends/reference", "backends/cpu", "backends/webgpu", "nn",
              "weights", "text", "vectors", "transport", "pictures", "runtime", "generate", "embed", "rerank",
              "integrations", "compat", "ray", "serve", "train", "autograd", "classify", "distill", "data", "tiny",
              "quantise", "measure", "export", "bench", "cli"),
    "typing_extensions": ("frozen",),  # for type checkers only
    "jinja2": ("text",),
    "llguidance": ("generate",),
    "usearch": ("embed",),  # the extra `hnsw`, decisions/0019
    "rich": ("cli", "progress", "weights/sources"),  # progress bars, imported when one is drawn
    "click": ("cli",),
    "psycopg": ("embed",),  # the extra `postgres`, decisions/0022
    "starlette": ("serve",),  # these three: the extra `serve`, decisions/0017
    "uvicorn": ("serve",),
    "h11": ("serve",),  # uvicorn's parser
    "msgspec": ("serve",),
    "opentelemetry": ("serve",),  # the extra `otel`, decisions/0023
    "pyarrow": ("embed",),  # the extra `parquet`, decisions/0020
    **dict.fromkeys(("langchain_core", "llama_index", "haystack", "chromadb", "pydantic"), ("integrations",)),
    "ray": ("ray",),
    "PIL": ("pictures",),  # the extra `vision`, decisions/0053
    "wgpu": ("backends/webgpu",),  # the extra `gpu`, decisions/0050
}  # fmt: skip

# Imports that close a cycle of modules, from before a test held it. This list may only shrink.
KNOWN_CYCLES = [
    ("weft.generate.engine", "weft.generate.model"),
    ("weft.generate.handle", "weft.generate.engine"),
    ("weft.generate.session", "weft.generate.model"),
    ("weft.generate.grammar.matcher", "weft.generate.grammar.spec"),
    ("weft.generate.grammar.vocabulary", "weft.generate.grammar.matcher"),
    ("weft.graph.tensor", "weft.graph.trace"),
]

MAX_FILE, MAX_FUNCTION, MAX_FOLDER, MAX_README = 500, 60, 12, 30
# Folders where a file is the unit of growth (an op, a model, a pass, a target): their number is no sign of disorder.
ONE_FILE_EACH = (
    "csrc/kernels",
    "csrc/tests",
    "csrc/fuzz",
    "weft/models",
    "weft/ops",
    "weft/graph/passes",
    "weft/cli/commands",
    "weft/backends/webgpu/shaders",
)
# Over the limit when the limit was written; these numbers may only fall.
CROWDED = {"csrc/bind": 13, "csrc/core": 14, "weft/embed": 13, "weft/runtime": 13, "weft/weights": 14}

UNSAFE_MODULES = ("pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "ctypes")
DRIVERS = "weft/backends/webgpu/cuda/"  # NVIDIA's driver has no Python module: ctypes, decisions/0059
UNSAFE_CALLS = ("eval", "exec", "__import__")
NO_NAMES = re.compile(r"(?:.*_)?(?:utils?|common|helpers?|misc)")
THEIR_NAMES = ("weft/compat/util.py",)  # sentence-transformers' users import this name


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def package_files() -> list[Path]:
    return sorted((ROOT / "weft").rglob("*.py"))


def python_files() -> list[Path]:
    folders = ("weft", "tests", "tools", "benchmarks", "examples")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def native_files() -> list[Path]:
    return sorted(path for suffix in ("*.cpp", "*.h") for path in (ROOT / "csrc").rglob(suffix))


def source_folders() -> list[Path]:
    return sorted({path.parent for path in [*package_files(), *native_files()]} - {ROOT / "weft"})


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    """The part of MAY_IMPORT that a file of the package belongs to."""
    parts = path.relative_to(ROOT / "weft").with_suffix("").parts
    nested = "/".join(parts[:2])
    return nested if nested in MAY_IMPORT else parts[0]


def part_named(module: str) -> str:
    """The part that the module `weft.a.b` belongs to; a public name of the package itself is `__init__`."""
    inside = module.split(".")[1:]
    nested = "/".join(inside[:2])
    if nested in MAY_IMPORT:
        return nested
    return inside[0] if inside and (inside[0] in MAY_IMPORT or inside[0] == "_core") else "__init__"


def imports_of(path: Path) -> Iterator[str]:
    """Every module a file names in an import, wherever it stands; `from weft import x` is `weft.x`."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} relative import; name the module in full"
            module = node.module or ""
            if module in ("weft", "weft.backends", "weft.weights"):
                yield from (f"{module}.{alias.name}" for alias in node.names)
            else:
                yield module


def test_imports_point_down():
    wrong = []
    for path in package_files():
        part = part_of(path)
        assert part in MAY_IMPORT, f"weft/{part} is not in MAY_IMPORT; give the new part its place in the layers"
        allowed = {part, *MAY_IMPORT[part], *(() if part in BASE else BASE)}
        used = {part_named(module) for module in imports_of(path) if module.split(".")[0] == "weft"}
        if "*" not in allowed and used - allowed:
            wrong.append(f"{name_of(path)} may not import {', '.join(sorted(used - allowed))}")
    assert not wrong


def module_of(path: Path) -> str:
    """The dotted name of a file of the package; that of a package for its `__init__`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def re_exports(package: str) -> dict[str, str]:
    """The names that a package's `__init__` takes from its modules, and the module of each."""
    found = {}
    for node in ast.walk(parsed(ROOT / package.replace(".", "/") / "__init__.py")):
        if isinstance(node, ast.ImportFrom):
            found.update({alias.asname or alias.name: node.module or "" for alias in node.names})
    return found


def targets(module: str, names: list[str], files: dict[str, Path]) -> Iterator[str]:
    """The modules that `from module import names` needs: a submodule, or the package and the module that defines it."""
    for name in names:
        if f"{module}.{name}" in files:
            yield f"{module}.{name}"
        elif f"{module}.{name}" != "weft._core":  # compiled: it imports nothing of ours
            yield module
            home = re_exports(module).get(name) if files[module].name == "__init__.py" else None
            if home in files:
                yield from targets(home, [name], files)


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(tree: ast.AST, lazy: bool) -> Iterator[ast.AST]:
    """All nodes below `tree`; of a lazy package without those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if not (lazy and is_for_type_checkers(node)):
            yield node
            yield from statements(node, lazy)


@cache
def import_graph() -> dict[str, frozenset[str]]:
    """The modules of weft that each module of weft names, wherever the import stands.

    Imports for type checkers count, too: two modules that know each other's types are not understood apart. A package
    that loads its names when they are used (weft/lazy.py) is not an importer of its modules; who imports a name from
    it needs the module that defines the name.
    """
    files = {module_of(path): path for path in package_files()}
    graph = {}
    for module, path in files.items():
        used: set[str] = set()
        for node in statements(parsed(path), lazy=path.name == "__init__.py"):
            if isinstance(node, ast.Import):
                used.update(alias.name for alias in node.names if alias.name in files)
            elif isinstance(node, ast.ImportFrom) and node.module in files:
                used.update(targets(node.module, [alias.name for alias in node.names], files))
        graph[module] = frozenset(used - {module})
    return graph


def cycles(graph: Mapping[str, Set[str]], without: Collection[tuple[str, str]] = ()) -> list[str]:
    """Cycles of the graph, as "a -> b -> a", that are left `without` some of its edges."""
    left = {module: {other for other in used if (module, other) not in without} for module, used in graph.items()}
    found: list[str] = []
    while True:
        try:
            TopologicalSorter(left).prepare()
            return found
        except CycleError as error:
            path = error.args[1][::-1]  # from a module to what it imports
            found.append(" -> ".join(path))
            left[path[0]].discard(path[1])


def test_no_modules_import_each_other():
    assert not cycles(import_graph(), without=KNOWN_CYCLES)


@pytest.mark.parametrize("module, used", KNOWN_CYCLES)
def test_known_cycles_are_still_there(module, used):
    """The list only shrinks: an import that is gone, or closes no cycle any more, leaves it."""
    others = [edge for edge in KNOWN_CYCLES if edge != (module, used)]
    assert cycles(import_graph(), without=others), f"delete the line {module, used} from KNOWN_CYCLES"


@pytest.mark.parametrize(
    "graph, expected",
    [({"a": {"b"}, "b": {"c"}, "c": set()}, 0), ({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"c"}}, 2)],
)
def test_cycles_would_be_noticed(graph, expected):
    assert len(cycles(graph)) == expected


def test_third_party_packages_stay_where_they_belong():
    wrong = []
    for path in package_files():
        outside = {module.split(".")[0] for module in imports_of(path)} - {"weft", *sys.stdlib_module_names}
        wrong += [f"{name_of(path)}: {name}" for name in outside if part_of(path) not in THIRD_PARTY.get(name, ())]
    assert not wrong


def test_the_architecture_page_shows_this_table():
    page = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^    (\S+) +<- +(.*?)(?: {2,}.*)?$", page.split("## Layers")[1], re.MULTILINE)
    shown = {name: tuple(word for word in names.split() if word != "-") for name, names in rows}
    assert shown == MAY_IMPORT


def unsafe(node: ast.AST) -> str:
    """What in one syntax node could run code that came as data, or nothing."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
            return node.func.id
        for keyword in node.keywords:
            off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
            if keyword.arg in ("shell", "allow_pickle") and not off:
                return f"{keyword.arg}="
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"os.{node.attr}" if node.value.id == "os" and node.attr in ("system", "popen") else ""
    return ""


def test_nothing_runs_code_that_came_as_data():
    wrong = []
    for path in package_files():
        found = [f"{name_of(path)}:{node.lineno} {unsafe(node)}" for node in ast.walk(parsed(path)) if unsafe(node)]
        modules = {module.split(".")[0] for module in imports_of(path)} & set(UNSAFE_MODULES)
        if name_of(path).startswith(DRIVERS):
            modules -= {"ctypes"}
        wrong += found + [f"{name_of(path)} imports {module}" for module in modules]
    assert not wrong


@pytest.mark.parametrize("code", ["eval(x)", "run(x, shell=True)", "load(x, allow_pickle=y)", "os.system(x)"])
def test_unsafe_code_would_be_noticed(code):
    assert any(unsafe(node) for node in ast.walk(ast.parse(code)))


def test_every_file_is_named_after_what_it_holds():
    files = [path for path in [*python_files(), *native_files()] if NO_NAMES.fullmatch(path.stem.lower())]
    folders = [path for path in source_folders() if NO_NAMES.fullmatch(path.name.lower())]
    assert not [name_of(path) for path in files + folders if name_of(path) not in THEIR_NAMES]


def test_files_of_tests_have_names_of_their_own():
    """Two of the same name in folders that are no packages cannot be collected together."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_files_stop_at_500_lines():
    counts = {path: path.read_text(encoding="utf-8").count("\n") for path in [*python_files(), *native_files()]}
    assert not [f"{name_of(path)} has {count} lines" for path, count in counts.items() if count > MAX_FILE]


def test_functions_stop_at_60_lines():
    wrong = []
    for path in python_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                wrong += [f"{name_of(path)}: {node.name} has {count} lines"] if count > MAX_FUNCTION else []
    assert not wrong


def test_folders_stop_at_12_nouns():
    wrong = []
    for folder in source_folders():
        sources = (path for path in folder.iterdir() if path.suffix in (".py", ".cpp", ".h"))
        nouns = {path.stem for path in sources} - {"__init__"}  # x.h and x.cpp are one noun
        limit = CROWDED.get(name_of(folder), MAX_FOLDER)
        if len(nouns) > limit and name_of(folder) not in ONE_FILE_EACH:
            wrong.append(f"{name_of(folder)} has {len(nouns)}; split it by noun, with a decision record")
    assert not wrong


def test_every_folder_says_what_lives_in_it():
    pages = [folder / "README.md" for folder in source_folders()]
    assert not [name_of(page) for page in pages if not page.is_file()]
    assert not [name_of(page) for page in pages if page.read_text(encoding="utf-8").count("\n") > MAX_README]


# kernels that some programs take for an op's own
STAND_INS = {f"{name}_parts": name for name in ("matmul", "product", "product_back")}


@pytest.mark.parametrize("path", sorted((ROOT / "csrc" / "kernels").glob("*.cpp")), ids=lambda path: path.stem)
def test_every_kernel_starts_with_its_five_lines(path):
    header = re.match(r"(?://.*\n)+", path.read_text(encoding="utf-8"))
    assert header, "the file starts without a comment"
    lines = header.group().splitlines()
    assert lines[0].startswith(f"// {path.stem}: ") and lines[1] == "//", lines[:2]
    labels = re.findall(r"^// (Meaning|Layout|Method|Bound) ", header.group(), re.MULTILINE)
    assert labels == ["Meaning", "Layout", "Method", "Bound"]
    meaning = re.search(r"^// Meaning +(weft/ops/\w+\.py)", header.group(), re.MULTILINE)
    assert meaning, "Meaning names the file that defines the op"
    name = STAND_INS.get(path.stem, path.stem)
    assert f"\ndef {name}(" in (ROOT / meaning.group(1)).read_text(encoding="utf-8")


def test_both_languages_have_the_same_element_types():
    from weft.dtype import DTYPES

    header = (ROOT / "csrc" / "core" / "dtype.h").read_text(encoding="utf-8")
    rows = re.findall(r"X\((\w+), (\d+), (\d+), (-?\d+)\)", header)
    native = {name: (int(block), int(size), None if gguf == "-1" else int(gguf)) for name, block, size, gguf in rows}
    python = {name: (d.block, d.size_bytes, d.gguf) for name, d in DTYPES.items()}
    in_files_only = {"i16", "f64", "bool"}  # tensors of these types are listed and never computed with
    assert python.keys() - native.keys() == in_files_only
    assert native == {name: row for name, row in python.items() if name not in in_files_only}


def test_a_page_has_as_many_tokens_everywhere():
    from weft.ops.state import PAGE
    from weft.runtime.paged.pages import PAGE_TOKENS

    header = (ROOT / "csrc" / "core" / "state.h").read_text(encoding="utf-8")
    native = re.search(r"kPage = (\d+);", header)
    assert native and int(native.group(1)) == PAGE == PAGE_TOKENS


@pytest.mark.parametrize("level", ["avx2", "avx512", "amx", "neon", "neon_dot", "neon_i8mm"])
def test_code_for_newer_processors_stays_in_its_namespace(level):
    """A weak symbol compiled for AVX-512 may be the copy the linker keeps for every caller, on a machine without it."""
    builds = [ROOT / "build" / name / "CMakeFiles" / f"weft_kernels_{level}.dir" for name in ("dev", "neon")]
    objects = sorted(path for folder in builds for path in folder.rglob("*.o"))
    nm = shutil.which("nm")
    if not objects or nm is None:
        pytest.skip(f"no objects of level {level}, or no nm; `make core` and `tools/native-tests neon` build them")
    own = re.compile(rf"_Z[A-Z]*N[KVR]*4weft{len(level)}{level}|_ZN?4weft\d+kernels_{level}E?$")
    listed = subprocess.run(
        [nm, "--defined-only", "--extern-only", *objects], capture_output=True, text=True, check=True
    )
    symbols = [line.split()[-2:] for line in listed.stdout.splitlines() if len(line.split()) >= 2]
    shared = {name for kind, name in symbols if len(kind) == 1 and not own.match(name)}
    assert any(own.match(name) for _, name in symbols), "nm lists none of the kernels"
    assert not shared, f"symbols of level {level} that other levels could be given: {sorted(shared)[:8]}"


def test_every_function_has_a_name():
    for path in package_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.name.strip("_"), f"{name_of(path)}:{node.lineno} tracebacks and searches need a name"
