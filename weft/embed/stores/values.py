"""Checks of what goes into a store (ids, texts, vectors), and the checksum that each vector is stored with."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.errors import InputError, StoreError

if TYPE_CHECKING:
    import numpy as np

ID_BYTES = 512
TEXT_BYTES = 256 << 20
FIELDS_BYTES = 1 << 20
# Norms whose squares are normal float32 numbers: databases add the squares in float32.
LEAST_NORM, MOST_NORM = 2.0**-63, 2.0**63


def checked_ids(ids: str | Iterable[str]) -> list[str]:
    """Ids as a list: strings of 1 to ID_BYTES bytes. A string is one id, never a list of its characters."""
    if not isinstance(ids, (str, Iterable)):
        raise InputError("store", "must be an id or a list of ids", field="ids", given=ids)
    listed = [ids] if isinstance(ids, str) else list(ids)
    for at, name in enumerate(listed):
        if not isinstance(name, str):
            raise InputError("store", "must be a string", field="id", index=at, given=name)
        size = _size(name, "id", at)
        if not 0 < size <= ID_BYTES:
            raise InputError(
                "store", f"has {size} bytes and must have 1 to {ID_BYTES}", field="id", index=at, given=name
            )
    return listed


def check_model(fingerprint: str, dimension: int, model: str) -> None:
    """Check what names a generation: a fingerprint, the dimension of its vectors, and the model's name for people."""
    for field, text in (("fingerprint", fingerprint), ("model", model)):
        if not isinstance(text, str):
            raise InputError("store", "must be a string", field=field, given=text)
        _size(text, field)
    if not fingerprint:
        raise InputError("store", "must not be empty: it tells the vectors of models apart", field="fingerprint")
    if type(dimension) is not int or dimension < 1:
        raise InputError("store", "must be a whole number of at least 1", field="dimension", given=dimension)


def check_k(k: int) -> int:
    """How many documents a search returns, as an int."""
    whole = getattr(k, "__index__", None)
    if whole is None or isinstance(k, bool) or whole() < 1:
        raise InputError("store", "must be a whole number of at least 1", field="k", given=k)
    return int(whole())


class Chunk(NamedTuple):
    """The place of a chunk: the id of its document, and start and end in the document's text, in characters."""

    document: str
    start: int
    end: int


class Content(NamedTuple):
    """What is stored under an id: a text, the document's fields, and for a chunk its place in the document."""

    text: str
    fields: Mapping[str, Any] = {}
    chunk: Chunk | None = None


def contents_of(documents: Mapping[str, str | Content]) -> dict[str, Content]:
    """The documents of a call, checked. Texts must be valid Unicode without NUL, which PostgreSQL cannot store."""
    if not isinstance(documents, Mapping):
        raise InputError("store", "must be a dict of ids and texts", field="documents", given=documents)
    checked_ids(documents)
    made: dict[str, Content] = {}
    for name, given in documents.items():
        content = given if isinstance(given, Content) else Content(given)
        field = f"documents[{name[:40]!r}]"
        if not isinstance(content.text, str):
            raise InputError("store", "must be a string", field=field, given=content.text)
        if _size(content.text, field) > TEXT_BYTES:
            raise InputError(
                "store", f"is longer than {TEXT_BYTES >> 20} MiB", field=field, advice="split it into several documents"
            )
        if content.chunk is not None:
            _check_chunk(name, content.chunk)
        made[name] = content
    return made


def _check_chunk(name: str, chunk: Any) -> None:
    """Check the place of a chunk."""
    field = f"documents[{name[:40]!r}].chunk"
    if not isinstance(chunk, Chunk) or not all(type(at) is int for at in chunk[1:]):
        raise InputError("store", "must be a Chunk: the document's id, start and end", field=field, given=chunk)
    checked_ids([chunk.document])
    if chunk.document == name or not 0 <= chunk.start <= chunk.end:
        raise InputError("store", "must name another id, and a start before its end", field=field, given=chunk)


def written_fields(name: str, fields: Mapping[str, Any]) -> str | None:
    """The fields of a document as the store keeps them: a JSON object, None for no fields."""
    where = f"documents[{name[:40]!r}].fields"
    if not isinstance(fields, Mapping) or not all(isinstance(key, str) for key in fields):
        raise InputError("store", "must be a dict with strings as keys", field=where, given=fields)
    if not fields:
        return None
    try:
        line = json.dumps(dict(fields), allow_nan=False)  # escapes keep NUL and half surrogates out of the database
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("store", f"cannot be written as JSON: {error}", field=where) from None
    if len(line) > FIELDS_BYTES:
        raise InputError("store", f"must have at most {FIELDS_BYTES >> 10} KiB as JSON", field=where)
    return line


def read_fields(line: Any) -> dict[str, Any]:
    """The fields that `written_fields` wrote."""
    if line is None:
        return {}
    try:
        found = json.loads(line)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StoreError("store", "the fields of a document are damaged", advice="restore a backup")
    return found


def _size(text: str, field: str, index: int | None = None) -> int:
    """The bytes of `text` in UTF-8."""
    if "\0" in text:
        raise InputError("store", "contains a NUL character", field=field, index=index, advice="remove it")
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InputError(
            "store",
            f"is not valid Unicode at character {error.start}",
            field=field,
            index=index,
            advice="remove or replace that character",
        ) from None


def without_password(text: str) -> str:
    """An address, or a sentence that quotes one, without the password in it."""
    text = re.sub(r"(://[^:/@\s]*):[^?\s]*@", r"\1@", text)
    return re.sub(r"([?&])password=[^&\s\"']*&?", r"\1", text).rstrip("?&")


def one_line(text: str, length: int) -> str:
    """An error's text as one line that any database can store, cut to `length` characters."""
    return " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())[:length]


def check_shape(vectors: Any, count: int, dimension: int) -> np.ndarray:
    """The vectors as float32 [count, dimension]."""
    import numpy as np

    what = f"must be numbers of shape {[count, dimension]}"
    try:
        made = np.ascontiguousarray(vectors, np.float32)
    except (TypeError, ValueError):
        raise InputError("store", what, field="vectors", given=vectors) from None
    if made.shape != (count, dimension):
        raise InputError("store", what, field="vectors", given=list(made.shape))
    return made


def check_vectors(vectors: Any, count: int, dimension: int) -> np.ndarray:
    """The vectors as float32 [count, dimension], all finite, with norms for which cosine can be computed."""
    import numpy as np

    made = check_shape(vectors, count, dimension)
    if not np.isfinite(made).all():
        bad = int(np.flatnonzero(~np.isfinite(made).all(axis=1))[0])
        raise InputError(
            "store", "contains NaN or infinity", field="vector", index=bad, advice="check the model and its input"
        )
    norms = np.sqrt(np.einsum("ij,ij->i", made, made, dtype=np.float64))
    wrong = np.flatnonzero((norms < LEAST_NORM) | (norms > MOST_NORM))
    if wrong.size:
        raise InputError(
            "store",
            f"has norm {norms[wrong[0]]:.3g}; cosine needs a norm from {LEAST_NORM:.0e} to {MOST_NORM:.0e}",
            field="vector",
            index=int(wrong[0]),
        )
    return made


def checksum(fingerprint: str, name: str, revision: int, vector: np.ndarray) -> int:
    """CRC-32 of a row of vectors, so that a damaged vector is never served."""
    head = f"{fingerprint}\n{revision}\n{name}\n".encode()
    return zlib.crc32(vector.astype("<f4", copy=False).tobytes(), zlib.crc32(head))
