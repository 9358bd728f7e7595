"""Progress of a download: a callback for programs, a bar on the terminal for people."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from weft import flags

# Called with the file's name, the bytes so far, and the bytes in all (None if unknown). The bytes of one name never go
# down unless the download starts again.
Progress = Callable[[str, int, "int | None"], None]


def silent(name: str, done: int, total: int | None) -> None:
    """The progress callback that shows nothing."""


class Bar:
    """A progress bar per file on standard error; drawn from the first call on."""

    def __init__(self) -> None:
        self._display: Any = None
        self._tasks: dict[str, Any] = {}

    def __call__(self, name: str, done: int, total: int | None) -> None:
        if self._display is None:
            self._display = self._start()
        if name not in self._tasks:
            self._tasks[name] = self._display.add_task(name, total=total)
        self._display.update(self._tasks[name], completed=done, total=total)

    def _start(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
        display = Progress(*columns, console=Console(stderr=True))
        display.start()
        return display

    def close(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None


@contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress]:
    """The callback to report to: the caller's own, a bar for True, nothing for False.

    None draws a bar if standard error is a terminal and no environment variable switches bars off.
    """
    if progress is None:
        progress = sys.stderr is not None and sys.stderr.isatty() and flags.progress_wanted()
    if progress is False:
        yield silent
    elif progress is True:
        bar = Bar()
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield progress
