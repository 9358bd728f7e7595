"""A registry in a folder of the test's own, and small files to add to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weft.registry import Registry

Made = Callable[..., Path]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path / "registry") as made:
        yield made


@pytest.fixture
def files(tmp_path: Path) -> Made:
    """`files("text", other="more")`: a folder whose files hold these texts."""

    def make(text: str, **others: str) -> Path:
        folder = tmp_path / f"files-{text}"
        (folder / "inner").mkdir(parents=True, exist_ok=True)
        for name, content in {"weights": text, "shared": "the same in all" * 1000, **others}.items():
            (folder / "inner" / name).write_text(content)
        return folder

    return make
