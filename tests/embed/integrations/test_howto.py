"""The page on frameworks runs, and a framework that is missing is told with the line that installs it."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "use-it-from-a-framework.md"
BLOCKS = dict(re.findall(r"^```python (\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def test_every_framework_has_its_block() -> None:
    assert list(BLOCKS) == ["langchain_core", "llama_index", "haystack", "chromadb", "ray"]


@pytest.mark.parametrize("framework", BLOCKS)
def test_a_framework_s_block_runs(framework: str, tiny_folder: Path, tmp_path: Path) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    code = BLOCKS[framework].replace('"all-MiniLM-L6-v2"', repr(str(tiny_folder)))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("module", "framework", "package"),
    [
        ("langchain", "langchain_core", "langchain-core"),
        ("llama_index", "llama_index", "llama-index-core"),
        ("haystack", "haystack", "haystack-ai"),
        ("chroma", "chromadb", "chromadb"),
    ],
)
def test_a_missing_framework_is_told_with_its_line_of_pip(module: str, framework: str, package: str) -> None:
    code = (
        f"import sys; sys.modules[{framework!r}] = None\n"
        "import weft\n"
        f"try:\n    import weft.integrations.{module}\n"
        "except weft.errors.NotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    told = rf"\[integrations\] {framework}[.\w]* is not installed; pip install {package}"
    assert re.match(told, done.stdout), done.stderr
