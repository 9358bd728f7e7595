"""Generations: each holds the vectors of one fingerprint, in a table of its own."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.embed.stores import schema
from weft.embed.stores.dialect import Dialect, Session
from weft.embed.stores.values import checksum
from weft.errors import FingerprintError, StoreError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

READ_ROWS = 1024  # vectors in memory at a time
Row = tuple[str, int, "np.ndarray"]  # id, revision of its text, float32 [dimension]


@frozen
class Generation:
    number: int
    fingerprint: str
    dimension: int
    model: str


def generations(session: Session) -> dict[str, Generation]:
    """The store's generations, by fingerprint."""
    rows = session.rows("SELECT number, fingerprint, dimension, model FROM generations")
    for number, fingerprint, dimension, model in rows:  # the number becomes part of SQL, and the file may be hostile
        if list(map(type, (number, fingerprint, dimension, model))) != [int, str, int, str]:
            raise StoreError("store", "the table generations is damaged", advice="restore a backup")
    return {row[1]: Generation(*row) for row in rows}


def find(session: Session, fingerprint: str) -> Generation:
    known = generations(session)
    if fingerprint not in known:
        raise FingerprintError(
            "store",
            f"the store has no vectors of {fingerprint[:80]}; it has those of {', '.join(known) or 'no model'}",
        )
    return known[fingerprint]


def create(dialect: Dialect, session: Session, fingerprint: str, dimension: int, model: str) -> Generation:
    """Create an empty generation. Numbers are never reused, so a table never becomes another model's."""
    found = session.row(f"SELECT next_generation FROM {schema.MARK}")
    assert found
    made = Generation(int(found[0]), fingerprint, dimension, model)
    session.run(f"UPDATE {schema.MARK} SET next_generation = next_generation + 1")
    session.run(
        "INSERT INTO generations (number, fingerprint, dimension, model) VALUES (?, ?, ?, ?)",
        *(made.number, fingerprint, dimension, model),
    )
    columns = {"id": dialect.id_type, "vector": dialect.vector_type(dimension)}
    session.run(schema.VECTORS.format(number=made.number, **columns))
    watch(dialect, session, made)
    return made


def watch(dialect: Dialect, session: Session, generation: Generation) -> None:
    """Make the database count changes of a generation's vectors, for `changes`."""
    for statement in dialect.watch(generation.number):
        session.run(statement)


def changes(session: Session, generation: Generation) -> Any:
    """A value that differs after every committed change of a generation's vectors."""
    return session.row("SELECT changes FROM generations WHERE number = ?", generation.number)


def canaries(session: Session, generation: Generation) -> tuple[list[str], np.ndarray] | None:
    """Canary texts and their stored vectors, float32 [texts, dimension]; None where there are none."""
    import numpy as np

    row = session.row("SELECT canaries FROM generations WHERE number = ?", generation.number)
    if row is None or row[0] is None:
        return None
    try:
        kept = json.loads(row[0])
        texts = [str(text) for text in kept["texts"]]
        numbers = np.frombuffer(b64decode(kept["vectors"], validate=True), "<f4")
        return texts, numbers.reshape(len(texts), generation.dimension)
    except (ValueError, KeyError, TypeError):
        raise StoreError("store", "the canaries of a generation are damaged", advice="restore a backup") from None


def keep_canaries(session: Session, generation: Generation, texts: Sequence[str], vectors: np.ndarray) -> None:
    """Store canary texts and their vectors, unless the generation already has some."""
    data = b64encode(vectors.astype("<f4", copy=False).tobytes()).decode()
    session.run(
        "UPDATE generations SET canaries = ? WHERE number = ? AND canaries IS NULL",
        *(json.dumps({"texts": list(texts), "vectors": data}), generation.number),
    )


def drop(session: Session, generation: Generation) -> None:
    session.run(f"DROP TABLE vectors_{generation.number}")
    for table in ("todo", "skips"):
        session.run(f"DELETE FROM {table} WHERE generation = ?", generation.number)
    session.run("DELETE FROM generations WHERE number = ?", generation.number)


def write(
    dialect: Dialect, session: Session, generation: Generation, rows: Iterable[tuple[str, int, np.ndarray]]
) -> None:
    """Write vectors (id, revision of the text, float32 [dimension]); the documents no longer wait or are skipped."""
    listed = [
        (name, revision, checksum(generation.fingerprint, name, revision, vector), dialect.pack(vector))
        for name, revision, vector in rows
    ]
    session.each(
        f"INSERT INTO vectors_{generation.number} (id, revision, checksum, vector) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, checksum = excluded.checksum, "
        "vector = excluded.vector",
        listed,
    )
    forget(session, generation, [row[0] for row in listed])


def forget(session: Session, generation: Generation, ids: Sequence[str]) -> None:
    """Remove documents from the tables todo and skips."""
    for table in ("todo", "skips"):
        session.each(f"DELETE FROM {table} WHERE generation = ? AND id = ?", [(generation.number, i) for i in ids])


def erase(session: Session, generation: Generation, ids: Sequence[str]) -> None:
    """Remove the vectors of documents."""
    session.each(f"DELETE FROM vectors_{generation.number} WHERE id = ?", [(name,) for name in ids])


def wait(session: Session, generation: Generation, ids: Sequence[str]) -> None:
    """Let documents wait for new vectors; those of their older texts are deleted."""
    erase(session, generation, ids)
    forget(session, generation, ids)
    session.each("INSERT INTO todo (generation, id) VALUES (?, ?)", [(generation.number, name) for name in ids])


def waiting(session: Session, generation: Generation, ids: Sequence[str]) -> set[str]:
    """Those of `ids` that wait for a vector."""
    sql = "SELECT id FROM todo WHERE generation = ? AND id IN ({ids})"
    return {row[0] for row in session.among(sql, ids, generation.number)}


def left_out(session: Session, generation: Generation, ids: Sequence[str]) -> set[str]:
    """Those of `ids` that are skipped."""
    sql = "SELECT id FROM skips WHERE generation = ? AND id IN ({ids})"
    return {row[0] for row in session.among(sql, ids, generation.number)}


def skipped(session: Session, number: int | None) -> dict[str, int]:
    """How many documents generation `number` skips, by reason."""
    sql = "SELECT reason, count(*) FROM skips WHERE generation = ? GROUP BY reason ORDER BY reason"
    return {reason: int(n) for reason, n in session.rows(sql, number)}


def skip(session: Session, generation: Generation, rows: Sequence[tuple[str, int, str, str]]) -> None:
    """Mark documents as skipped: id, revision, reason, detail."""
    forget(session, generation, [row[0] for row in rows])
    session.each("INSERT INTO skips VALUES (?, ?, ?, ?, ?)", [(generation.number, *row) for row in rows])


def page(dialect: Dialect, session: Session, generation: Generation, last: str) -> list[Row]:
    """The first READ_ROWS rows after the id `last`, ordered by id; a damaged row is an error."""
    sql = f"SELECT id, revision, checksum, vector FROM vectors_{generation.number} WHERE id > ? ORDER BY id LIMIT ?"
    found: list[Row] = []
    for row in session.rows(sql, last, READ_ROWS):
        found.append(_checked(dialect, generation, row, found[-1][0] if found else last))
    return found


def vector_count(session: Session, generation: Generation) -> int:
    """How many vectors a generation has."""
    found = session.row(f"SELECT count(*) FROM vectors_{generation.number}")
    assert found
    return int(found[0])


def stamps(session: Session, generation: Generation) -> dict[str, tuple[int, int]]:
    """The revision and checksum of every row, by id: they show which rows changed, without reading vectors."""
    rows = session.rows(f"SELECT id, revision, checksum FROM vectors_{generation.number}")
    return {name: (revision, kept) for name, revision, kept in rows}


def chosen(dialect: Dialect, session: Session, generation: Generation, ids: Sequence[str]) -> Iterator[list[Row]]:
    """The rows of `ids`, a page at a time."""
    sql = f"SELECT id, revision, checksum, vector FROM vectors_{generation.number} WHERE id IN ({{ids}})"
    for first in range(0, len(ids), READ_ROWS):
        found = session.among(sql, ids[first : first + READ_ROWS])
        yield [_checked(dialect, generation, row, "") for row in found]


def read(dialect: Dialect, session: Session, generation: Generation) -> Iterator[list[Row]]:
    """Every row, a page at a time."""
    last = ""
    while rows := page(dialect, session, generation, last):
        yield rows
        last = rows[-1][0]


def _checked(dialect: Dialect, generation: Generation, row: Sequence[Any], last: str) -> Row:
    """A row of vectors after the id `last`, once its checksum is verified."""
    name, revision, kept, value = row
    vector = dialect.unpack(value)
    whole = isinstance(name, str) and isinstance(revision, int) and len(vector) == generation.dimension
    if not whole or name <= last or checksum(generation.fingerprint, name, revision, vector) != kept:
        raise StoreError(
            "store",
            f"the vector of document {str(name)[:80]!r} is damaged",
            advice="restore a backup, or embed it again",
        )
    return name, revision, vector
