"""Stores of documents and their vectors: SQLite, or PostgreSQL with pgvector, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weft.embed.stores.generations import Generation
from weft.embed.stores.ledger import Ledger
from weft.embed.stores.routing import Phase, Route
from weft.embed.stores.states import Migration, Reason, State
from weft.embed.stores.store import Document, Hit, Store

__all__ = [
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
    """The store in a SQLite file, or in the `schema` of a PostgreSQL database (`postgresql://…`).

    One that is not there is an error unless `create` says to make it; a database of somebody else's is refused, and so
    is one in memory (`:memory:`): whatever a store has acknowledged is on disk.
    `clock` gives seconds since 1970, where the machine's or the server's are not wanted.
    """
    from weft.embed.stores.dialect import Dialect
    from weft.errors import InputError

    dialect: Dialect
    if str(where) == ":memory:":
        raise InputError("[store] :memory: is no file, and a store is one that others may open; name a file")
    if isinstance(where, str) and where.startswith(("postgresql://", "postgres://")):
        from weft.embed.stores.postgres import Postgres

        dialect = Postgres(where, schema=schema, create=create)
    elif "://" in str(where):
        kind = str(where).partition("://")[0]  # and no more of it: there may be a password
        raise InputError(f"[store] {kind[:40]}:// is no store; give the path of a SQLite file, or postgresql://…")
    else:
        from weft.embed.stores.sqlite import Sqlite

        dialect = Sqlite(Path(where), create=create)
    return Store(dialect, create=create, clock=clock)
