"""What goes into a store, checked before it does: ids, texts and vectors; and the checksum a vector is kept with."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np

ID_BYTES = 512
TEXT_BYTES = 256 << 20


def check_ids(ids: Sequence[str]) -> None:
    """Ids are strings of 1 to ID_BYTES bytes."""
    for name in ids:
        if not isinstance(name, str):
            raise InputError(f"[store] an id is {type(name).__name__}; ids are strings")
        if not 0 < _size(name, "an id") <= ID_BYTES:
            raise InputError(f"[store] the id {name[:40]!r} has {len(name.encode())} bytes; 1 to {ID_BYTES} are taken")


def check_documents(documents: Mapping[str, str]) -> None:
    """Texts are strings that UTF-8 has, without NUL, which PostgreSQL's texts cannot hold."""
    check_ids(list(documents))
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


def plain(text: str, length: int) -> str:
    """What an error said as one line that any database keeps, at most `length` characters of it."""
    return " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())[:length]


def check_vectors(vectors: np.ndarray, count: int, dimension: int) -> np.ndarray:
    """The vectors as float32 [count, dimension], every number finite."""
    import numpy as np

    made = np.ascontiguousarray(vectors, np.float32)
    if made.shape != (count, dimension):
        raise InputError(f"[store] vectors of shape {list(made.shape)}; {[count, dimension]} is wanted")
    if not np.isfinite(made).all():
        bad = int(np.flatnonzero(~np.isfinite(made).all(axis=1))[0])
        raise InputError(f"[store] vector {bad} has a number that is not finite; the model or its input is at fault")
    return made


def checksum(fingerprint: str, name: str, revision: int, vector: np.ndarray) -> int:
    """CRC-32 of all that a row of vectors says, so that a damaged one is not served."""
    head = f"{fingerprint}\n{revision}\n{name}\n".encode()
    return zlib.crc32(vector.astype("<f4", copy=False).tobytes(), zlib.crc32(head))
