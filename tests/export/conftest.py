"""Bundles of tiny models that the tests of this folder share."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "fuzz")]


@pytest.fixture(scope="session")
def st_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny embedder: first-token pooling, a dense layer, prompts, at most 48 tokens."""
    from tiny_st import write_st_folder

    return write_st_folder(tmp_path_factory.mktemp("st"), vocab_size=230)


@pytest.fixture(scope="session")
def st_bundle(st_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from weft.export import export

    return export(str(st_folder), tmp_path_factory.mktemp("bundle") / "st.weft").path


@pytest.fixture(scope="session")
def smollm2_bundle(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from weft.export import export

    return export(str(smollm2), tmp_path_factory.mktemp("bundle") / "smol.weft").path
