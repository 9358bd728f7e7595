"""weft embed: texts in, vectors out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    import numpy as np

    from weft import Embedder

FORMATS = ("text", "jsonl", "npy", "parquet", "sqlite", "index")
TABLE_TEXTS = range(2, 13)  # this many arguments are compared with one another
HEAD = 4  # numbers of a vector that the table shows


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT…]")
@click.option("-i", "--input", "source", metavar="FILE|FOLDER|-", help="Read texts: see below for what files may be.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here, not to stdout.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: what --output ends in, else text.")
@click.option("--field", metavar="NAME", help="Read rows whose text is in this field (default: text).")
@options.embedding()
@click.option(
    "--output-dtype",
    type=click.Choice(["f32", "f16", "int8", "binary"]),
    default="f32",
    show_default=True,
    help="What numbers are written as; int8 has a scale a vector, binary eight numbers a byte.",
)
@options.chunks()
@click.option("--restart", is_flag=True, help="Begin anew where a run was stopped.")
@options.adapter()
@options.threads()
def command(
    texts: tuple[str, ...], source: str | None, output: Path | None, form: str | None, field: str | None, **given: Any
) -> None:
    """Turn texts into vectors.

    Texts are arguments, lines of standard input, or rows of a file: lines, JSON lines (.jsonl), CSV (.csv, .tsv),
    Parquet (.parquet), or the documents of a folder, cut into chunks of so many tokens. Row n of the result is text n;
    empty lines are texts too. Two to twelve arguments in text format print a table of their similarities; with
    `--output -` they print their numbers as any others do. `text` is one vector per line, `jsonl` one object per line
    with an "embedding" and the row's other fields, `npy` a matrix, `parquet` and `sqlite` have both, `index` is a
    folder that `weft search` answers from.

    From a file to a file memory stays small, and a run that was stopped goes on when it is started again in the same
    way: what is done so far lies beside the output, in a folder that ends in .part.

    \b
    Examples:
      weft embed "a cat" "a dog" "the stock market"
      weft embed --input lines.txt --output vectors.npy
      weft embed --input docs.jsonl --field body --output embedded.parquet
      weft embed --input notes/ --output notes.sqlite --chunk-tokens 128
      cat docs.jsonl | weft embed --field body --format npy > vectors.npy
      weft embed "how do magnets work?" --prompt-name query --format jsonl
      weft embed --input lines.txt --output vectors.npy --adapter ./my-lora
    """
    _check_source(texts, source, field)
    from_file = source is not None and source != "-"
    if from_file and output is not None and str(output) != "-":
        _embed_file(str(source), output, form, field, given)
        return
    if from_file and Path(str(source)).is_dir():
        raise click.UsageError("the vectors of a folder go to a file; give --output")
    _embed_now(texts, source, output, form or _form(output), field, given)


def _embed_now(
    texts: tuple[str, ...],
    source: str | None,
    output: Path | None,
    form: str,
    field: str | None,
    given: dict[str, Any],
) -> None:
    """All texts at once, from arguments, a file or standard input."""
    from weft.cli.texts import read_rows, write_vectors
    from weft.embed.pipeline import open_source

    if form in ("parquet", "sqlite", "index"):
        raise click.UsageError(f"{form} goes from a file to a file; give --input and --output")
    if form == "npy" and output is None and sys.stdout.isatty():
        raise click.UsageError("npy is not for a terminal; give --output or redirect")
    key = field or "text"
    if texts:
        rows = [{key: text} for text in texts]
    elif source is None or source == "-":
        rows = read_rows("-", field)
    else:
        rows = list(open_source(source, field=field).rows())
    start = time.perf_counter()
    embedder, how = _load(given)
    embedder.encode("a", adapter=how["adapter"])  # binds the weights: that is loading, not embedding
    loaded = time.perf_counter()
    made = embedder.embed([row[key] for row in rows], **how, output_dtype=given["output_dtype"])
    took = time.perf_counter() - loaded
    if form == "text" and output is None and len(texts) in TABLE_TEXTS:
        _print_table(embedder, texts, made.vectors)
    else:
        write_vectors(rows, made.vectors, form, output)
    rate = f"{len(rows) / took:.0f} texts/s" if rows else "nothing to do"
    cut = f"; {made.dropped.sum()} tokens of {(made.dropped > 0).sum()} texts cut off" if made.dropped.any() else ""
    screen.note(
        f"{len(rows)} texts, {embedder.dimension} dimensions, {1000 * took:.1f} ms ({rate}){cut}; "
        f"loaded in {1000 * (loaded - start):.0f} ms"
    )


def _embed_file(source: str, output: Path, form: str | None, field: str | None, given: dict[str, Any]) -> None:
    """From a file or a folder to a file, going on where an earlier run was stopped."""
    embedder, how = _load(given)
    run_pipeline(embedder, source, output, how, {**given, "form": form, "field": field})


def run_pipeline(embedder: Embedder, source: str, output: Path, how: dict[str, Any], given: dict[str, Any]) -> None:
    """Embed a file or a folder into a file, and say what was done; `how` goes to each call of `embed`."""
    from weft.cli.counting import counted
    from weft.embed.pipeline import Chunking, embed_file, open_source
    from weft.embed.pipeline.indexing import remember_model

    chunking = Chunking.of(given["chunk_tokens"], given["overlap"])
    rows = open_source(source, field=given["field"], embedder=embedder, chunking=chunking)
    if Path(source).is_dir() and given["truncate"] is None:
        how["truncate"] = "chunk"  # a chunk that has more tokens alone than inside its document loses nothing
    chosen = {name: given[name] for name in ("form", "output_dtype", "restart")}
    with counted("rows") as told:
        try:
            report = embed_file(embedder, rows, output, told=told, **chosen, **how)
        except KeyboardInterrupt:
            screen.note("interrupted; the same command goes on from here")
            raise
    if output.is_dir():
        options = {**given, "normalise": False if given["no_normalise"] else None}
        remember_model(output, _lasting(given["model"]), options)
    parts = [f"{report.rows} rows, {embedder.dimension} dimensions, {report.seconds:.1f} s"]
    parts += [f"{report.resumed} of them by an earlier run"] if report.resumed else []
    parts += [f"{report.dropped_tokens} tokens of {report.dropped_texts} cut off"] if report.dropped_texts else []
    parts += [f"{rows.skipped} files that are no text left out"] if rows.skipped else []
    screen.note("; ".join(parts))


def _lasting(model: str) -> str:
    """A model's name as it is found from any folder."""
    place = Path(model)
    return str(place.resolve()) if place.exists() else model


def _load(given: dict[str, Any]) -> tuple[Embedder, dict[str, Any]]:
    """The embedder that the options ask for, and what each of its calls is given."""
    from weft.cli.asked import load_adapters

    embedder = options.make_embedder(given)
    name = given["prompt_name"]
    if name == "document":
        name = embedder.document_prompt_name
    elif name is not None and name != "query" and name not in embedder.prompts:
        known = ", ".join(dict.fromkeys(["query", "document", *embedder.prompts]))
        raise click.UsageError(f"the model has no prompt called {name!r}; there are {known}")
    adapter = load_adapters(embedder.adapters, given["adapter"]) if given["adapter"] else None
    return embedder, {"prompt_name": name, "adapter": adapter, "truncate": given["truncate"] or "error"}


def _form(output: Path | None) -> str:
    """The format that a file's name asks for."""
    ending = output.suffix.lstrip(".") if output else ""
    return ending if ending in FORMATS else "text"


def _check_source(texts: tuple[str, ...], source: str | None, field: str | None) -> None:
    if texts and source is not None:
        raise click.UsageError("texts were given as arguments and as --input; give one of them")
    if texts and field is not None:
        raise click.UsageError("--field is for rows of a file, and the texts are arguments")
    if not texts and source is None and sys.stdin.isatty():
        raise click.UsageError("no texts; give some as arguments, name a file with --input, or pipe lines in")


def _print_table(embedder: Embedder, texts: tuple[str, ...], vectors: np.ndarray) -> None:
    numbers = [str(i + 1) for i in range(len(texts))]
    similarity = embedder.similarity(vectors, vectors)
    rows = [
        (number, screen.cut(text, 40), " ".join(f"{x:.3f}" for x in vector[:HEAD]) + " …", *(f"{s:.3f}" for s in line))
        for number, text, vector, line in zip(numbers, texts, vectors, similarity)
    ]
    columns = ("", "text", "vector", *numbers)
    screen.table(columns, rows, right=numbers, title=f"{embedder.recipe.similarity} similarity")
