"""Printing for commands: tables that fit a terminal and are not cut in a pipe, sizes, JSON, notes.

Results go to standard output, notes about them to standard error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from weft import flags

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_WIDTH = 10_000  # columns: lines for another program are never wrapped
CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}, "\ufffd")


def show(renderable: RenderableType) -> None:
    """Print a rich renderable; with styles only on a terminal and unless NO_COLOR is set."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width, highlight=False, color_system=None if flags.get("NO_COLOR") else "auto")
    with console.capture() as captured:  # rich itself would end the process when the pipe breaks
        console.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def moment(seconds: float) -> str:
    """A Unix time as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), title: str = "") -> None:
    """Print rows under headings; the columns named in `right` are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title or None, title_justify="left")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(clean(str(cell))) for cell in row))
    show(made)


def facts(rows: Iterable[tuple[str, Any]], *, title: str = "") -> None:
    """Print names and values, one pair per line."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(Text(clean(name)), Text(clean(str(value))))
    if title:
        show(Text(title, style="bold"))
    show(made)


def note(message: str) -> None:
    """Print a remark on standard error, dimmed on a terminal."""
    click.echo(message if flags.get("NO_COLOR") else click.style(message, dim=True), err=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def size(count: int) -> str:
    """Bytes in readable units: 98.4 MB."""
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 999.95:
            break
        amount, unit = amount / 1000, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def many(count: int, noun: str) -> str:
    """A count with its noun: 1 text, 2,000 texts."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def number(count: int) -> str:
    """A count in readable units: 134.5 M."""
    for factor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return str(count)


def shape(sizes: Sequence[Any]) -> str:
    """[49152, 576]"""
    return f"[{', '.join(map(str, sizes))}]"


def clean(text: str) -> str:
    """The text with control characters replaced: text of files and models must not control the terminal."""
    return text.translate(CONTROLS)


def cut(text: str, limit: int) -> str:
    """The text on one line, shortened to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
