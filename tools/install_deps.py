"""Install what pyproject.toml names, without building weft: python tools/install_deps.py [EXTRA ...]

Without an extra: the build tools and weft's dependencies. `make` builds the core in the checkout, so that a changed
file is a changed package; pip would build a copy.
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
    wanted = table(text, "\nrequires = [") + table(text, "\ndependencies = [") + BUILD_TOOLS
    extras = sys.argv[1:]
    for extra in extras:
        wanted += table(text, f"\n{extra} = [")
    # Python compiles a file when it is imported; pip would compile all of them. The pip of Python 3.11 needs a minute
    # to resolve what the tests need; later ones, some seconds.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    if extras:
        subprocess.run([*pip, "--upgrade", "pip"], check=True)
    print("installing", ", ".join(wanted), flush=True)
    subprocess.run([*pip, *wanted], check=True)


main()
