"""weft embed: texts in, vectors out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    import numpy as np

    from weft import Embedder

FORMATS = ("text", "jsonl", "npy")
TABLE_TEXTS = range(2, 13)  # this many arguments are compared with one another
HEAD = 4  # numbers of a vector that the table shows


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT…]")
@click.option("-m", "--model", default=options.DEFAULT_EMBEDDER, show_default=True, help="Name, folder or file.")
@click.option("-i", "--input", "source", metavar="FILE|-", help="Read texts: one per line, or a .jsonl file.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write here, not to stdout.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: what --output ends in, else text.")
@click.option("--field", metavar="NAME", help="Read JSON lines, whose text is in this field (.jsonl files: text).")
@click.option("--prompt-name", help="Put the model's prompt of this name before each text: query, document.")
@click.option(
    "--truncate",
    type=click.Choice(["error", "head", "tail"]),
    default="error",
    show_default=True,
    help="A text that is too long: refuse it, keep its beginning, keep its end.",
)
@click.option("--no-normalise", is_flag=True, help="Leave vectors at their own length.")
@click.option("--pooling", help="How an encoder that does not say so pools: mean, first, last or max.")
@click.option(
    "--compute",
    type=click.Choice(["f32", "bf16x3", "bf16", "int8"]),
    default="f32",
    show_default=True,
    help="What products are made of; with a matrix unit bf16x3 (near f32) is faster than f32, bf16 much faster, int8 "
    "faster still, with vectors a little further away.",
)
@options.adapter()
@options.threads()
def command(
    texts: tuple[str, ...],
    model: str,
    source: str | None,
    output: Path | None,
    form: str | None,
    field: str | None,
    prompt_name: str | None,
    truncate: str,
    no_normalise: bool,
    pooling: str | None,
    compute: str,
    adapter: tuple[str, ...],
    threads: int | None,
) -> None:
    """Turn texts into vectors.

    Texts are arguments, lines of a file, or lines of standard input. Row n of the result is text n; empty lines are
    texts too. Two to twelve arguments in text format print a table of their similarities; with `--output -` they print
    their numbers as any others do. `text` is one vector per line, `jsonl` one object per line with an "embedding" (JSON
    lines keep their other fields), `npy` a float32 matrix.

    \b
    Examples:
      weft embed "a cat" "a dog" "the stock market"
      weft embed --input lines.txt --output vectors.npy
      weft embed --input docs.jsonl --field body --output embedded.jsonl
      cat docs.jsonl | weft embed --field body --format npy > vectors.npy
      weft embed "how do magnets work?" --prompt-name query --format jsonl
      weft embed --input lines.txt --output vectors.npy --adapter ./my-lora
    """
    from weft.cli.asked import load_adapters
    from weft.cli.texts import read_rows, write_vectors

    _check_source(texts, source, field)
    form = form or _form(output)
    if form == "npy" and output is None and sys.stdout.isatty():
        raise click.UsageError("npy is not for a terminal; give --output or redirect")
    key = field or "text"
    rows = [{key: text} for text in texts] if texts else read_rows(source or "-", field)
    from weft import Embedder

    start = time.perf_counter()
    normal = False if no_normalise else None
    embedder = Embedder(model, pooling=pooling, normalise=normal, truncate=truncate, compute=compute, threads=threads)
    named = load_adapters(embedder.adapters, adapter) if adapter else None
    embedder.encode("a", adapter=named)  # binds the weights: that is loading, not embedding
    loaded = time.perf_counter()
    vectors = _encode(embedder, [row[key] for row in rows], prompt_name, named)
    took = time.perf_counter() - loaded
    if form == "text" and output is None and len(texts) in TABLE_TEXTS:
        _print_table(embedder, texts, vectors)
    else:
        write_vectors(rows, vectors, form, output)
    rate = f"{len(rows) / took:.0f} texts/s" if rows else "nothing to do"
    screen.note(
        f"{len(rows)} texts, {embedder.dimension} dimensions, {1000 * took:.1f} ms ({rate}); "
        f"loaded in {1000 * (loaded - start):.0f} ms"
    )


def _encode(embedder: Embedder, texts: list[str], prompt_name: str | None, adapter: str | None) -> np.ndarray:
    """The vectors; "query" and "document" are roles that every model takes, other names must be the model's own."""
    if prompt_name == "query":
        return embedder.encode_query(texts, adapter=adapter)
    if prompt_name == "document":
        return embedder.encode_document(texts, adapter=adapter)
    if prompt_name is not None and prompt_name not in embedder.recipe.prompts:
        known = ", ".join(dict.fromkeys(["query", "document", *embedder.recipe.prompts]))
        raise click.UsageError(f"the model has no prompt called {prompt_name!r}; there are {known}")
    return embedder.encode(texts, prompt_name=prompt_name, adapter=adapter)


def _form(output: Path | None) -> str:
    """The format that a file's name asks for."""
    ending = output.suffix.lstrip(".") if output else ""
    return ending if ending in FORMATS else "text"


def _check_source(texts: tuple[str, ...], source: str | None, field: str | None) -> None:
    if texts and source is not None:
        raise click.UsageError("texts were given as arguments and as --input; give one of them")
    if texts and field is not None:
        raise click.UsageError("--field is for JSON lines, and the texts are arguments")
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
