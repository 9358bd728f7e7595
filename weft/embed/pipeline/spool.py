"""The spool: vectors and progress of an unfinished run, in a folder beside the output.

Vectors are appended, and the digests of their texts beside them. The state file is replaced after each batch and says
how many vectors count; what a killed run appended after that is cut off when the next run resumes, so the result is the
same as that of an uninterrupted run. If the input has changed since, the run begins again at the first row, and vectors
of texts that are still there come from the earlier run. Only the run that holds the lock changes anything here. A spool
without rows is deleted, and its settings are ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from weft.errors import BusyError, FormatError, InputError
from weft.weights.files import replacing

if TYPE_CHECKING:
    import numpy as np

DIGEST_BYTES = 16
VERSION = 2
VECTORS, TEXTS, STATE = "vectors", "texts", "state.json"
EARLIER = "earlier-"  # before the names of the files of a run whose input has changed since
TEXT_RECORD = [("digest", "u1", (DIGEST_BYTES,)), ("dropped", "<u4")]  # dropped: tokens that were cut off
FIXED = ("path", "chunks")  # what a source must keep for its rows to be the same ones
COUNTS = ("rows", "earlier", "dropped_texts", "dropped_tokens")
COPIED = 1 << 22  # bytes at once
ATTEMPTS = 10  # to open: a run that ends at the same time removes the folder


def text_digest(text: str) -> bytes:
    """The first bytes of the SHA-256 of a text: enough that two texts never share them by accident."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()[:DIGEST_BYTES]


class Known:
    """Records of texts with these `digests`, uint8 [n, 16]; `read` gives those of some rows."""

    def __init__(self, digests: np.ndarray, read: Callable[[np.ndarray], np.ndarray]) -> None:
        import numpy as np

        halves = np.ascontiguousarray(digests).view("<u8").reshape(-1, 2)
        self._order = np.argsort(halves[:, 0], kind="stable")
        self._first, self._second = halves[self._order, 0], halves[self._order, 1]
        self.read = read

    def find(self, digests: Sequence[bytes]) -> np.ndarray:
        """The row of each digest, -1 where it is not known."""
        import numpy as np

        if not len(self._order) or not digests:
            return np.full(len(digests), -1)
        wanted = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
        places = np.minimum(np.searchsorted(self._first, wanted[:, 0]), len(self._order) - 1)
        right = (self._first[places] == wanted[:, 0]) & (self._second[places] == wanted[:, 1])
        return np.where(right, self._order[places], -1)


class Spool:
    """Records of `dtype` in the folder `place`; `settings` is everything that decides their values."""

    def __init__(self, place: Path, settings: Mapping[str, Any], dtype: np.dtype, *, restart: bool = False) -> None:
        import numpy as np

        self.place = place
        self.dtype = dtype
        self._text_dtype = np.dtype(TEXT_RECORD)
        self._settings = json.loads(json.dumps({"version": VERSION, **settings}))
        self._file = _opened(place)
        self._texts = open(place / TEXTS, "a+b")  # noqa: SIM115 (closed by _close)
        try:
            if restart:
                (place / STATE).unlink(missing_ok=True)
            self._go_on()
        except BaseException:
            self._close()
            raise

    def _go_on(self) -> None:
        state = self._read_state()
        if state is None or not (state["rows"] or state["earlier"]):
            state = {"settings": self._settings, **dict.fromkeys(COUNTS, 0)}
        elif changed := _changes(state["settings"], self._settings):
            raise InputError(
                "embed",
                f"{self.place.name} has {state['rows'] or state['earlier']} rows of an unfinished run with another "
                f"{changed}",
                advice="repeat that command to resume it, or start over with --restart",
            )
        self.rows, self.earlier, self.dropped_texts, self.dropped_tokens = (int(state[name]) for name in COUNTS)
        for file, size in self._sizes().items():
            if os.fstat(file.fileno()).st_size < self.rows * size:
                raise self._too_short()
            file.truncate(self.rows * size)
        if self.rows and state["settings"].get("source") != self._settings.get("source"):
            self._set_aside()
        self.resumed = self.rows
        self._keep()

    def _sizes(self) -> dict[BinaryIO, int]:
        """The two files of rows, and the bytes of a row in each."""
        return {self._file: self.dtype.itemsize, self._texts: self._text_dtype.itemsize}

    def _set_aside(self) -> None:
        """Move all rows to those of earlier runs; the state file decides which of both places counts."""
        for file, size in self._sizes().items():
            with open(self.place / f"{EARLIER}{Path(file.name).name}", "a+b") as kept:
                kept.truncate(self.earlier * size)
                file.seek(0)
                while data := file.read(COPIED):
                    kept.write(data)
                kept.flush()
                os.fsync(kept.fileno())
        self.earlier += self.rows
        self.rows = self.dropped_texts = self.dropped_tokens = 0
        self._keep()
        for file in self._sizes():
            file.truncate(0)

    def known(self) -> Known | None:
        """The vectors of runs whose input has changed since; `earlier_dropped` has the tokens cut from each text."""
        import numpy as np

        if not self.earlier:
            return None
        texts = np.fromfile(self.place / f"{EARLIER}{TEXTS}", self._text_dtype, self.earlier)
        size = (self.place / f"{EARLIER}{VECTORS}").stat().st_size
        if len(texts) < self.earlier or size < self.earlier * self.dtype.itemsize:
            raise self._too_short()
        self.earlier_dropped = texts["dropped"].astype(np.int64)
        return Known(texts["digest"], self._earlier_records)

    def _earlier_records(self, rows: np.ndarray) -> np.ndarray:
        import numpy as np

        parts = []
        with open(self.place / f"{EARLIER}{VECTORS}", "rb") as file:
            for row in rows:
                file.seek(int(row) * self.dtype.itemsize)
                parts.append(file.read(self.dtype.itemsize))
        return np.frombuffer(b"".join(parts), self.dtype)

    def _read_state(self) -> dict[str, Any] | None:
        try:
            state = json.loads((self.place / STATE).read_bytes())
            state.setdefault("earlier", 0)  # written by an earlier version, which the settings tell
            numbers = [state[name] for name in COUNTS]
            if not all(isinstance(n, int) and n >= 0 for n in numbers) or not isinstance(state["settings"], dict):
                raise ValueError("a field has the wrong type")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                "embed", f"cannot read {self.place.name}/{STATE}: {error}", advice="start over with --restart"
            ) from None
        return dict(state)

    def append(self, records: np.ndarray, digests: Sequence[bytes], dropped: np.ndarray) -> None:
        """Append records, with the digests of their texts and how many tokens of each were cut. On return they are on
        disk and count."""
        import numpy as np

        texts = np.empty(len(records), self._text_dtype)
        texts["digest"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
        texts["dropped"] = dropped
        for file, data in ((self._file, records), (self._texts, texts)):
            file.write(data.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.rows += len(records)
        self.dropped_texts += int((dropped > 0).sum())
        self.dropped_tokens += int(dropped.sum())
        self._keep()

    def _keep(self) -> None:
        counts = {name: getattr(self, name) for name in COUNTS}
        with replacing(self.place / STATE) as out:
            out.write(json.dumps({"settings": self._settings, **counts}).encode())

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """All records, `count` at a time."""
        for first in range(0, self.rows, count):
            yield self.records(first, min(count, self.rows - first))

    def records(self, first: int, count: int) -> np.ndarray:
        """`count` records from `first` on, read through the locked handle: the path may be another file by now."""
        import numpy as np

        self._file.seek(first * self.dtype.itemsize)
        data = self._file.read(count * self.dtype.itemsize)
        if len(data) != count * self.dtype.itemsize:
            raise self._too_short()
        return np.frombuffer(data, self.dtype)

    def _too_short(self) -> FormatError:
        return FormatError(
            "embed",
            f"{self.place.name}/{VECTORS} is shorter than its state says",
            advice="start over with --restart",
        )

    def remove(self) -> None:
        """Delete the spool of a finished run. If the folder has other files, it stays, with them."""
        if os.name == "nt":  # Windows cannot remove an open file, and has no lock to lose
            self._close()
        names = (STATE, TEXTS, f"{EARLIER}{TEXTS}", f"{EARLIER}{VECTORS}", VECTORS)
        for path in (*self.place.glob(f".{STATE}.*.part"), *(self.place / name for name in names)):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.place.rmdir()
        self._close()

    def _close(self) -> None:
        self._texts.close()
        self._file.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not (self.rows or self.earlier) and not self._file.closed:
            self.remove()
        self._close()


def is_spool(folder: Path) -> bool:
    """Whether this folder is the spool of a stopped run."""
    return folder.suffix == ".part" and (folder / STATE).is_file() and (folder / VECTORS).is_file()


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The settings that differ, in words; "" if rows of `then` are valid, each for its text, in a run with `now`."""
    return " and ".join(
        f"{name} ({_both(then.get(name), now[name])})" for name in now if _differs(name, then.get(name), now[name])
    )


def _differs(name: str, then: Any, now: Any) -> bool:
    if (name, then) == ("truncate", "error"):  # no text was cut so far
        return False
    if isinstance(then, dict) and isinstance(now, dict):  # a source, whose content may change
        return any(then.get(part) != now.get(part) for part in FIXED)
    return bool(then != now)


def _both(then: Any, now: Any) -> str:
    if isinstance(then, dict) and isinstance(now, dict):
        name = next(name for name in FIXED if then.get(name) != now.get(name))
        if name == "chunks":
            return (
                f"chunks of {then.get(name)!s:.40} tokens before, {now.get(name)} now; the second number is the overlap"
            )
        then, now = then.get(name), now.get(name)
    return f"{str(then)[:60]} before, {str(now)[:60]} now"


def _opened(place: Path) -> BinaryIO:
    """The file of vectors, opened and locked."""
    for _ in range(ATTEMPTS):
        try:
            place.mkdir(parents=True, exist_ok=True)
            file = open(place / VECTORS, "a+b")  # noqa: SIM115 (closed by Spool)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError("embed", f"cannot write {place}: {error.strerror}", advice="write elsewhere") from None
        try:
            _lock(file, place)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(place / VECTORS)):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()
    raise _busy(place)


def _lock(file: BinaryIO, place: Path) -> None:
    """Lock the spool for one run; the system releases the lock when the process ends."""
    with contextlib.suppress(ImportError):  # Windows has no fcntl
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _busy(place) from None


def _busy(place: Path) -> BusyError:
    return BusyError("embed", f"another run is writing to {place.name}", advice="wait until it has ended")
