"""Install what pyproject.toml names: the build tools, weft's dependencies and the dev extra, without building weft.

make dev builds the core in the checkout, so that a changed file is a changed package; pip would build a copy.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

BUILD_TOOLS = ["cmake", "ninja"]  # scikit-build-core asks for these itself when pip builds a wheel


def table(text: str, start: str) -> list[str]:
    """The strings of the TOML array that follows `start`; Python 3.10 has no TOML reader."""
    body = re.split(r"\](?:\s*#.*)?\n", text.split(start, 1)[1], maxsplit=1)[0]  # strings may have brackets, too
    return list(ast.literal_eval(f"[{body}]"))  # an array of plain strings is the same in both languages


def main() -> None:
    text = Path(__file__).resolve().parent.parent.joinpath("pyproject.toml").read_text()
    wanted = table(text, "requires = [") + table(text, "dependencies = [") + table(text, "dev = [") + BUILD_TOOLS
    print("installing", ", ".join(wanted), flush=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], check=True
    )


main()
