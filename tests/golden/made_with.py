"""Which versions made a golden file: versions.json, which the scripts write and tests/test_golden.py reads.

"unknown" stands for what was not written down when a file was made.
"""

import json
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSIONS = HERE / "versions.json"


def note_versions(path: Path, *packages: str, **others: str) -> None:
    """Write down that the installed versions of `packages`, and `others`, have made the golden file `path`."""
    known = json.loads(VERSIONS.read_text(encoding="utf-8"))
    known[path.resolve().relative_to(HERE).as_posix()] = {
        **{package: version(package) for package in packages},
        **others,
    }
    VERSIONS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
