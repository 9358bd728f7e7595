"""The pages are true: examples run and print what they say, links lead somewhere, generated pages are fresh."""

import contextlib
import importlib.util
import io
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("weft/**/README.md"),
    *ROOT.glob("csrc/**/README.md"),
]
HOWTOS = sorted(ROOT.glob("docs/howto/*.md"))
EXAMPLES = sorted(path for path in ROOT.glob("examples/*.py") if path.stem != "demo")


def tool(name: str) -> ModuleType:
    """tools/<name>.py as a module."""
    spec = importlib.util.spec_from_file_location(f"weft_tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def examples_of(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def promised(code: str) -> list[str]:
    """What the comments behind print() say will be printed."""
    return [line.rpartition("  # ")[2] for line in code.splitlines() if line.startswith("print(")]


@pytest.mark.weights
def test_the_readme_prints_what_it_says(minilm, smollm2):
    code = examples_of(ROOT / "README.md")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert [line.strip() for line in printed.getvalue().splitlines()] == promised(code)


@pytest.mark.parametrize("page", HOWTOS, ids=lambda page: page.stem)
def test_what_a_howto_shows_to_run_runs(page):
    done = subprocess.run(
        [sys.executable, "-c", examples_of(page)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", HOWTOS, ids=lambda page: page.stem)
def test_what_a_howto_quotes_is_in_the_tree(page):
    """Every line of an excerpt stands in a file that the text above it names; `…` stands for what was left out."""
    text = page.read_text(encoding="utf-8")
    excerpts = list(re.finditer(r"^```(?:py|cpp)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert excerpts
    for excerpt in excerpts:
        path = re.findall(
            r"`((?:weft|csrc|tests)/[\w/]+\.(?:py|cpp|h))`", text[: excerpt.start()].rpartition("\n## ")[2]
        )
        lines = {line for name in path for line in (ROOT / name).read_text(encoding="utf-8").splitlines()}
        assert not [
            line for line in excerpt.group(1).splitlines() if line.strip() not in ("", "…") and line not in lines
        ]


@pytest.mark.weights
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs(path, minilm, smollm2):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
    done = subprocess.run([sys.executable, path], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert not [target for target in targets if target and not (page.parent / target).exists()]


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_named_in_the_pages_exist(page):
    """Paths in backticks that begin with a folder of the tree; `<op>` and `*` stand for names."""
    if page.name == "LOG.md" or page.parent.name == "decisions":  # these tell what was, and are not edited
        return
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:weft|csrc|tests|tools|docs|benchmarks|examples)/[\w./-]+)`", text)
    assert not [path for path in named if not (ROOT / path.rstrip("/")).exists()]


def test_generated_pages_are_fresh():
    """In a process of its own: what other tests do to commands here changes their help."""
    made = subprocess.run([sys.executable, ROOT / "tools" / "docs.py", "--check"], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr


def test_the_size_tool_reads_its_budgets_and_counts_code():
    size = tool("size")
    assert size.read_budgets('# x\n[lines]\n"weft/ops" = 2_600  # why\n[counts]\nops = 60\n') == {
        "lines": {"weft/ops": 2600},
        "counts": {"ops": 60},
    }
    with pytest.raises(SystemExit, match=r"size.toml:1"):
        size.read_budgets("lines: 3")
    assert (
        size.python_lines('"""Doc\nstring."""\n\n# why\nx = [\n    1,\n]\n\n\ndef f():\n    """Doc."""\n    return x\n')
        == 5
    )
    assert size.native_lines("// what\n#include <x>\n\n/* a\n b */\nint x;  // why\n") == 2


def test_no_folder_is_over_its_budget():
    size = tool("size")
    budgets = size.read_budgets((ROOT / "docs" / "size.toml").read_text(encoding="utf-8"))["lines"]
    found = size.lines_per_folder(budgets)
    assert not {name: lines for name, lines in found.items() if lines > budgets[name]}
