"""Stores of both kinds: tests that take `opened` run on SQLite and, where a server can be started, on PostgreSQL."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import MISSING, start_server

from weft.embed.stores import Store, open_store

Opened = Callable[..., Store]
NAMES = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server of the tests' own."""
    server = start_server()
    if server is None:
        warnings.warn(f"PostgreSQL IS NOT TESTED: no working server with pgvector here; {MISSING}", stacklevel=1)
        pytest.skip(f"no working PostgreSQL with pgvector and psycopg; {MISSING}")
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where a store may be made: arguments of open_store, the same place for everybody in a test."""
    if request.param == "sqlite":
        return {"where": tmp_path / "store.db"}
    return {"where": request.getfixturevalue("postgres"), "schema": f"test_{next(NAMES)}"}


@pytest.fixture
def opened(address: dict[str, Any]) -> Iterator[Opened]:
    """`opened()`: another connection to the test's store, made where it is not there; closed after the test."""
    stores: list[Store] = []

    def again(**options: Any) -> Store:
        stores.append(open_store(**{"create": True, **address, **options}))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Opened) -> Store:
    return opened()
