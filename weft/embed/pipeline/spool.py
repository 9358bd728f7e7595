"""The spool: vectors and progress of an unfinished run, in a folder beside the output.

Vectors are appended. The state file is replaced after each batch and says how many vectors count; what a killed run
appended after that is cut off when the next run resumes, so the result is the same as that of an uninterrupted run.
Only the run that holds the lock changes anything here. A spool without rows is deleted, and its settings are ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from weft.errors import BusyError, FormatError, InputError
from weft.weights.files import replacing

if TYPE_CHECKING:
    import numpy as np

VERSION = 1
VECTORS, STATE = "vectors", "state.json"
ATTEMPTS = 10  # to open: a run that ends at the same time removes the folder


class Spool:
    """Records of `dtype` in the folder `place`; `settings` is everything that decides their values."""

    def __init__(self, place: Path, settings: Mapping[str, Any], dtype: np.dtype, *, restart: bool = False) -> None:
        self.place = place
        self.dtype = dtype
        self._settings = json.loads(json.dumps({"version": VERSION, **settings}))
        self._file = _opened(place)
        try:
            if restart:
                (place / STATE).unlink(missing_ok=True)
            self._go_on()
        except BaseException:
            self._file.close()
            raise

    def _go_on(self) -> None:
        state = self._read_state()
        if state is None or not state["rows"]:
            state = {"rows": 0, "dropped_texts": 0, "dropped_tokens": 0}
        elif changed := _changes(state["settings"], self._settings):
            raise InputError(
                "embed",
                f"{self.place.name} has {state['rows']} rows of an unfinished run with another {changed}",
                advice="repeat that command to resume it, or start over with --restart",
            )
        self.rows: int = state["rows"]
        self.dropped_texts: int = state["dropped_texts"]
        self.dropped_tokens: int = state["dropped_tokens"]
        self.resumed = self.rows
        if os.fstat(self._file.fileno()).st_size < self.rows * self.dtype.itemsize:
            raise self._too_short()
        self._file.truncate(self.rows * self.dtype.itemsize)
        self._keep()

    def _read_state(self) -> dict[str, Any] | None:
        try:
            state = json.loads((self.place / STATE).read_bytes())
            numbers = [state[name] for name in ("rows", "dropped_texts", "dropped_tokens")]
            if not all(isinstance(n, int) and n >= 0 for n in numbers) or not isinstance(state["settings"], dict):
                raise ValueError("a field has the wrong type")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                "embed", f"cannot read {self.place.name}/{STATE}: {error}", advice="start over with --restart"
            ) from None
        return dict(state)

    def append(self, records: np.ndarray, dropped: np.ndarray) -> None:
        """Append records; `dropped` is how many tokens of each text were cut. On return they are on disk and count."""
        self._file.write(records.tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += len(records)
        self.dropped_texts += int((dropped > 0).sum())
        self.dropped_tokens += int(dropped.sum())
        self._keep()

    def _keep(self) -> None:
        counts = {name: getattr(self, name) for name in ("rows", "dropped_texts", "dropped_tokens")}
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
            self._file.close()
        for path in (self.place / STATE, *self.place.glob(f".{STATE}.*.part"), self.place / VECTORS):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.place.rmdir()
        self._file.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.rows and not self._file.closed:
            self.remove()
        self._file.close()


def is_spool(folder: Path) -> bool:
    """Whether this folder is the spool of a stopped run."""
    return folder.suffix == ".part" and (folder / STATE).is_file() and (folder / VECTORS).is_file()


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The settings that differ, in words; "" if the rows of `then` are valid for a run with `now`."""
    return " and ".join(
        f"{name} ({_both(then.get(name), now[name])})"
        for name in now
        if then.get(name) != now[name] and (name, then.get(name)) != ("truncate", "error")  # no text was cut so far
    )


def _both(then: Any, now: Any) -> str:
    if isinstance(then, dict) and isinstance(now, dict):
        name = next((name for name in ("path", "chunks") if then.get(name) != now.get(name)), None)
        if name is None:
            return f"{Path(str(now.get('path'))).name} has changed since"
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
