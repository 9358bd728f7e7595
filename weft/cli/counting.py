"""The progress of long work: a counter and a rate on a terminal, for work whose end may be unknown; and the steps of a
training, with a bar or lines and a Ctrl-C that saves."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from weft.cli import screen
from weft.progress import duration

if TYPE_CHECKING:
    from weft.train import StepResult

LINE_S = 15.0  # between two lines where there is no terminal


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


def make_steps(training: Any, output: Path) -> None:
    """Make all steps of a training, shown with a bar; Ctrl-C saves them, and says how to go on."""
    if training.run.done:
        screen.note(f"going on after step {training.run.done:,} of {training.run.steps:,}")
    _tell_start(training)
    if _run(training):
        training.keep()
        screen.note(f"stopped after step {training.run.done:,} of {training.run.steps:,} and saved in {output}")
        screen.note("go on with the same command and --resume")
        raise KeyboardInterrupt


def _run(training: Any) -> bool:
    """Make all steps; True if Ctrl-C stopped them after one."""
    with _stopping() as stop, _shown(training) as tell:
        for step in training:
            tell(step)
            if stop() and training.run.done < training.run.steps:  # after the last step it only has to end
                return True
    return False


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the step end, which a function then tells; the second stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = False
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        screen.note("stopping after this step; Ctrl-C again stops at once, without it")

    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _shown(training: Any) -> Iterator[Callable[[StepResult], None]]:
    """A bar with tokens a second, the time left and the loss; elsewhere than on a terminal lines, now and then."""
    from weft import flags

    total, first = training.run.steps, training.run.done
    began = said = time.monotonic()
    tokens = 0

    def facts(step: StepResult) -> str:
        nonlocal tokens
        tokens += step.tokens
        seconds = max(1e-9, time.monotonic() - began)
        left = seconds / (step.number - first) * (total - step.number)
        valid = f", validation {step.valid:.4f}" if step.valid is not None else ""
        valid += f", {training.run.measure_name} {step.score:.4f}" if step.score is not None else ""
        right = f", {100 * step.accuracy:.0f} % preferred" if step.accuracy is not None else ""
        return f"loss {step.loss:.4f}{valid}{right}, {tokens / seconds:,.0f} tokens/s, {duration(left)} left"

    if not (sys.stderr.isatty() and flags.progress_wanted()):

        def line(step: StepResult) -> None:
            nonlocal said
            text = facts(step)
            due = time.monotonic() - said >= LINE_S or step.valid is not None or step.number in (first + 1, total)
            if due and flags.progress_wanted():
                said = time.monotonic()
                screen.note(f"step {step.number:,} of {total:,}: {text}")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("step", total=total, completed=first, facts="")
        yield lambda step: bar.update(task, completed=step.number, facts=facts(step))


def plan_of(training: Any) -> list[tuple[str, str]]:
    learner, count = training.learner, len(training.learner.changes)
    matrices = f"{count:,} matrices" if count else "all weights"
    return [
        ("base", f"{training.base.name} ({training.base.checkpoint.model_type})"),
        ("trained", f"{matrices}, {screen.number(learner.parameters)} numbers"),
        *training.facts(),
        ("steps", f"{training.run.steps:,}"),
        ("compute", str(training.chosen or training.options.compute)),
    ]


def _tell_start(training: Any) -> None:
    for name, text in plan_of(training):
        screen.note(f"{name}: {text}")
