"""A tiny sentence-transformers folder that tests read, and embedders of it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_endpoint import Endpoint
from tiny_st import write_st_folder

import weft


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody changes it."""
    return write_st_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_embedder(tiny_folder: Path) -> weft.Embedder:
    return weft.Embedder(str(tiny_folder), threads=1)


@pytest.fixture(scope="session")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 numbers, mean pooling, normalised, and trained to be cut."""
    folder = write_st_folder(tmp_path_factory.mktemp("wide") / "model")
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([module for module in modules if module["path"] != "2_Dense"]))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "is_matryoshka": True}))
    return folder


@pytest.fixture
def endpoint(tiny_embedder: weft.Embedder) -> Iterator[Endpoint]:
    made = Endpoint(tiny_embedder)
    yield made
    made.closing.set()
    made.server.shutdown()
    made.server.server_close()
