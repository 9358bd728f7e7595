"""A store in PostgreSQL with pgvector: one schema of a database. Needs the extra `weft-engine[postgres]`.

Writers lock the table `served` in a mode that does not conflict with other writers; a change of what is served, or of a
migration's state, locks it exclusively. PostgreSQL queues these locks, so a stream of writers cannot starve a cut-over.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from weft.embed.stores.dialect import ALONE, FIRST, READ, SHARED, Session
from weft.embed.stores.values import without_password
from weft.errors import BusyError, InputError, NotFoundError, StoreError, UnsupportedError, WeftError

if TYPE_CHECKING:
    import numpy as np

LOCKS = {SHARED: "LOCK TABLE served IN ROW SHARE MODE", ALONE: "LOCK TABLE served IN EXCLUSIVE MODE"}
MAX_DIMENSION = 16_000  # of pgvector's vector type
LEAST_CANDIDATES, MOST_CANDIDATES = 40, 1000  # hnsw.ef_search: pgvector's default and maximum
# An index can only serve the inner ORDER BY; the outer one orders ties by id.
NEAREST = """SELECT id, 1 - distance FROM (
    SELECT id, vector <=> ? AS distance FROM vectors_{number} ORDER BY vector <=> ? FETCH FIRST (?) ROWS WITH TIES
) AS near ORDER BY distance, id LIMIT ?"""
CHOSEN = NEAREST.replace("ORDER BY vector", "WHERE id = ANY(?) ORDER BY vector", 1)


class Packed(bytes):
    """A vector as pgvector sends it: its dimension and a zero in 16 bits each, then big-endian float32."""


class Postgres:
    """The dialect of a server."""

    id_type = 'TEXT COLLATE "C"'
    for_update = "FOR UPDATE"

    def __init__(self, address: str, *, schema: str, create: bool) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise InputError("store", "must be a name of a-z, 0-9 and _", field="schema", given=schema)
        psycopg = _psycopg()
        self.name = f"schema {schema!r}"
        self.schema, self._address, self._psycopg = schema, address, psycopg
        self._closed = False
        self.errors: tuple[type[Exception], ...] = (psycopg.Error,)
        # UndefinedTable: a generation was dropped while it was read
        self._busy = tuple(
            getattr(psycopg.errors, name) for name in ("DeadlockDetected", "SerializationFailure", "UndefinedTable")
        )
        self._statements: dict[str, str] = {}
        self._connect(create)

    def _connect(self, create: bool) -> None:
        psycopg = self._psycopg
        try:
            self.connection = psycopg.connect(self._address, autocommit=True, connect_timeout=10)
        except psycopg.Error as error:
            raise StoreError("store", f"cannot connect to the server: {_line(error)}") from None
        try:
            if create:
                self._create()
            self.connection.execute(f"SET search_path TO {self.schema}, public")
            self._register()
        except psycopg.Error as error:
            self.connection.close()
            raise self.translate(error) from None

    def _create(self) -> None:
        psycopg = self._psycopg
        with self.connection.transaction():
            self.connection.execute(
                "SELECT pg_advisory_xact_lock(hashtext('weft'))"
            )  # two processes may create it at once
            self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")
            try:
                self.connection.execute("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public")
            except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
                advice = "install it on the server (Debian: postgresql-NN-pgvector)"
                raise StoreError("store", "the server has no pgvector extension", advice=advice) from None

    def _register(self) -> None:
        """Send and read vectors as bytes, which is exact and needs no decimal conversion."""
        from psycopg.adapt import Dumper, Loader
        from psycopg.types import TypeInfo

        info = TypeInfo.fetch(self.connection, "vector")
        if info is None:
            raise NotFoundError(
                "store", f"{self.name} has no store", advice="create one: open_store(…, create=True)"
            )  # creating a store installs pgvector, and this database has no pgvector

        psycopg = self._psycopg

        class Sent(Dumper):
            format = psycopg.pq.Format.BINARY
            oid = info.oid

            def dump(self, obj: Packed) -> bytes:
                return bytes(obj)

        class Read(Loader):
            format = psycopg.pq.Format.BINARY

            def load(self, data: Any) -> bytes:
                return bytes(data)

        self.connection.adapters.register_dumper(Packed, Sent)
        self.connection.adapters.register_loader(info.oid, Read)

    def session(self) -> Session:
        def run(sql: str, values: Any) -> Any:
            return self.connection.execute(self._statement(sql), values or None, binary=True)

        def run_each(sql: str, values: Any) -> Any:
            with self.connection.cursor() as cursor:
                cursor.executemany(self._statement(sql), values)

        return Session(run, run_each)

    def _statement(self, sql: str) -> str:
        return self._statements.setdefault(sql, sql.replace("?", "%s"))

    def adopt(self, session: Session) -> None:
        pass

    def tables(self, session: Session) -> set[str]:
        return {name for (name,) in session.rows("SELECT tablename FROM pg_tables WHERE schemaname = ?", self.schema)}

    def begin(self, session: Session, mode: str) -> None:
        if self._closed:
            raise StoreError("store", "the store is closed", advice="open it again")
        first = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if mode == READ else "BEGIN"
        try:
            session.run(first)
        except self._psycopg.OperationalError:
            if not self.connection.closed:
                raise
            self._connect(create=False)  # the connection was lost before the transaction began: nothing else is lost
            session.run(first)
        if mode == FIRST:
            session.run("SELECT pg_advisory_xact_lock(hashtext(?))", f"weft.{self.schema}")
        if mode in LOCKS:
            session.run(LOCKS[mode])

    def now(self, session: Session) -> float:
        found = session.row("SELECT extract(epoch FROM clock_timestamp())::float8")
        assert found
        return float(found[0])

    def vector_type(self, dimension: int) -> str:
        if dimension > MAX_DIMENSION:
            raise InputError(
                "store", f"must be at most {MAX_DIMENSION} in pgvector", field="dimension", given=dimension
            )
        return f"public.vector({dimension})"

    def pack(self, vector: np.ndarray) -> Any:
        return Packed(struct.pack(">HH", len(vector), 0) + vector.astype(">f4").tobytes())

    def unpack(self, value: Any) -> np.ndarray:
        import numpy as np

        return np.frombuffer(value, ">f4", offset=4).astype("<f4")

    def as_bytes(self, column: str) -> str:
        return f"convert_to({column}, 'UTF8')"

    def watch(self, number: int) -> tuple[str, ...]:
        return ()  # the server itself searches

    def nearest(
        self, session: Session, number: int, query: np.ndarray, k: int, chosen: Sequence[str] | None
    ) -> list[tuple[str, float]]:
        packed = self.pack(query)
        sql = (NEAREST if chosen is None else CHOSEN).format(number=number)
        values = (packed, packed, k, k) if chosen is None else (packed, list(chosen), packed, k, k)
        rows: list[tuple[Any, ...]] = []
        if k <= MOST_CANDIDATES:
            session.run(f"SET LOCAL hnsw.ef_search = {max(LEAST_CANDIDATES, k)}")
            rows = session.rows(sql, *values)
        if len(rows) < k:  # an index returns at most its candidates, without deleted rows
            session.run("SET LOCAL enable_indexscan = off")
            rows = session.rows(sql, *values)
            session.run("SET LOCAL enable_indexscan TO DEFAULT")
        # older stores may have zero vectors, whose distance is NaN and comes last
        return [(name, float(score)) for name, score in rows if not isnan(score)]

    def translate(self, error: Exception) -> WeftError:
        if isinstance(error, self._busy):
            what = f"the server ended this transaction for another one: {_line(error)}"
            return BusyError("store", what, advice="try again")
        return StoreError("store", f"PostgreSQL failed: {_line(error)}")

    def let_go(self) -> None:
        if self.connection.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE:
            self.connection.close()

    def close(self) -> None:
        self._closed = True
        self.connection.close()


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise UnsupportedError(
            "store",
            "PostgreSQL stores need psycopg, which is not installed",
            advice="pip install weft-engine[postgres]",
        ) from None
    return psycopg


def _line(error: Exception) -> str:
    """The error's text as one line without a password: libpq repeats an address that it cannot parse."""
    return without_password(" ".join(str(error).split()))[:300]
