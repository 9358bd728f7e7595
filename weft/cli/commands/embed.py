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
    import numpy as np

    from weft import BaseEmbedder
    from weft.cli.texts import Write
    from weft.embed.pipeline import Report
    from weft.embed.pipeline.sources import Row
    from weft.embed.results import Embedded

FORMATS = ("text", "jsonl", "npy", "parquet", "sqlite", "index")
STREAMED = ("text", "jsonl", "npy")  # the others need an input file, which is read more than once
TABLE_TEXTS = range(2, 13)  # this many arguments are compared with each other
HEAD = 4  # numbers of a vector that the table shows
NAMED = 5  # how many files that were left out are listed


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT…]")
@click.option(
    "-i",
    "--input",
    "source",
    metavar="FILE|FOLDER|-",
    help="Read texts from a file, a folder or standard input (-); see above.",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A picture to embed, after the texts, with a model that sees (CLIP, SigLIP); may be repeated.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file instead of standard output.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Output format (default: by the ending of --output, else text).",
)
@click.option("--field", metavar="NAME", help="The field or column that has the text (default: text).")
@options.embedding()
@options.remote("--model")
@click.option(
    "--output-dtype",
    type=click.Choice(["f32", "f16", "int8", "binary"]),
    default="f32",
    show_default=True,
    help="Type of the numbers. int8 has a scale per vector (for npy in NAME.scales.npy), binary a bit per number.",
)
@options.documents()
@options.rebuilding()
@options.adapter()
@options.threads()
@options.device()
@terminable()
def command(
    texts: tuple[str, ...], source: str | None, output: Path | None, form: str | None, field: str | None, **given: Any
) -> None:
    """Turn texts into vectors.

    Texts are arguments, lines of standard input, or rows of a file: lines, JSON lines (.jsonl), CSV (.csv, .tsv),
    Parquet (.parquet), or the documents of a folder, cut into chunks of tokens. Row n of the result is text n; empty
    lines count as texts. Two to twelve arguments print a table of their similarities; with `--output -` they print
    their vectors. Output formats: `text` has one vector per line; `jsonl` one object per line, with an "embedding" and
    the row's other fields; `npy` a matrix; `parquet` and `sqlite` rows and vectors; `index` is a folder for
    `weft search`, embedded with the model's prompt for documents unless --prompt-name is given.

    From a file to a file, memory use stays small, and a stopped run resumes when the same command is run again: its
    progress is kept beside the output, in a folder that ends in .part. An index that is there already is updated. Of a
    folder, hidden files, files that .gitignore names, packages, virtual environments and files over 16 MB are left out
    (--all-files, --max-file-size). From standard input, memory use stays small too,
    vectors are written as they are computed, and Ctrl-C keeps them.

    \b
    Examples:
      weft embed "a cat" "a dog" "the stock market"
      weft embed --input lines.txt --output vectors.npy
      weft embed --input docs.jsonl --field body --output embedded.parquet
      weft embed --input notes/ --output notes.sqlite --chunk-tokens 128
      cat docs.jsonl | weft embed --field body --format npy > vectors.npy
      weft embed "how do magnets work?" --prompt-name query --format jsonl
      weft embed --input lines.txt --output vectors.npy --adapter ./my-lora
      weft embed "a red bicycle" --image bicycle.jpg --model ./siglip2-base-patch16-224
      weft embed "a cat" "a dog" -m text-embedding-3-small --base-url https://api.openai.com/v1
    """
    images: tuple[str, ...] = given.pop("images")
    _check_source((*texts, *images), source, field)
    from_file = source is not None and source != "-"
    to_file = output is not None and str(output) != "-"
    if from_file and to_file:
        chosen = form or _form(Path(str(output)))
        run_pipeline(str(source), Path(str(output)), {**given, "form": chosen, "field": field})
        return
    place = output if to_file else None
    chosen = form or _form(place)
    compared = chosen == "text" and output is None and len(texts) + len(images) in TABLE_TEXTS
    dtype = given["output_dtype"]
    if not compared:
        _check_form(chosen, place, dtype)
    rows = [{"text": text} for text in texts] + [{"image": image} for image in images]
    parts = iter([rows]) if rows else _portions(source or "-", field, chosen, dtype)
    first = next(parts, [])  # before a model is loaded, so that unreadable input fails at once
    stream = _Stream(field or "text", given)
    if compared:
        stream.add(
            first,
            lambda _, records: _print_table(
                stream.embedder, (*texts, *(Path(image).name for image in images)), records
            ),
        )
    else:
        stream.write(chain([first], parts), chosen, place)
    stream.tell()


class _Stream:
    """Embeds portions of rows one after the other, and counts what was done."""

    def __init__(self, field: str, given: dict[str, Any]) -> None:
        from weft import Embedder

        start = time.perf_counter()
        self.embedder, self._how = _load(given)
        if isinstance(self.embedder, Embedder):  # a server may charge for a request
            # Binds the weights, so that this counts as loading; it bypasses the cache.
            self.embedder.encode_ids(self.embedder.token_ids(["a"]).ids, adapter=self._how["adapter"])
        self._loaded_s = time.perf_counter() - start
        self._how["output_dtype"] = given["output_dtype"]
        self._field = field
        self._rows = self._cached = self._cut_texts = self._cut_tokens = 0
        self._seconds = 0.0

    def write(self, parts: Iterator[list[Row]], form: str, output: Path | None) -> None:
        """Embed all portions to a file or standard output. If it is stopped, the vectors made so far are kept."""
        from weft.cli.counting import counted
        from weft.cli.texts import writing
        from weft.errors import WeftError

        stopped: BaseException | None = None
        apart = output is not None or not sys.stdout.isatty()  # a counter between the numbers would be useless
        with writing(form, output) as write, counted("texts") if apart else nullcontext(lambda _: None) as count:
            try:
                for part in parts:
                    self.add(part, write)
                    count(self._rows)
            except (WeftError, KeyboardInterrupt) as error:
                if not self._rows:
                    raise
                stopped = error
        if stopped is not None:
            screen.note(f"stopped; the vectors of {screen.many(self._rows, 'text')} were written")
            raise stopped

    def add(self, part: list[Row], write: Write) -> None:
        """Embed a portion and write it."""
        from weft import EmbedInterrupted
        from weft.errors import TooLongError

        start = time.perf_counter()
        try:
            made = self.embedder.embed([self._item(row) for row in part], progress=False, **self._how)
        except EmbedInterrupted as error:
            self._keep(part, error.done, write)
            raise
        except TooLongError as error:
            if error.field != "text":  # a prompt
                raise
            advice = "shorten it, or use --truncate head, tail or chunk"
            raise error.but(index=self._rows + error.index, advice=advice) from None
        self._seconds += time.perf_counter() - start
        self._keep(part, made, write)

    def _item(self, row: Row) -> Any:
        """The text of a row, or its picture."""
        return row[self._field] if self._field in row else Path(row["image"])

    def _keep(self, part: list[Row], made: Embedded, write: Write) -> None:
        from weft.embed.pipeline.writers import record_dtype, records_of
        from weft.generate.interrupts import InterruptsHeld

        records = records_of(made, record_dtype(self.embedder.dimension, self._how["output_dtype"]))
        with InterruptsHeld():  # lines are written completely, and no vector is lost
            write(part[: len(made)], records)
            self._rows += len(made)
            self._cached += made.cached
            self._cut_texts += int((made.dropped > 0).sum())
            self._cut_tokens += int(made.dropped.sum())

    def tell(self) -> None:
        """Print how many texts were embedded, and how fast."""
        rate = f"{self._rows / self._seconds:.0f} texts/s" if self._rows else "no texts"
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
    from weft.embed.pipeline.formats import DOCUMENTS

    place = Path(source)
    if place.is_dir() or (field is None and place.suffix.lower() in DOCUMENTS):
        raise click.UsageError("documents are embedded into a file; give --output")
    rows = read_rows("-", field) if source == "-" else open_source(source, field=field).rows()
    return in_portions(writable(rows, form, dtype), field or "text")


def run_pipeline(source: str, output: Path, given: dict[str, Any]) -> Report:
    """Embed a file or a folder into a file, and print a summary."""
    from weft.cli.counting import counted
    from weft.embed.pipeline import Chunking, embed_file, open_source

    embedder, how = _load(given)
    chunking = Chunking.of(given["chunk_tokens"], given["overlap"])
    selection = options.selection_of(given)
    rows = open_source(source, field=given["field"], embedder=embedder, chunking=chunking, selection=selection)
    chosen = {name: given[name] for name in ("form", "output_dtype", "restart", "replace")}
    with counted("rows") as tell:
        try:
            report = embed_file(embedder, rows, output, on_progress=lambda n: tell(n, rows.total), **chosen, **how)
        except KeyboardInterrupt:
            screen.note("interrupted; run the same command again to resume")
            raise
    parts = [f"{screen.many(report.rows, 'row')}, {embedder.dimension} dimensions, {report.seconds:.1f} s"]
    parts += [f"{report.reused:,} unchanged since the last build"] if report.reused else []
    parts += [f"{report.resumed:,} from a stopped run"] if report.resumed else []
    parts += [f"{report.cached:,} from the cache"] if report.cached else []
    parts += [f"{screen.many(report.removed, 'old row')} removed"] if report.removed else []
    cut = screen.many(report.dropped_texts, "text")
    parts += [f"{report.dropped_tokens} tokens of {cut} cut off"] if report.dropped_texts else []
    screen.note("; ".join(parts))
    _tell_left_out(rows.left_out, given["verbose"])
    return report


def _tell_left_out(left_out: dict[str, str], every: bool) -> None:
    """Say how many files were left out, and name some or `every` one: first those that cannot be read."""
    from collections import Counter

    from weft.embed.pipeline.walking import BY_RULE

    if not left_out:
        return
    ordered = sorted(left_out.items(), key=lambda item: (item[1] in BY_RULE, item[0]))
    named = [f"{screen.clean(name)} ({why})" for name, why in ordered]
    begin = f"{screen.many(len(named), 'path')} left out:"
    if every:
        screen.note("\n  ".join([begin, *named]))
        return
    reasons = Counter(why for _, why in ordered[NAMED:])
    rest = ", ".join(f"{count:,} {why}" for why, count in reasons.items())
    more = f", and {len(named) - NAMED:,} more ({rest}); name all with --verbose" if reasons else ""
    screen.note(f"{begin} {', '.join(named[:NAMED])}{more}")


def _load(given: dict[str, Any]) -> tuple[BaseEmbedder, dict[str, Any]]:
    """The embedder of the options, and the arguments of each of its calls."""
    embedder = options.make_embedder(given)
    name = embedder.document_prompt_name if given["prompt_name"] == "document" else given["prompt_name"]
    adapter = None
    if given["adapter"]:
        from weft import Embedder
        from weft.cli.asked import load_adapters

        if not isinstance(embedder, Embedder):
            raise click.UsageError("--adapter works for models on this machine only; leave it out with --base-url")
        adapter = load_adapters(embedder.adapters, given["adapter"])
    return embedder, {"prompt_name": name, "adapter": adapter, "truncate": given["truncate"]}


def _form(output: Path | None) -> str:
    """The format of a file, by the ending of its name."""
    from weft.embed.pipeline.formats import ENDINGS

    if output is None:
        return "text"
    if output.suffix.lower() not in ENDINGS:
        raise click.UsageError(
            f"{output.name} has no known ending ({', '.join(sorted(ENDINGS))}); rename it, or give --format"
        )
    return ENDINGS[output.suffix.lower()]


def _check_form(form: str, output: Path | None, dtype: str) -> None:
    """Refuse a form that cannot be streamed to the file `output`, or to standard output."""
    from weft.embed.pipeline.writers import scales_path
    from weft.weights.files import check_replaceable

    if form not in STREAMED:
        raise click.UsageError(f"the format {form} needs an input and an output file; give --input and --output")
    if form == "npy" and output is None and sys.stdout.isatty():
        raise click.UsageError("npy is binary and is not written to a terminal; give --output, or redirect the output")
    if dtype == "int8" and form == "text":
        raise click.UsageError("text cannot hold the scales of int8; give --format jsonl")
    if dtype == "int8" and form == "npy" and output is None:
        raise click.UsageError("npy needs a second file for the scales of int8; give --output, or --format jsonl")
    if output is not None:
        if not output.parent.is_dir():
            raise click.UsageError(f"{output.parent} is not a folder; create it, or write elsewhere")
        check_replaceable(output)
    if output is not None and (form, dtype) == ("npy", "int8"):
        check_replaceable(scales_path(output))


def _check_source(texts: tuple[str, ...], source: str | None, field: str | None) -> None:
    if texts and source is not None:
        raise click.UsageError("texts were given both as arguments and with --input; give one of them")
    if texts and field is not None:
        raise click.UsageError("--field applies to rows of a file, and the texts were given as arguments")
    if not texts and source is None and sys.stdin.isatty():
        raise click.UsageError("no texts; give them as arguments, name a file with --input, or pipe lines in")


def _print_table(embedder: BaseEmbedder, texts: tuple[str, ...], records: np.ndarray) -> None:
    numbers = [str(i + 1) for i in range(len(texts))]
    scaled = "scale" in (records.dtype.names or ())
    compared = records["vector"] / records["scale"][:, None] if scaled else records["vector"]
    similarity = embedder.similarity(compared, compared)
    rows = [
        (number, screen.cut(text, 40), " ".join(_short(x) for x in vector[:HEAD]) + " …", *(f"{s:.3f}" for s in line))
        for number, text, vector, line in zip(numbers, texts, records["vector"], similarity)
    ]
    columns = ("", "text", "vector", *numbers)
    screen.table(columns, rows, right=numbers, title=f"{embedder.similarity_name} similarity")


def _short(number: Any) -> str:
    return f"{number:.3f}" if number.dtype.kind == "f" else str(number)
