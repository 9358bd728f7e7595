"""weft index: build a searchable index of a folder or a file."""

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
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder of the index (default: NAME.index in the current folder).",
)
@click.option("--field", metavar="NAME", help="The field or column that has the text, for a file (default: text).")
@options.embedding()
@options.remote("--model")
@options.documents()
@click.option("--half", is_flag=True, help="Store vectors as float16: half the size, nearly the same results.")
@click.option("--images", is_flag=True, help="Index the pictures of the folder, with a model that sees (CLIP, SigLIP).")
@options.rebuilding()
@options.threads()
@options.device()
@terminable()
def build(source: str, output: Path | None, field: str | None, half: bool, images: bool, **given: Any) -> None:
    """Embed the documents of a folder, or the rows of a file, into an index.

    Every text file of the folder is cut into chunks of --chunk-tokens tokens. Hidden files, what .gitignore names,
    packages, virtual environments and files over 16 MB are left out (--all-files, --max-file-size); the summary counts
    what was left out. Run the same command again to update the index: only new and changed texts are embedded, and
    deleted files leave it. A stopped run resumes, too. A model on a server (--base-url) needs a file of rows: without
    its tokenizer, documents cannot be cut. With --images, the folder's PNG, JPEG, WebP, GIF and BMP files are embedded
    instead; needs `pip install weft[vision]`.

    \b
    Examples:
      weft index build ~/notes
      weft index build ~/notes --output notes.index --verbose
      weft index build ~/project --all-files --max-file-size 50
      weft index build articles.jsonl --field body --model bge-small-en-v1.5
      weft index build ~/notes --model bge-small-en-v1.5 --replace
      weft index build ~/photos --images --model ./siglip2-base-patch16-224
    """
    from weft.cli.commands.embed import run_pipeline

    place = output or Path(f"{Path(source).resolve().name}.index")
    if images:
        _build_pictures(Path(source), place, half, given)
        return
    asked = {"form": "index", "field": field, "output_dtype": "f16" if half else "f32", "adapter": ()}
    report = run_pipeline(source, place, {**given, **asked})
    server = f" --base-url {given['base_url']}" if given["base_url"] else ""
    screen.note(f'search it with: weft search {place} "…"{server}' if report.rows else f"no text was found in {source}")


def _build_pictures(source: Path, place: Path, half: bool, given: dict[str, Any]) -> None:
    from weft import Embedder
    from weft.embed.index.pictures import index_pictures

    if not source.is_dir():
        raise click.UsageError("--images needs a folder of pictures")
    embedder = options.make_embedder(given)
    if not isinstance(embedder, Embedder):
        raise click.UsageError("--images works for models on this machine only; leave --base-url out")
    report = index_pictures(source, place, embedder, half=half)
    for name in report.unreadable[:5]:
        screen.note(f"left out, since it cannot be read as a picture: {screen.clean(name)}")
    more = f", {len(report.unreadable)} left out" if report.unreadable else ""
    screen.note(f"{report.pictures} pictures, {report.kept} of them as before{more}")
    screen.note(f'search it with: weft search {place} "…"')


@command.command()
@click.argument("index", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(index: Path, as_json: bool) -> None:
    """Show the rows, dimensions and model of an index.

    \b
    Examples:
      weft index show notes.index
      weft index show notes.index --json
    """
    from weft import Index
    from weft.embed.fingerprint import brief
    from weft.embed.index.files import read_header
    from weft.embed.pipeline.indexing import remembered_model
    from weft.errors import WeftError

    found, header = Index.open(index, mapped=True).info, read_header(index)
    found["graph"] = "graph" in header.files  # on disk: the index above was opened without it
    del found["read_only"]  # of this opening, not of the index
    found["source"] = (header.about.get("built") or {}).get("source")
    try:
        found["model"] = remembered_model(index)[0]
    except WeftError:
        found["model"] = None
    if as_json:
        screen.print_json(found)
    else:
        screen.facts({**found, "fingerprint": brief(found["fingerprint"])}.items(), title=str(index))
