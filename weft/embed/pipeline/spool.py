"""The vectors of a run that is not finished, and how far it has come: a folder beside the output.

Vectors are appended; the state is replaced whole after each batch, and says how many of them count. What a killed run
appended after that is cut off when the next one goes on, so that its vectors are those of a run nobody stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from weft.errors import BusyError, FormatError, InputError
from weft.weights.files import replacing

if TYPE_CHECKING:
    import numpy as np

VERSION = 1


class Spool:
    """Records of `dtype` (a numpy structure) in the folder `place`; `settings` is all that decides them."""

    def __init__(self, place: Path, settings: Mapping[str, Any], dtype: np.dtype, *, restart: bool = False) -> None:
        self.place = place
        self.dtype = dtype
        self._settings = json.loads(json.dumps({"version": VERSION, **settings}))
        if restart and place.exists():
            shutil.rmtree(place)
        place.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = open(place / "vectors", "ab")  # noqa: SIM115 (closed by __exit__)
        try:
            _lock(self._file, place)
            self._go_on()
        except BaseException:
            self._file.close()
            raise

    def _go_on(self) -> None:
        state = self._read_state()
        if state is None:
            state = {"rows": 0, "dropped_texts": 0, "dropped_tokens": 0}
        elif state["settings"] != self._settings:
            changed = [name for name in self._settings if state["settings"].get(name) != self._settings[name]]
            raise InputError(
                f"[embed] {self.place.name} is of a run with another {', '.join(changed) or 'version'}; "
                "give the same again, or --restart to begin anew"
            )
        self.rows: int = state["rows"]
        self.dropped_texts: int = state["dropped_texts"]
        self.dropped_tokens: int = state["dropped_tokens"]
        self.resumed = self.rows
        size = os.fstat(self._file.fileno()).st_size
        if size < self.rows * self.dtype.itemsize:
            raise FormatError(f"[embed] {self.place.name}/vectors is shorter than its state says; give --restart")
        self._file.truncate(self.rows * self.dtype.itemsize)
        self._keep()

    def _read_state(self) -> dict[str, Any] | None:
        try:
            state = json.loads((self.place / "state.json").read_bytes())
            numbers = [state[name] for name in ("rows", "dropped_texts", "dropped_tokens")]
            if not all(isinstance(n, int) and n >= 0 for n in numbers) or not isinstance(state["settings"], dict):
                raise ValueError("its members are of another type")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"[embed] {self.place.name}/state.json cannot be read: {error}; give --restart") from None
        return dict(state)

    def append(self, records: np.ndarray, dropped: np.ndarray) -> None:
        """Add records, and how many tokens of each text were cut; they count once this returns."""
        self._file.write(records.tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += len(records)
        self.dropped_texts += int((dropped > 0).sum())
        self.dropped_tokens += int(dropped.sum())
        self._keep()

    def _keep(self) -> None:
        counts = {name: getattr(self, name) for name in ("rows", "dropped_texts", "dropped_tokens")}
        with replacing(self.place / "state.json") as out:
            out.write(json.dumps({"settings": self._settings, **counts}).encode())

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """All records, so many at a time."""
        import numpy as np

        with open(self.place / "vectors", "rb") as file:
            for first in range(0, self.rows, count):
                size = min(count, self.rows - first)
                yield np.frombuffer(file.read(size * self.dtype.itemsize), self.dtype)

    def remove(self) -> None:
        """The run is finished."""
        self._file.close()
        shutil.rmtree(self.place)

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _lock(file: BinaryIO, place: Path) -> None:
    """One run at a time; the lock ends with the process, however that ends."""
    with contextlib.suppress(ImportError):  # Windows has none
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError(f"[embed] another run writes to {place.name}; wait for it") from None
