"""Threads of the runtime: a process that ends while one of them works ends as it was going to."""

import subprocess
import sys

import pytest

from weft.runtime.threads import Soon


def test_what_is_made_meanwhile_comes_or_its_error_does() -> None:
    def fail() -> int:
        raise ValueError("no")

    assert Soon(lambda: 5).get() == 5
    with pytest.raises(ValueError, match="no"):
        Soon(fail).get()


def test_a_process_that_ends_waits_for_what_is_being_made() -> None:
    """A daemon that comes back from native code while the interpreter ends is unwound, which aborts the process."""
    code = """
import time
from weft.runtime.threads import Soon
def make():
    time.sleep(0.3)
    print("made", flush=True)
Soon(make)
raise SystemExit(3)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (3, "made\n"), found.stderr
