"""weft index: folders and files made searchable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weft.cli import options, screen
from weft.cli.stopping import terminable


@click.group()
def command() -> None:
    """Make a folder of notes searchable.

    \b
    Examples:
      weft index build ~/notes
      weft index show notes.index
      weft search notes.index "how do I renew the certificate?"
    """


@command.command()
@click.argument("source", metavar="FOLDER|FILE", type=click.Path(exists=True))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The index (default: SOURCE.index, here).")
@click.option("--field", metavar="NAME", help="Of a file's rows, where the text is (default: text).")
@options.embedding()
@options.remote("--model")
@options.chunks()
@click.option("--half", is_flag=True, help="Keep vectors as float16: half the size, and near the same answers.")
@click.option("--restart", is_flag=True, help="Begin anew where a run was stopped.")
@options.threads()
@terminable()
def build(source: str, output: Path | None, field: str | None, half: bool, **given: Any) -> None:
    """Embed the documents of a folder, or the rows of a file, into an index.

    Every file of the folder that is text is cut into chunks of so many tokens. A run that was stopped goes on when it
    is started again; with `--cache disk` a later one embeds only what is new. A server's model (--base-url) takes rows
    of a file: without its tokenizer no document is cut.

    \b
    Examples:
      weft index build ~/notes
      weft index build ~/notes --output notes.index --cache disk
      weft index build articles.jsonl --field body --model bge-small-en-v1.5
    """
    from weft.cli.commands.embed import run_pipeline

    place = output or Path(f"{Path(source).resolve().name}.index")
    asked = {"form": "index", "field": field, "output_dtype": "f16" if half else "f32", "adapter": ()}
    report = run_pipeline(source, place, {**given, **asked})
    asking = f" --base-url {given['base_url']}" if given["base_url"] else ""
    screen.note(f'weft search {place} "…"{asking} answers from it' if report.rows else f"no text was found in {source}")


@command.command()
@click.argument("index", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(index: Path, as_json: bool) -> None:
    """What an index holds: rows, dimensions, the model it is for.

    \b
    Examples:
      weft index show notes.index
      weft index show notes.index --json
    """
    from weft import Index
    from weft.embed.index.files import read_header
    from weft.embed.pipeline.indexing import remembered_model
    from weft.errors import WeftError

    found = Index.open(index, mapped=True).info
    found["graph"] = "graph" in read_header(index).files  # what lies there: this opened neither it nor to write
    del found["read_only"]
    try:
        found["model"] = remembered_model(index)[0]
    except WeftError:
        found["model"] = None
    if as_json:
        screen.print_json(found)
    else:
        screen.facts(found.items(), title=str(index))
