"""A store in PostgreSQL with pgvector: one schema of a database. Needs the extra `weft-engine[postgres]`.

Writers hold the table `served` in a mode in which they do not meet one another; who moves the pointer or a migration
holds it alone. Such locks queue in order, so that a stream of writers cannot keep a cut-over waiting for ever.
"""

from __future__ import annotations

import re
import struct
from math import isnan
from typing import TYPE_CHECKING, Any

from weft.embed.stores.dialect import ALONE, FIRST, READ, SHARED, Session
from weft.embed.stores.values import without_password
from weft.errors import BusyError, InputError, StoreError, UnsupportedError, WeftError

if TYPE_CHECKING:
    import numpy as np

LOCKS = {SHARED: "LOCK TABLE served IN ROW SHARE MODE", ALONE: "LOCK TABLE served IN EXCLUSIVE MODE"}
MAX_DIMENSION = 16_000  # of pgvector's type
LEAST_CANDIDATES, MOST_CANDIDATES = 40, 1000  # of an HNSW index: pgvector's default, and the most it takes
# An index is used for the inner order alone, and the ties are for the outer one: the order of ids.
NEAREST = """SELECT id, 1 - distance FROM (
    SELECT id, vector <=> ? AS distance FROM vectors_{number} ORDER BY vector <=> ? FETCH FIRST (?) ROWS WITH TIES
) AS near ORDER BY distance, id LIMIT ?"""


class Packed(bytes):
    """A vector as pgvector sends it: its dimension and a zero in 16 bits each, then big-endian float32."""


class Postgres:
    """The dialect of a server."""

    id_type = 'TEXT COLLATE "C"'
    for_update = "FOR UPDATE"

    def __init__(self, address: str, *, schema: str, create: bool) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise InputError(f"[store] {schema[:80]!r} is no name of a schema; use a-z, 0-9 and _")
        psycopg = _psycopg()
        self.schema, self._address, self._psycopg = schema, address, psycopg
        self._closed = False
        self.errors: tuple[type[Exception], ...] = (psycopg.Error,)
        # the last: a reader met a generation at the moment it was dropped
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
            raise StoreError(f"[store] the server cannot be reached: {_line(error)}") from None
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
            self.connection.execute("SELECT pg_advisory_xact_lock(hashtext('weft'))")  # or two may make it at once
            self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")
            try:
                self.connection.execute("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public")
            except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
                advice = "install it there (Debian: postgresql-NN-pgvector)"
                raise StoreError(f"[store] the server has no pgvector; {advice}") from None

    def _register(self) -> None:
        """Send and read vectors as bytes: exact, and without a detour through decimal numbers."""
        from psycopg.adapt import Dumper, Loader
        from psycopg.types import TypeInfo

        info = TypeInfo.fetch(self.connection, "vector")
        if info is None:
            raise StoreError("[store] the database has no pgvector: no store was made in it yet")

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
            raise StoreError("[store] the store was closed; open it again")
        first = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if mode == READ else "BEGIN"
        try:
            session.run(first)
        except self._psycopg.OperationalError:
            if not self.connection.closed:
                raise
            self._connect(create=False)  # it was lost before anything began, so nothing is lost with it
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
            raise InputError(f"[store] {dimension} dimensions; pgvector takes {MAX_DIMENSION}")
        return f"public.vector({dimension})"

    def pack(self, vector: np.ndarray) -> Any:
        return Packed(struct.pack(">HH", len(vector), 0) + vector.astype(">f4").tobytes())

    def unpack(self, value: Any) -> np.ndarray:
        import numpy as np

        return np.frombuffer(value, ">f4", offset=4).astype("<f4")

    def as_bytes(self, column: str) -> str:
        return f"convert_to({column}, 'UTF8')"

    def watch(self, number: int) -> tuple[str, ...]:
        return ()  # searches are the server's

    def nearest(self, session: Session, number: int, query: np.ndarray, k: int) -> list[tuple[str, float]]:
        packed = self.pack(query)
        sql, values = NEAREST.format(number=number), (packed, packed, k, k)
        rows: list[tuple[Any, ...]] = []
        if k <= MOST_CANDIDATES:
            session.run(f"SET LOCAL hnsw.ef_search = {max(LEAST_CANDIDATES, k)}")
            rows = session.rows(sql, *values)
        if len(rows) < k:  # an index gives its candidates at most, less those that were deleted
            session.run("SET LOCAL enable_indexscan = off")
            rows = session.rows(sql, *values)
            session.run("SET LOCAL enable_indexscan TO DEFAULT")
        # older stores may have vectors of zeros, which come last, as NaN
        return [(name, float(score)) for name, score in rows if not isnan(score)]

    def translate(self, error: Exception) -> WeftError:
        if isinstance(error, self._busy):
            return BusyError(f"[store] the server gave way to another transaction: {_line(error)}; try again")
        return StoreError(f"[store] the server refused: {_line(error)}")

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
        raise UnsupportedError("[store] psycopg is not installed; `pip install weft-engine[postgres]` has it") from None
    return psycopg


def _line(error: Exception) -> str:
    """What was said, on a line and without a password: libpq repeats an address that it cannot read."""
    return without_password(" ".join(str(error).split()))[:300]
