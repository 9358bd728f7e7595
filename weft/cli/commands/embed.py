"""weft embed: texts in, vectors out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen
from weft.cli.stopping import terminable

if TYPE_CHECKING:
    from weft import BaseEmbedder
    from weft.cli.texts import Write
    from weft.embed.pipeline import Report
    from weft.embed.pipeline.sources import Row
    from weft.embed.results import Embedded

FORMATS = ("text", "jsonl", "npy", "parquet", "sqlite", "index")
STREAMED = ("text", "jsonl", "npy")  # the others are made of a file, which is read twice
TABLE_TEXTS = range(2, 13)  # this many arguments are compared with one another
HEAD = 4  # numbers of a vector that the table shows
NAMED = 5  # files that were left out


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT…]")
@click.option("-i", "--input", "source", metavar="FILE|FOLDER|-", help="Read texts: see above for what files may be.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here, not to stdout.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: what --output ends in, else text.")
@click.option("--field", metavar="NAME", help="Read rows whose text is in this field (default: text).")
@options.embedding()
@options.remote("--model")
@click.option(
    "--output-dtype",
    type=click.Choice(["f32", "f16", "int8", "binary"]),
    default="f32",
    show_default=True,
    help="What numbers are written as; int8 has a scale a vector (beside a matrix in NAME.scales.npy), binary eight "
    "numbers a byte.",
)
@options.chunks()
@click.option("--restart", is_flag=True, help="Begin anew where a run was stopped.")
@options.adapter()
@options.threads()
@terminable()
def command(
    texts: tuple[str, ...], source: str | None, output: Path | None, form: str | None, field: str | None, **given: Any
) -> None:
    """Turn texts into vectors.

    Texts are arguments, lines of standard input, or rows of a file: lines, JSON lines (.jsonl), CSV (.csv, .tsv),
    Parquet (.parquet), or the documents of a folder, cut into chunks of so many tokens. Row n of the result is text n;
    empty lines are texts too. Two to twelve arguments in text format print a table of their similarities; with
    `--output -` they print their numbers as any others do. `text` is one vector per line, `jsonl` one object per line
    with an "embedding" and the row's other fields, `npy` a matrix, `parquet` and `sqlite` have both, `index` is a
    folder that `weft search` answers from; an index gets the model's prompt for documents unless another is named.

    From a file to a file memory stays small, and a run that was stopped goes on when it is started again in the same
    way: what is done so far lies beside the output, in a folder that ends in .part. From standard input memory stays
    small as well, vectors are written as they are made, and Ctrl-C keeps them.

    \b
    Examples:
      weft embed "a cat" "a dog" "the stock market"
      weft embed --input lines.txt --output vectors.npy
      weft embed --input docs.jsonl --field body --output embedded.parquet
      weft embed --input notes/ --output notes.sqlite --chunk-tokens 128
      cat docs.jsonl | weft embed --field body --format npy > vectors.npy
      weft embed "how do magnets work?" --prompt-name query --format jsonl
      weft embed --input lines.txt --output vectors.npy --adapter ./my-lora
      weft embed "a cat" "a dog" -m text-embedding-3-small --base-url https://api.openai.com/v1
    """
    _check_source(texts, source, field)
    from_file = source is not None and source != "-"
    to_file = output is not None and str(output) != "-"
    if from_file and to_file:
        chosen = form or _form(Path(str(output)))
        run_pipeline(str(source), Path(str(output)), {**given, "form": chosen, "field": field})
        return
    place = output if to_file else None
    chosen = form or _form(place)
    compared = chosen == "text" and output is None and len(texts) in TABLE_TEXTS
    dtype = given["output_dtype"]
    if not compared:
        _check_form(chosen, place, dtype)
    parts = iter([[{"text": text} for text in texts]]) if texts else _portions(source or "-", field, chosen, dtype)
    first = next(parts, [])  # before a model is loaded, so that what cannot be read is said at once
    stream = _Stream(field or "text", given)
    if compared:
        stream.add(first, lambda _, made: _print_table(stream.embedder, texts, made))
    else:
        stream.write(chain([first], parts), chosen, place)
    stream.tell()


class _Stream:
    """Portions of rows embedded one after the other, and what was done so far."""

    def __init__(self, field: str, given: dict[str, Any]) -> None:
        from weft import Embedder

        start = time.perf_counter()
        self.embedder, self._how = _load(given)
        if isinstance(self.embedder, Embedder):  # else a request that somebody pays for
            # Binds the weights, which is loading and not embedding; past the cache, which is the caller's.
            self.embedder.encode_ids(self.embedder.token_ids(["a"]).ids, adapter=self._how["adapter"])
        self._loaded_s = time.perf_counter() - start
        self._how["output_dtype"] = given["output_dtype"]
        self._field = field
        self._rows = self._cached = self._cut_texts = self._cut_tokens = 0
        self._seconds = 0.0

    def write(self, parts: Iterator[list[Row]], form: str, output: Path | None) -> None:
        """Embed all portions to a file or to standard output. What stops this leaves what was made until then."""
        from weft.cli.counting import counted
        from weft.cli.texts import writing
        from weft.errors import WeftError

        stopped: BaseException | None = None
        apart = output is not None or not sys.stdout.isatty()  # a count amid the numbers would be no use
        with writing(form, output) as write, counted("texts") if apart else nullcontext(lambda _: None) as told:
            try:
                for part in parts:
                    self.add(part, write)
                    told(self._rows)
            except (WeftError, KeyboardInterrupt) as error:
                if not self._rows:
                    raise
                stopped = error
        if stopped is not None:
            screen.note(f"stopped after {screen.many(self._rows, 'text')}; what was made is written")
            raise stopped

    def add(self, part: list[Row], write: Write) -> None:
        """Embed a portion and write it."""
        from weft import EmbedInterrupted
        from weft.errors import TooLongError

        start = time.perf_counter()
        try:
            made = self.embedder.embed([row[self._field] for row in part], progress=False, **self._how)
        except EmbedInterrupted as error:
            self._keep(part, error.done, write)
            raise
        except TooLongError as error:
            raise error.of_text(self._rows + error.index) from None
        self._seconds += time.perf_counter() - start
        self._keep(part, made, write)

    def _keep(self, part: list[Row], made: Embedded, write: Write) -> None:
        from weft.generate.interrupts import InterruptsHeld

        with InterruptsHeld():  # a line is written whole, and vectors that are made are not lost
            write(part[: len(made)], made)
            self._rows += len(made)
            self._cached += made.cached
            self._cut_texts += int((made.dropped > 0).sum())
            self._cut_tokens += int(made.dropped.sum())

    def tell(self) -> None:
        """Say what was done."""
        rate = f"{self._rows / self._seconds:.0f} texts/s" if self._rows else "nothing to do"
        kept = f" ({self._cached:,} from the cache)" if self._cached else ""
        cut = (
            f"; {self._cut_tokens} tokens of {screen.many(self._cut_texts, 'text')} cut off" if self._cut_texts else ""
        )
        screen.note(
            f"{screen.many(self._rows, 'text')}{kept}, {self.embedder.dimension} dimensions, "
            f"{1000 * self._seconds:.1f} ms ({rate}){cut}; loaded in {1000 * self._loaded_s:.0f} ms"
        )


def _portions(source: str, field: str | None, form: str, dtype: str) -> Iterator[list[Row]]:
    from weft.cli.texts import in_portions, read_rows, writable
    from weft.embed.pipeline import open_source
    from weft.embed.pipeline.sources import DOCUMENTS

    place = Path(source)
    if place.is_dir() or (field is None and place.suffix.lower() in DOCUMENTS):
        raise click.UsageError("the vectors of documents go to a file; give --output")
    rows = read_rows("-", field) if source == "-" else open_source(source, field=field).rows()
    return in_portions(writable(rows, form, dtype), field or "text")


def run_pipeline(source: str, output: Path, given: dict[str, Any]) -> Report:
    """Embed a file or a folder into a file, and say what was done."""
    from weft.cli.counting import counted
    from weft.embed.pipeline import Chunking, embed_file, open_source

    embedder, how = _load(given)
    chunking = Chunking.of(given["chunk_tokens"], given["overlap"])
    rows = open_source(source, field=given["field"], embedder=embedder, chunking=chunking)
    chosen = {name: given[name] for name in ("form", "output_dtype", "restart")}
    with counted("rows") as tell:
        try:
            report = embed_file(embedder, rows, output, told=lambda n: tell(n, rows.total), **chosen, **how)
        except KeyboardInterrupt:
            screen.note("interrupted; the same command goes on from here")
            raise
    parts = [f"{screen.many(report.rows, 'row')}, {embedder.dimension} dimensions, {report.seconds:.1f} s"]
    parts += [f"{report.resumed} of them by an earlier run"] if report.resumed else []
    parts += [f"{report.cached} from the cache"] if report.cached else []
    cut = screen.many(report.dropped_texts, "text")
    parts += [f"{report.dropped_tokens} tokens of {cut} cut off"] if report.dropped_texts else []
    screen.note("; ".join(parts))
    if rows.left_out:
        named = [f"{screen.clean(name)} ({why})" for name, why in list(rows.left_out.items())[:NAMED]]
        more = f" and {len(rows.left_out) - NAMED} more" if len(rows.left_out) > NAMED else ""
        screen.note(f"left out: {', '.join(named)}{more}")
    return report


def _load(given: dict[str, Any]) -> tuple[BaseEmbedder, dict[str, Any]]:
    """The embedder that the options ask for, and what each of its calls is given."""
    embedder = options.make_embedder(given)
    name = embedder.document_prompt_name if given["prompt_name"] == "document" else given["prompt_name"]
    adapter = None
    if given["adapter"]:
        from weft import Embedder
        from weft.cli.asked import load_adapters

        if not isinstance(embedder, Embedder):
            raise click.UsageError("--adapter is for models on this machine, and --base-url asks a server")
        adapter = load_adapters(embedder.adapters, given["adapter"])
    return embedder, {"prompt_name": name, "adapter": adapter, "truncate": given["truncate"]}


def _form(output: Path | None) -> str:
    """The format that a file's name asks for."""
    from weft.embed.pipeline.targets import ENDINGS

    if output is None:
        return "text"
    if output.suffix.lower() not in ENDINGS:
        raise click.UsageError(
            f"{output.name}: files end in {', '.join(sorted(ENDINGS))}; name it accordingly, or give --format"
        )
    return ENDINGS[output.suffix.lower()]


def _check_form(form: str, output: Path | None, dtype: str) -> None:
    """Refuse what cannot be written from a stream: to the file `output`, or to standard output."""
    from weft.embed.pipeline.targets import scales_path
    from weft.weights.files import check_replaceable

    if form not in STREAMED:
        raise click.UsageError(f"{form} goes from a file to a file; give --input and --output")
    if form == "npy" and output is None and sys.stdout.isatty():
        raise click.UsageError("npy is not for a terminal; give --output or redirect")
    if dtype == "int8" and form == "text":
        raise click.UsageError("text has no place for the scales of int8; give --format jsonl")
    if dtype == "int8" and form == "npy" and output is None:
        raise click.UsageError("the scales of int8 go to a file beside the matrix; give --output, or --format jsonl")
    if output is not None:
        if not output.parent.is_dir():
            raise click.UsageError(f"{output.parent} is not a folder; make it, or write elsewhere")
        check_replaceable(output)
    if output is not None and (form, dtype) == ("npy", "int8"):
        check_replaceable(scales_path(output))


def _check_source(texts: tuple[str, ...], source: str | None, field: str | None) -> None:
    if texts and source is not None:
        raise click.UsageError("texts were given as arguments and as --input; give one of them")
    if texts and field is not None:
        raise click.UsageError("--field is for rows of a file, and the texts are arguments")
    if not texts and source is None and sys.stdin.isatty():
        raise click.UsageError("no texts; give some as arguments, name a file with --input, or pipe lines in")


def _print_table(embedder: BaseEmbedder, texts: tuple[str, ...], made: Embedded) -> None:
    numbers = [str(i + 1) for i in range(len(texts))]
    compared = made.vectors if made.scales is None else made.vectors / made.scales[:, None]
    similarity = embedder.similarity(compared, compared)
    rows = [
        (number, screen.cut(text, 40), " ".join(_short(x) for x in vector[:HEAD]) + " …", *(f"{s:.3f}" for s in line))
        for number, text, vector, line in zip(numbers, texts, made.vectors, similarity)
    ]
    columns = ("", "text", "vector", *numbers)
    screen.table(columns, rows, right=numbers, title=f"{embedder.similarity_name} similarity")


def _short(number: Any) -> str:
    return f"{number:.3f}" if number.dtype.kind == "f" else str(number)
