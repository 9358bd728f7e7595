"""The progress of long work: a counter and a rate on a terminal, for work whose end may be unknown."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

LINE_S = 15.0  # between two lines of `reported`


class Tell(Protocol):
    def __call__(self, count: int, total: int | None = None, /) -> None:
        """`count` are done, of `total` if that is known."""


@contextmanager
def counted(what: str) -> Iterator[Tell]:
    """Gives a function to call with the number done so far; draws nothing if no progress bar is wanted."""
    from weft.progress import PROGRESS_FROM, wanted

    if not wanted(PROGRESS_FROM, None):
        yield lambda count, total=None, /: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    count = TextColumn("{task.completed:,.0f}{task.fields[of]} " + what)
    columns = (SpinnerColumn(), count, TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, rate="", of="")
        first: int | None = None

        def tell(count: int, total: int | None = None, /) -> None:
            nonlocal first
            first = count if first is None else first
            seconds = bar.tasks[0].elapsed or 0
            rate = f"{(count - first) / seconds:,.0f}/s" if count > first and seconds > 0 else ""
            bar.update(task, completed=count, rate=rate, of="" if total is None else f" of {total:,}")

        yield tell


@contextmanager
def reported(what: str) -> Iterator[Tell]:
    """A counter on a terminal, elsewhere a line every LINE_S seconds, and nothing with WEFT_NO_PROGRESS."""
    from weft import flags
    from weft.cli import screen

    lines, said = flags.progress_wanted() and not sys.stderr.isatty(), time.monotonic()
    with counted(what) as tell:

        def report(count: int, total: int | None = None, /) -> None:
            nonlocal said
            tell(count, total)
            if lines and time.monotonic() - said >= LINE_S:
                said = time.monotonic()
                screen.note(f"{count:,}{'' if total is None else f' of {total:,}'} {what}")

        yield report
