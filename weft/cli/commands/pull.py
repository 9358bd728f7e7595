"""weft pull: download models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.cli import screen

if TYPE_CHECKING:
    from weft.weights.sources import Located


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
def command(names: tuple[str, ...]) -> None:
    """Download models before they are needed.

    A model that is already here is downloaded again only if its branch on the hub has changed.

    \b
    Examples:
      weft pull all-MiniLM-L6-v2 smollm2-135m-instruct
      weft pull org/name:Q4_K_M
    """
    import weft

    for name in names:
        located = weft.pull(name)
        rows = [
            ("from", located.source),
            ("path", located.path),
            ("size", screen.size(_bytes(located))),
            ("licence", located.entry.licence if located.entry else "not in the catalogue: see the model's page"),
        ]
        screen.facts(rows, title=name)


def _bytes(located: Located) -> int:
    """Bytes of the chosen files; a split file counts with all its parts."""
    from weft.weights.sources.choice import parts_of

    if located.entry:
        return located.entry.bytes
    if located.path.is_dir():
        return sum(file.stat().st_size for file in located.path.rglob("*") if file.is_file())
    return sum(located.path.with_name(part).stat().st_size for part in parts_of(located.path.name))
