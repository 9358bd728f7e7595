"""weft search: the nearest texts of an index to a question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    from weft import Hit, Index

SHOWN = 160  # characters of a text


@click.command()
@click.argument("index", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("query")
@click.option("-k", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@options.where()
@click.option("-m", "--model", help="The model that made the index (default: what the index says).")
@click.option("--whole", is_flag=True, help="Print each text whole, not its beginning.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, best first.")
@options.remote("model, where the index is for one")
@options.threads()
def command(
    index: Path,
    query: str,
    count: int,
    where: dict[str, Any],
    model: str | None,
    whole: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the texts of an index that are nearest in meaning to a query.

    `weft index build` makes the index, and writes down the model in it; its fingerprint and some known vectors are
    compared before it is used, so that answers never come from another model's numbers.

    \b
    Examples:
      weft search notes.index "how do I renew the certificate?"
      weft search notes.index "trains to Berlin" -k 10 --json
      weft search articles.index "tax rules" --where lang=en --where 'year={"gte": 2000}'
      weft search notes.index "trains to Berlin" --model ./where-the-model-is-now
      weft search cloud.index "trains to Berlin" --base-url https://api.openai.com/v1
    """
    if not query.strip():
        raise click.UsageError("the query is empty; ask for something")
    found = _opened(index, model, given)
    hits = found.search_texts(query, count, where=where or None, truncate="error" if given["base_url"] else "chunk")
    if as_json:
        import json

        for hit in hits:
            click.echo(json.dumps(_fields(hit), ensure_ascii=False))
        return
    if not hits:
        screen.note("no row is so" if where and len(found) else "the index is empty")
    for hit in hits:
        text = hit.text or ""
        shown = screen.clean(text) if whole else screen.cut(screen.clean(text), SHOWN)
        click.echo(f"{hit.score:.3f}  {screen.clean(_place(hit))}\n       {shown}")


def _opened(index: Path, model: str | None, given: dict[str, Any]) -> Index:
    """The index with the model that it is for."""
    from weft.embed.index.files import HEADER
    from weft.embed.pipeline.indexing import open_searchable, remembered_model
    from weft.errors import NotFoundError, OfflineError

    if not (index / HEADER).is_file():
        raise click.UsageError(f"{index} holds no index; make one with `weft index build {index}`")
    try:
        return open_searchable(index, model, threads=given["threads"], server=options.server_of(given))
    except OfflineError:
        if model is not None or given["base_url"] is not None:
            raise
        name = remembered_model(index)[0]
        raise NotFoundError(
            f"[search] the index is for {name}, which is not on this machine; `weft pull {name}` fetches it, and "
            "--model says where else it is"
        ) from None


def _place(hit: Hit) -> str:
    """Where a text is: its file and what part of it, or its id."""
    about = hit.metadata
    if "path" not in about:
        return str(hit.id)
    return f"{about['path']} ({about.get('start', 0)} to {about.get('end', 0)})"


def _fields(hit: Hit) -> dict[str, Any]:
    # The row's own fields apart: one of them may be called "score".
    return {"id": hit.id, "score": hit.score, "text": hit.text, "metadata": hit.metadata}
