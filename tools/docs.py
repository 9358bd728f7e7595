"""Write the generated pages: docs/ops.md, flags.md, models.md, cli.md, benchmarks.md, settings.md, and the figures of
README.md. `--check` compares instead and prints a diff.

The pages depend on the source alone: not on this machine's processor, environment or terminal.
"""

import ast
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

NOTICE = "<!-- Written by tools/docs.py from {source}. Change that and run `make docs`. -->"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    cells = [list(header), *map(list, rows)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])


def page(title: str, source: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTICE.format(source=source), *parts]) + "\n"


def levels() -> list[str]:
    """The instruction-set levels as CMakeLists.txt has them: scalar, then those of x86-64, then those of 64-bit Arm.

    A level that is built for some ops takes the others from the level below, and counts as running them.
    """
    return re.findall(r"^ *weft_kernels\((\w+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)


def ops_page() -> str:
    from weft.ops.registry import FAMILIES, Op, catalogue

    kernels = {path.stem for path in (ROOT / "csrc" / "kernels").glob("*.cpp")}
    built = f"reference, {', '.join(levels())}"

    def row(op: Op) -> list[str]:
        runs = f"{built} (free)" if op.name == "reshape" else built if op.name in kernels else "reference"
        gradient = "yes" if op.gradient else f"no: {op.gradient_refused}"
        tolerance = op.tolerances["f32"]
        limit = f"{tolerance:.2g}: {op.because}" if tolerance else f"exact: {op.because}"
        meaning = " ".join(line.strip() for line in (op.__doc__ or "").split("\n\n")[0].splitlines()).strip()
        return [f"`{op.name}`", meaning, runs, "yes" if op.decomposition else "", gradient, limit]

    header = ["op", "meaning", "runs on", "taken apart where it has no kernel", "gradient", "f32 tolerance and why"]
    parts = []
    for family in FAMILIES:
        found = [op for op in catalogue().values() if op.family == family]
        parts.append(f"## {family}\n\nDefined in `weft/ops/{family}.py`.\n\n{table(header, map(row, found))}")
    intro = (
        f"{len(catalogue())} ops. The reference runs all of them, a CPU level those with a file in `csrc/kernels`.\n"
        "A tolerance is the largest relative error (2-norm) that a backend may have against the float64 reference."
    )
    return page("Ops", "the catalogue, `weft/ops`", intro, *parts)


def flags_page() -> str:
    from weft.flags import all_flags

    def default(value: object) -> str:
        return {None: "", False: "0", True: "1", (): ""}.get(value, str(value))  # type: ignore[call-overload]

    rows = [[f"`{flag.name}`", flag.kind, default(flag.default), flag.sentence] for flag in all_flags()]
    intro = "`weft env` prints this table with the values in force. A value that does not parse is an error."
    return page(
        "Environment variables", "`weft/flags.py`", intro, table(["variable", "kind", "default", "what it does"], rows)
    )


def model_types() -> list[list[str]]:
    rows = []
    for path in sorted((ROOT / "weft" / "models").glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kind = next(
            node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "KIND"
            and isinstance(node.value, ast.Constant)
        )
        rows.append([f"`{path.stem}`", str(kind), (ast.get_docstring(tree) or "").splitlines()[0]])
    return rows


def models_page() -> str:
    from weft.weights.sources.catalog import Entry, entries

    def row(entry: Entry) -> list[str]:
        names = ", ".join(f"`{name}`" for name in (entry.name, *entry.aliases))
        sources = ", ".join(f"`{source}`" for source in entry.sources)
        licence = f"{entry.licence}, to be accepted on the hub" if entry.gated else entry.licence
        pins = sum(file.sha256 is not None for file in entry.files)
        size = sum(file.bytes or 0 for file in entry.files)
        shown = f"{size / 1e6:.0f} MB" if size else "unknown"
        return [names, entry.kind, licence, shown, f"{pins} of {len(entry.files)}", entry.note, sources]

    types = (
        "## Model types\n\nOne file each in `weft/models`. A checkpoint of another type needs\n"
        "[a description](howto/run-a-model-from-a-description.md), which `weft adopt` drafts; else it is refused by\n"
        "name.\n\n"
    )
    known = (
        "## Models known by name\n\n"
        "The catalogue names the files of every model at a commit, and the SHA-256 of each where it is published. A\n"
        "file without one is written down at the first download on a machine, and must stay the same. Sources are\n"
        "tried in order. Any other checkpoint of a type above loads by its path or as `org/name` from the hub.\n\n"
    )
    header = ["name", "for", "licence", "download", "pinned files", "what it is", "sources"]
    return page(
        "Models",
        "`weft/models` and the catalogue of models",
        types + table(["model_type", "kind", "what it is"], model_types()),
        known + table(header, map(row, entries())),
    )


def cli_page() -> str:
    from weft import cli

    title, _, rest = cli.reference().partition("\n")
    return page(title.removeprefix("# "), "the commands' own help, `weft/cli`", rest.strip())


def has_commands() -> bool:
    from weft import cli

    return hasattr(cli, "reference")


FIGURES = (
    "<!-- figures: `make bench` appends to benchmarks/results, `make docs` writes them here -->\n",
    "<!-- end of figures -->",
)


def results(name: str) -> list[dict[str, Any]]:
    """The records of benchmarks/results/NAME.jsonl."""
    lines = (ROOT / "benchmarks" / "results" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def benchmarks_page() -> str:
    from weft.bench.report import figures

    intro = (
        "Medians, with the range seen, and the share of the roof that was measured in the same run. The command of a\n"
        "row measures it again; `weft bench --help` explains the workloads. `weft bench vs` measures llama.cpp, ONNX\n"
        "Runtime, OpenVINO, CTranslate2 and PyTorch in turn with weft where `--peer-python` has them\n"
        "([how to install them](../benchmarks/peers/README.md)). A `+` after a commit: with changes on top of it."
    )
    tokenizers = (
        "## Tokenizers\n\nThe WikiText-2 test file on one thread, in turn with the `tokenizers` library: WordPiece of\n"
        "MiniLM 23 times as fast, byte-level BPE of GPT-2 15 times; on text in many scripts 9.7 and 7.5 times\n"
        "(`python benchmarks/tokenizers.py`)."
    )
    others = (
        "## Vectors\n\nDistances, codes and scans in turn with numpy, simsimd, numkong, faiss and usearch:\n"
        "`OPENBLAS_NUM_THREADS=1 python benchmarks/vectors.py --cpu --rounds 9`. Results are in\n"
        "`benchmarks/results/vectors.jsonl`, and [LOG.md](LOG.md) discusses them."
    )
    return page(
        "Benchmarks",
        "`benchmarks/results`, to which `make bench` appends",
        intro,
        "## Two virtual cores of a Xeon (AMX), shared with other work\n\n" + figures(results("local")),
        "## Two cores of a Neoverse N1 (64-bit Arm)\n\n" + figures(results("neoverse-n1")),
        tokenizers,
        others,
    )


def settings_page() -> str:
    from weft.serve.fields.client_settings import TABLE

    def routes(row: Any) -> str:
        return ", ".join(f"`{path}`" for path in row.paths)

    read = [[f"`{row.name}`", f"`{row.field}`", routes(row), row.note] for row in TABLE if row.treatment == "read"]
    parts = [
        "## Read under another name\n\n" + table(["setting", "weft's field", "routes", ""], read),
        "## Ignored\n\nThe answer is the same without them.\n\n"
        + table(["setting", "routes", "why"], settings_rows("ignored", routes)),
        "## Refused\n\nIgnoring them would change the answer. A value that switches the feature off is ignored.\n\n"
        + table(["setting", "routes", "why"], settings_rows("refused", routes)),
    ]
    intro = (
        "Clients of OpenAI, vLLM, llama-server, Ollama, LM Studio and others send settings that weft's schemas lack.\n"
        "A setting that weft has under another name is read. One that has no influence on the answer is ignored, and\n"
        "the header `x-weft-ignored` of the answer names it; chat completions list it in `warnings` too. One that\n"
        "would change the answer is refused with a 400 that says why. A name that is in neither this table nor the\n"
        "schema (`/openapi.json`) is refused: it may be a misspelling. `null` counts as not set.\n"
        "`weft serve --strict` refuses what it would ignore.\n\n"
        "Answers to requests with tools have the header `x-weft-tools: generic` where the chat template of the model\n"
        "cannot write tools: they are then described in its system message, and calls and results written as text."
    )
    return page("Settings of other servers", "`weft/serve/fields/client_settings.py`", intro, *parts)


def settings_rows(treatment: str, routes: Callable[[Any], str]) -> list[list[str]]:
    from weft.serve.fields.client_settings import TABLE

    return [[f"`{row.name}`", routes(row), row.note] for row in TABLE if row.treatment == treatment]


def readme() -> str:
    """The README with the figures of benchmarks/results in their place."""
    from weft.bench.report import headlines

    before, start, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition(FIGURES[0])
    _, end, after = rest.partition(FIGURES[1])
    assert start and end, "the README has no place for the figures"
    return f"{before}{start}\n{headlines(results('local'))}\n\n{end}{after}"


PAGES: dict[str, Callable[[], str]] = {
    "ops": ops_page,
    "flags": flags_page,
    "models": models_page,
    "cli": cli_page,
    "benchmarks": benchmarks_page,
    "settings": settings_page,
}


def main(check: bool) -> int:
    stale = 0
    paths = {ROOT / "docs" / f"{name}.md": make for name, make in PAGES.items()} | {ROOT / "README.md": readme}
    for path, make in paths.items():
        if path.stem == "cli" and not has_commands():
            continue
        made = make()
        kept = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not check:
            path.write_text(made, encoding="utf-8")
        elif kept != made:
            stale = 1
            name = path.relative_to(ROOT).as_posix()
            lines = difflib.unified_diff(kept.splitlines(), made.splitlines(), name, "made now", lineterm="")
            print("\n".join(lines))
    if stale:
        print("generated pages are stale: run `make docs` and commit them")
    return stale


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
