"""Live servers on loopback, each on a free port, over tiny models."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

for package in ("starlette", "uvicorn", "msgspec", "httpx"):
    pytest.importorskip(package)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))

import httpx  # noqa: E402
from tiny_models import write_models  # noqa: E402

from weft.serve import BackgroundServer, Limits, ModelSpec, Settings  # noqa: E402

Serve = Callable[..., BackgroundServer]


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def specs(model_files: dict[str, Path]) -> tuple[ModelSpec, ...]:
    return tuple(ModelSpec(name, str(path), {"threads": 1}) for name, path in model_files.items())


@pytest.fixture(scope="session")
def server(specs: tuple[ModelSpec, ...]) -> Iterator[BackgroundServer]:
    """A server without a key that most tests share."""
    with BackgroundServer(Settings(models=specs, port=0)) as running:
        yield running


@pytest.fixture
def serve(specs: tuple[ModelSpec, ...]) -> Iterator[Serve]:
    """`serve(keys=…, limits={…})`: a server of the test's own."""
    opened: list[BackgroundServer] = []

    def start(limits: dict[str, Any] | None = None, **settings: Any) -> BackgroundServer:
        made = Settings(**{"models": specs, "port": 0, "limits": Limits(**(limits or {})), **settings})
        opened.append(BackgroundServer(made).__enter__())
        return opened[-1]

    yield start
    for one in opened:
        one.__exit__()


@pytest.fixture
def client(server: BackgroundServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made
