"""weft pull: download models."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from weft.cli import screen
from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.weights.sources import Located
    from weft.weights.sources.progress import Progress

REPORT_S = 0.1  # between two lines about one file


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--json", "as_json", is_flag=True, help="Print progress, results and errors as lines of JSON.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Download models before they are needed.

    A model that is already here is downloaded again only if its branch on the hub has changed.

    \b
    Examples:
      weft pull all-MiniLM-L6-v2 smollm2-135m-instruct
      weft pull org/name:Q4_K_M
      weft pull all-MiniLM-L6-v2 --json | tail -n 1
    """
    import weft

    for name in names:
        if as_json:
            _pull_as_json(name)
            continue
        located = weft.pull(name)
        rows = [
            ("from", located.source),
            ("path", located.path),
            ("size", screen.size(_bytes(located))),
            ("licence", located.entry.licence if located.entry else "not in the catalogue: see the model's page"),
        ]
        screen.facts(rows, title=name)


def _pull_as_json(name: str) -> None:
    import weft

    try:
        located = weft.pull(name, progress=_reporter(name))
    except WeftError as error:
        _line(model=name, error=str(error))
        raise
    licence = located.entry.licence if located.entry else None
    _line(model=name, source=located.source, path=str(located.path), bytes=_bytes(located), licence=licence)


def _reporter(name: str) -> Progress:
    """Print a line for each file a few times a second, and one when it is whole."""
    from weft.weights.sources.catalog import find

    entry = find(name)
    digests = {file.name: f"sha256:{file.sha256}" for file in entry.files if file.sha256} if entry else {}
    told: dict[str, float] = {}

    def report(file: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if done == total or now - told.get(file, 0.0) >= REPORT_S:
            told[file] = now
            _line(model=name, file=file, digest=digests.get(file), completed=done, total=total)

    return report


def _line(**facts: Any) -> None:
    click.echo(json.dumps(facts, ensure_ascii=False))


def _bytes(located: Located) -> int:
    """Bytes of the chosen files; a split file counts with all its parts."""
    from weft.weights.sources.choice import parts_of

    if located.entry:
        return located.entry.bytes
    if located.path.is_dir():
        return sum(file.stat().st_size for file in located.path.rglob("*") if file.is_file())
    return sum(located.path.with_name(part).stat().st_size for part in parts_of(located.path.name))
