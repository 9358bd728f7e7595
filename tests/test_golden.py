"""Every golden file that another library made says which versions of it did."""

import json
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden"
NOTED = json.loads((GOLDEN / "versions.json").read_text(encoding="utf-8"))
MADE = sorted(
    path.relative_to(GOLDEN).as_posix()
    for path in GOLDEN.glob("*/*")
    if path.suffix not in (".py", ".txt", ".md") and path.is_file() and any(path.parent.glob("make_*.py"))
)


def versions_of(name: str) -> dict[str, str]:
    """Package -> version, of the file itself or of versions.json."""
    if name.endswith(".npz"):
        with np.load(GOLDEN / name) as arrays:
            if "versions" in arrays:
                return dict(line.split(" ") for line in arrays["versions"].tolist())
    return NOTED.get(name, {})


@pytest.mark.parametrize("name", MADE)
def test_a_golden_has_the_versions_that_made_it(name: str) -> None:
    found = versions_of(name)
    assert found and all(found.values()), f"{name}: its script calls note_versions (tests/golden/made_with.py)"


def test_no_version_is_kept_of_a_file_that_is_gone() -> None:
    assert set(NOTED) <= set(MADE)
