"""weft rerank: order documents by how well they answer a query."""

from __future__ import annotations

import json
import sys
import time

import click

from weft.cli import options, screen

SHOWN = 80  # characters of a document in the table


@click.command()
@click.argument("model")
@click.argument("query")
@click.argument("files", nargs=-1, metavar="[FILE…]")
@click.option("-k", "--top-k", type=click.IntRange(1), metavar="N", help="Print only the best N.")
@click.option(
    "--field", metavar="NAME", help="Read JSON lines, with the text in this field (default for .jsonl files: text)."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per line: score, index and the document's own fields.",
)
@click.option(
    "--method",
    type=click.Choice(["classifier", "yes-no", "likelihood"]),
    help="How the model scores, if its files do not say so; for a text generator: likelihood.",
)
@click.option("--label", help="Which label's score to use, for a classifier with several labels.")
@click.option("--instruction", help="What counts as an answer, as a sentence for Qwen3-Reranker.")
@click.option(
    "--truncate",
    type=click.Choice(["error", "head", "tail"]),
    default="error",
    show_default=True,
    help="For pairs that are too long: raise an error, keep the document's beginning, or keep its end.",
)
@options.encoder_compute()
@options.threads()
@options.device()
def command(
    model: str,
    query: str,
    files: tuple[str, ...],
    top_k: int | None,
    field: str | None,
    as_json: bool,
    method: str | None,
    label: str | None,
    instruction: str | None,
    truncate: str,
    compute: str | None,
    threads: int | None,
) -> None:
    """Order documents by how well they answer a query.

    Documents are lines of files or of standard input, without empty ones; for .jsonl files, or with --field, one field
    of each object. Indexes count from 0 over all files, including empty lines.

    \b
    Examples:
      weft rerank cross-encoder/ms-marco-MiniLM-L6-v2 "how do magnets work?" notes.txt
      weft rerank Qwen/Qwen3-Reranker-0.6B "tax rules for cats" docs.jsonl --field body --top-k 5
      grep -rh cat notes/ | weft rerank BAAI/bge-reranker-base "where does the cat sleep?" --json
      weft rerank smollm2 "how do magnets work?" notes.txt --method likelihood
    """
    from weft.cli.texts import read_rows

    if not files and sys.stdin.isatty():
        raise click.UsageError("no documents; give files, or pipe lines in")
    key = field or "text"
    read = [row for file in files or ("-",) for row in read_rows(file, field)]
    rows = [{"index": index, **row} for index, row in enumerate(read) if row[key].strip()]
    from weft import Reranker

    given = int(label) if label is not None and label.isdigit() else label
    start = time.perf_counter()
    reranker = Reranker(
        model, method=method, label=given, instruction=instruction, truncate=truncate, compute=compute, threads=threads
    )
    loaded = time.perf_counter()
    ranked = reranker.rank(query, [row[key] for row in rows], top_k)
    took = time.perf_counter() - loaded
    if as_json:
        for found in ranked:
            click.echo(json.dumps({"score": found.score, **rows[found.index]}, ensure_ascii=False))
    else:
        table = [
            (f"{found.score:.4f}", rows[found.index]["index"], screen.cut(found.document, SHOWN)) for found in ranked
        ]
        screen.table(("score", "index", "document"), table, right=("score", "index"))
    screen.note(
        f"{screen.many(len(rows), 'document')}, {1000 * took:.1f} ms; loaded in {1000 * (loaded - start):.0f} ms"
    )
