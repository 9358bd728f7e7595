"""Live servers on loopback, each on a free port, over tiny models. Where the server's packages are not installed its
tests are skipped, file by file, and say so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import httpx

    from weft.serve import BackgroundServer, ModelSpec

    Serve = Callable[..., BackgroundServer]

for folder in ("cli", "pictures"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / folder))
MISSING = [name for name in ("starlette", "uvicorn", "msgspec", "httpx") if find_spec(name) is None]


class Skipped(pytest.Module):
    """A file of tests that cannot even be imported here."""

    def collect(self) -> Any:
        pytest.skip(f"{MISSING[0]} is not installed; the server is not tested", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    return Skipped.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from tiny_models import write_models

    return write_models(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def specs(model_files: dict[str, Path]) -> tuple[ModelSpec, ...]:
    from weft.serve import ModelSpec

    return tuple(ModelSpec(name, str(path), {"threads": 1}) for name, path in model_files.items())


@pytest.fixture(scope="session")
def server(specs: tuple[ModelSpec, ...]) -> Iterator[BackgroundServer]:
    """A server without a key that most tests share."""
    from weft.serve import BackgroundServer, Settings

    with BackgroundServer(Settings(models=specs, port=0)) as running:
        yield running


@pytest.fixture
def serve(specs: tuple[ModelSpec, ...]) -> Iterator[Serve]:
    """`serve(keys=…, limits={…})`: a server of the test's own."""
    from weft.serve import BackgroundServer, Limits, Settings

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
    import httpx

    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made
