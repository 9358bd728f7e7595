"""Stores of documents and their vectors: SQLite, or PostgreSQL with pgvector, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weft.embed.stores.generations import Generation
from weft.embed.stores.ledger import Ledger
from weft.embed.stores.states import Migration, Phase, Reason, Route, State
from weft.embed.stores.store import Document, Hit, Store
from weft.embed.stores.values import Chunk, Content

__all__ = [
    "Chunk",
    "Content",
    "Document",
    "Generation",
    "Hit",
    "Ledger",
    "Migration",
    "Phase",
    "Reason",
    "Route",
    "State",
    "Store",
    "open_store",
]


def open_store(
    where: str | Path, *, create: bool = False, schema: str = "weft", clock: Callable[[], float] | None = None
) -> Store:
    """Open the store in a SQLite file, or in the `schema` of a PostgreSQL database (`postgresql://…`).

    A missing store is an error unless `create` is true. The database of another program is refused, and so is
    `:memory:`: what a store has committed is on disk. `clock` replaces the machine's or server's clock (seconds since
    1970).
    """
    from weft.embed.stores.dialect import Dialect
    from weft.errors import InputError

    dialect: Dialect
    if str(where) == ":memory:":
        raise InputError("store", "a store cannot be in memory", given=":memory:", advice="give the path of a file")
    if isinstance(where, str) and where.startswith(("postgresql://", "postgres://")):
        from weft.embed.stores.postgres import Postgres

        dialect = Postgres(where, schema=schema, create=create)
    elif "://" in str(where):
        kind = str(where).partition("://")[0]  # the rest may contain a password
        raise InputError(
            "store",
            f"cannot open addresses that begin with {kind[:40]}://",
            advice="give the path of a SQLite file, or postgresql://…",
        )
    else:
        from weft.embed.stores.sqlite import Sqlite

        dialect = Sqlite(Path(where), create=create)
    return Store(dialect, create=create, clock=clock)
