"""What goes into a store, checked before it does: ids, texts and vectors; and the checksum a vector is kept with."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np

ID_BYTES = 512
TEXT_BYTES = 256 << 20
# Norms whose squares float32 has, as its normal numbers: databases add the squares in it.
LEAST_NORM, MOST_NORM = 2.0**-63, 2.0**63


def checked_ids(ids: str | Iterable[str]) -> list[str]:
    """Ids as a list: strings of 1 to ID_BYTES bytes. A string is one id, never the ids that its characters would be."""
    if not isinstance(ids, (str, Iterable)):
        raise InputError(f"[store] ids are {type(ids).__name__}; give an id, or a list of ids")
    listed = [ids] if isinstance(ids, str) else list(ids)
    for name in listed:
        if not isinstance(name, str):
            raise InputError(f"[store] an id is {type(name).__name__}; ids are strings")
        if not 0 < _size(name, "an id") <= ID_BYTES:
            raise InputError(f"[store] the id {name[:40]!r} has {len(name.encode())} bytes; 1 to {ID_BYTES} are taken")
    return listed


def check_model(fingerprint: str, dimension: int, model: str) -> None:
    """What names a generation: a fingerprint, how many numbers its vectors have, and a name for people."""
    for what, text in (("a fingerprint", fingerprint), ("a model's name", model)):
        if not isinstance(text, str):
            raise InputError(f"[store] {what} is {type(text).__name__}; a string is wanted")
        _size(text, what)
    if not fingerprint:
        raise InputError("[store] the fingerprint is empty; vectors could not be told apart")
    if type(dimension) is not int or dimension < 1:
        raise InputError(f"[store] the dimension is {dimension!r:.40}; a whole number of at least 1 is wanted")


def check_k(k: int) -> int:
    """How many documents a search gives."""
    whole = getattr(k, "__index__", None)
    if whole is None or isinstance(k, bool) or whole() < 1:
        raise InputError(f"[store] k is {k!r:.40}; a whole number of at least 1 is needed")
    return int(whole())


def check_documents(documents: Mapping[str, str]) -> None:
    """Texts are strings that UTF-8 has, without NUL, which PostgreSQL's texts cannot hold."""
    if not isinstance(documents, Mapping):
        raise InputError(f"[store] documents are {type(documents).__name__}; give a dict of ids and their texts")
    checked_ids(documents)
    for name, text in documents.items():
        if not isinstance(text, str):
            raise InputError(f"[store] the text of {name[:40]!r} is {type(text).__name__}; texts are strings")
        if _size(text, f"the text of {name[:40]!r}") > TEXT_BYTES:
            raise InputError(f"[store] the text of {name[:40]!r} is over {TEXT_BYTES >> 20} MiB; cut it")


def _size(text: str, what: str) -> int:
    if "\0" in text:
        raise InputError(f"[store] {what} has a NUL character; take it out")
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InputError(f"[store] {what} is not Unicode at character {error.start}; mend it") from None


def without_password(text: str) -> str:
    """An address, or a sentence that quotes one, without the password in it."""
    text = re.sub(r"(://[^:/@\s]*):[^?\s]*@", r"\1@", text)
    return re.sub(r"([?&])password=[^&\s\"']*&?", r"\1", text).rstrip("?&")


def plain(text: str, length: int) -> str:
    """What an error said as one line that any database keeps, at most `length` characters of it."""
    return " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())[:length]


def check_shape(vectors: Any, count: int, dimension: int) -> np.ndarray:
    """The vectors as float32 [count, dimension]."""
    import numpy as np

    try:
        made = np.ascontiguousarray(vectors, np.float32)
    except (TypeError, ValueError):
        raise InputError(
            f"[store] {type(vectors).__name__} that is no vectors; {[count, dimension]} is wanted"
        ) from None
    if made.shape != (count, dimension):
        raise InputError(f"[store] vectors of shape {list(made.shape)}; {[count, dimension]} is wanted")
    return made


def check_vectors(vectors: Any, count: int, dimension: int) -> np.ndarray:
    """The vectors as `check_shape` gives them, every number finite, each with a direction: those of zeros have no
    cosine with anything."""
    import numpy as np

    made = check_shape(vectors, count, dimension)
    if not np.isfinite(made).all():
        bad = int(np.flatnonzero(~np.isfinite(made).all(axis=1))[0])
        raise InputError(f"[store] vector {bad} has a number that is not finite; the model or its input is at fault")
    norms = np.sqrt(np.einsum("ij,ij->i", made, made, dtype=np.float64))
    wrong = np.flatnonzero((norms < LEAST_NORM) | (norms > MOST_NORM))
    if wrong.size:
        raise InputError(
            f"[store] vector {wrong[0]} has the norm {norms[wrong[0]]:.3g}, with which cosine cannot be computed; "
            f"{LEAST_NORM:.0e} to {MOST_NORM:.0e} are taken"
        )
    return made


def checksum(fingerprint: str, name: str, revision: int, vector: np.ndarray) -> int:
    """CRC-32 of all that a row of vectors says, so that a damaged one is not served."""
    head = f"{fingerprint}\n{revision}\n{name}\n".encode()
    return zlib.crc32(vector.astype("<f4", copy=False).tobytes(), zlib.crc32(head))
