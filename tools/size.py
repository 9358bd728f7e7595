"""How big weft is, against the budgets of docs/size.toml: lines per folder, ops, flags, tests, wheel, installed size.

    python tools/size.py               exit status 1 when something is over its budget
    python tools/size.py --install     also installs dist/*.whl into a temporary environment and measures it

A line counts when it holds code: blank lines, comments and docstrings are free, so nobody saves on them.
"""

import io
import re
import subprocess
import sys
import tempfile
import tokenize
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PYTHON, NATIVE = (".py", ".pyi"), (".cpp", ".h")
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
# What pip puts into an empty environment itself.
TOOLS = ("pip", "setuptools", "wheel", "_distutils_hack", "distutils-precedence.pth")


def read_budgets(text: str) -> dict[str, dict[str, int]]:
    """The part of TOML that size.toml uses: [section], "name" = whole number, comments. Python 3.10 has no reader."""
    sections: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if section := re.fullmatch(r"\[(\w+)\]", line):
            current = sections.setdefault(section.group(1), {})
        elif pair := re.fullmatch(r"\"?([\w/.-]+)\"? *= *(\d[\d_]*)", line):
            current[pair.group(1)] = int(pair.group(2))
        elif line:
            raise SystemExit(f'docs/size.toml:{number}: "name" = number or [section] is wanted: {line}')
    return sections


def python_lines(source: str) -> int:
    """Lines that hold a token of code; a string that is a whole statement is a docstring."""
    lines: set[int] = set()
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        docstring = token.type == tokenize.STRING and previous in LAYOUT
        if token.type not in (*LAYOUT, tokenize.ENDMARKER) and not docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            previous = token.type
    return len(lines)


def native_lines(source: str) -> int:
    without = re.sub(r"/\*.*?\*/", lambda found: "\n" * found.group().count("\n"), source, flags=re.DOTALL)
    return sum(1 for line in without.splitlines() if line.partition("//")[0].strip())


def lines_of(path: Path) -> int:
    source = path.read_text(encoding="utf-8")
    return python_lines(source) if path.suffix in PYTHON else native_lines(source)


def source_files() -> Iterator[Path]:
    for folder in ("weft", "csrc", "tests", "tools", "benchmarks", "examples"):
        yield from sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in PYTHON + NATIVE)


def lines_per_folder(budgets: dict[str, int]) -> dict[str, int]:
    """Lines of each budgeted folder; a file counts for the deepest one that holds it."""
    totals = dict.fromkeys(budgets, 0)
    for path in source_files():
        homes = [
            folder.relative_to(ROOT).as_posix() for folder in path.parents if folder != ROOT and ROOT in folder.parents
        ]
        home = next((name for name in homes if name in budgets), None)
        if home is None:
            raise SystemExit(f"{homes[0]} has no budget; give it one in docs/size.toml")
        totals[home] += lines_of(path)
    return totals


def test_count() -> int:
    """Tests that pytest collects, parameters counted one by one."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(ROOT / "tests")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = re.search(r"^(\d+)(?:/\d+)? tests? collected", done.stdout, re.MULTILINE)
    if found is None:
        raise SystemExit(f"pytest collected nothing:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return int(found.group(1))


def wheels() -> list[Path]:
    return sorted((ROOT / "dist").glob("weft_engine-*.whl"))


def installed_bytes() -> int:
    """Bytes of weft and everything it needs, installed into an empty environment."""
    if not wheels():
        raise SystemExit("no wheel in dist; `make wheel` builds one")
    with tempfile.TemporaryDirectory(prefix="weft-size-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "Scripts" if sys.platform == "win32" else "bin", "python")
        options = ["--quiet", "--disable-pip-version-check", "--no-compile"]
        subprocess.run([python, "-m", "pip", "install", *options, wheels()[-1]], check=True)
        site = next(Path(folder).rglob("site-packages"))
        own = [entry for entry in site.iterdir() if not entry.name.startswith(TOOLS)]
        files = (path for entry in own for path in ([entry] if entry.is_file() else entry.rglob("*")))
        return sum(path.stat().st_size for path in files if path.is_file() and path.suffix != ".pyc")


def counts(install: bool) -> dict[str, int]:
    from weft.flags import all_flags
    from weft.ops import catalogue

    largest = max(source_files(), key=lambda path: path.read_text(encoding="utf-8").count("\n"))
    print(f"largest file: {largest.relative_to(ROOT).as_posix()}")
    found = {
        "ops": len(catalogue()),
        "flags": len(all_flags()),
        "largest_file_lines": largest.read_text(encoding="utf-8").count("\n"),
        "tests": test_count(),
    }
    if wheels():
        found["wheel_bytes"] = wheels()[-1].stat().st_size
    if install:
        found["installed_bytes"] = installed_bytes()
    return found


def report(title: str, found: dict[str, int], budgets: dict[str, int]) -> int:
    """Print what was found beside its budget; how many are over. A count without a budget is only printed."""
    print(f"\n{title:<24}{'now':>12}{'budget':>12}")
    over = 0
    for name, value in found.items():
        budget = budgets.get(name)
        mark = "" if budget is None or value <= budget else "  OVER"
        over += bool(mark)
        print(f"{name:<24}{value:>12,}{'' if budget is None else f'{budget:,}':>12}{mark}")
    return over


def main(install: bool) -> int:
    budgets = read_budgets((ROOT / "docs" / "size.toml").read_text(encoding="utf-8"))
    folders = lines_per_folder(budgets["lines"])
    over = report("lines of code", folders, budgets["lines"])
    print(f"{'all':<24}{sum(folders.values()):>12,}{sum(budgets['lines'].values()):>12,}\n")
    over += report("counts", counts(install), budgets["counts"])
    if over:
        print(f"\n{over} over budget: delete, or raise docs/size.toml in a commit that says why")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main("--install" in sys.argv[1:]))
