"""weft search: the nearest texts of an index to a question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    from weft import Hit

SHOWN = 160  # characters of a text


@click.command()
@click.argument("index", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("query")
@click.option("-k", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@click.option("-m", "--model", help="The model that made the index (default: what the index says).")
@click.option("--whole", is_flag=True, help="Print each text whole, not its beginning.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, best first.")
@options.threads()
def command(
    index: Path, query: str, count: int, model: str | None, whole: bool, as_json: bool, threads: int | None
) -> None:
    """Find the texts of an index that are nearest in meaning to a query.

    `weft index build` makes the index, and writes down the model in it; its fingerprint and some known vectors are
    compared before it is used, so that answers never come from another model's numbers.

    \b
    Examples:
      weft search notes.index "how do I renew the certificate?"
      weft search notes.index "trains to Berlin" -k 10 --json
    """
    from weft.embed.pipeline.indexing import open_searchable

    hits = open_searchable(index, model, threads=threads).search_texts(query, count, truncate="chunk")
    if as_json:
        import json

        for hit in hits:
            click.echo(json.dumps(_fields(hit), ensure_ascii=False))
        return
    if not hits:
        screen.note("the index is empty")
    for hit in hits:
        text = hit.text or ""
        shown = screen.clean(text) if whole else screen.cut(screen.clean(text), SHOWN)
        click.echo(f"{hit.score:.3f}  {screen.clean(_place(hit))}\n       {shown}")


def _place(hit: Hit) -> str:
    """Where a text is: its file and what part of it, or its id."""
    about = hit.metadata
    if "path" not in about:
        return str(hit.id)
    return f"{about['path']} ({about.get('start', 0)} to {about.get('end', 0)})"


def _fields(hit: Hit) -> dict[str, Any]:
    return {"id": hit.id, "score": hit.score, **hit.metadata, "text": hit.text}
