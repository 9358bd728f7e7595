"""How far long work has come, on a terminal: a count and a rate, for work whose end nobody knows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted(what: str) -> Iterator[Callable[[int], None]]:
    """Call what this gives with the number done so far; where no bar is wanted, nothing is drawn."""
    from weft.embed.progress import PROGRESS_FROM, wanted

    if not wanted(PROGRESS_FROM, None):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} " + what), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, rate="")
        first: int | None = None

        def tell(count: int) -> None:
            nonlocal first
            first = count if first is None else first
            seconds = bar.tasks[0].elapsed or 0
            rate = f"{(count - first) / seconds:,.0f}/s" if count > first and seconds > 0 else ""
            bar.update(task, completed=count, rate=rate)

        yield tell
