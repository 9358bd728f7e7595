"""A progress bar on the terminal for long lists, and times as people say them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

PROGRESS_FROM = 2000  # texts to embed; shorter lists finish before a bar would be drawn


def wanted(total: int, progress: bool | None, least: int = PROGRESS_FROM) -> bool:
    """Whether to draw a bar: `progress` if it is not None, else for lists of at least `least` on a terminal."""
    import sys

    from weft import flags

    if progress is not None:
        return progress
    return total >= least and sys.stderr.isatty() and flags.progress_wanted()


def shown(
    batches: Sequence[tuple[int, int]],
    total: int,
    progress: bool | None,
    what: str = "embedding",
    least: int = PROGRESS_FROM,
) -> Iterator[tuple[int, int]]:
    """The batches (first, last), with a progress bar if `wanted` says so."""
    if not wanted(total, progress, least):
        yield from batches
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for first, last in batches:
            yield first, last
            bar.update(task, completed=last)


def duration(seconds: float) -> str:
    """A time as people say it: 42 s, 3 min 05 s, 2 h 10 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
