"""Running the weft command as a process of its own, where signals, pipes or start-up matter."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

Run = Callable[..., Result]

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "weft"]


def environment() -> dict[str, str]:
    """This process's environment, with the checkout on the path of its children."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def start(*arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    """The command as a process of its own, both outputs piped."""
    return subprocess.Popen(
        [*COMMAND, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
