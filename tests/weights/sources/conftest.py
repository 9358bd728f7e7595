"""The surroundings in which models are looked for, the same for every test: nothing of the machine's own is seen."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home without settings, proxies or caches; the folder that caches go to."""
    for name in list(os.environ):
        if name.startswith(("HF_", "WEFT_", "TRANSFORMERS_", "HUGGINGFACE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "cache"
