"""weft data: split data sets, take out duplicates and what they are judged by, and describe them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen
from weft.cli.stopping import terminable

if TYPE_CHECKING:
    from weft.data import Statistics

SHOWN_LABELS = 10


def common() -> Callable[[options.F], options.F]:
    """What all commands have."""
    return options.together(
        click.argument("data", type=click.Path(path_type=Path)),
        click.option(
            "--field",
            "fields",
            multiple=True,
            metavar="NAME",
            help="The field with a row's text, several times to join them (default: text, prompt, question, …).",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        terminable(),
    )


def vectors(threshold: float) -> Callable[[options.F], options.F]:
    """The options of comparisons by vectors."""
    return options.together(
        click.option("--near", "model", metavar="MODEL", help="Compare the vectors of this embedder too."),
        click.option(
            "--threshold",
            type=click.FloatRange(0, 1, min_open=True),
            default=threshold,
            show_default=True,
            help="The cosine from which on two texts are the same.",
        ),
        options.threads(),
    )


@click.group()
def command() -> None:
    """Split data sets, clean and describe them.

    DATA is a .jsonl, .csv or .parquet file of rows with a text. Files that are written are JSON lines, each with a
    manifest: digests and counts of what went in and came out, the options, the version.

    \b
    Examples:
      weft data stats chats.jsonl --html chats.html
      weft data dedupe chats.jsonl -o clean.jsonl --near all-MiniLM-L6-v2
      weft data split clean.jsonl -o parts --parts train=0.9,test=0.1
      weft data check parts/train.jsonl --against benchmark.jsonl --clean train.jsonl
    """


@command.command("split")
@common()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="A new folder.")
@click.option(
    "--parts",
    default="train=0.8,valid=0.1,test=0.1",
    show_default=True,
    metavar="NAME=SHARE,…",
    help="With a sum of 1.",
)
@click.option("--key", metavar="FIELD", help="Rows with the same value here stay together (default: the text).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Another seed, other parts.")
def split(data: Path, output: Path, parts: str, fields: tuple[str, ...], as_json: bool, **how: Any) -> None:
    """Put each row into a part.

    A hash of the row's text, or of the field --key, decides: not its place. So a row stays in its part when others are
    added, and rows with the same text are never in two parts. Shares hold on average.

    \b
    Examples:
      weft data split rows.jsonl -o parts
      weft data split tickets.csv -o parts --parts train=0.95,test=0.05 --key customer
    """
    from weft import data as library

    made = library.split(data, output, parts=_parts(parts), fields=fields, **how)
    if as_json:
        screen.print_json({"folder": str(made.folder), "rows": made.rows})
        return
    for name, count in made.rows.items():
        screen.note(f"{name}: {screen.many(count, 'row')}")
    click.echo(str(made.folder))


@command.command("dedupe")
@common()
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Where the rows go that stay.")
@click.option("--removed", type=click.Path(path_type=Path), metavar="FILE", help="Where the others go.")
@vectors(0.95)
def dedupe(data: Path, as_json: bool, **how: Any) -> None:
    """Leave out rows that an earlier one says already.

    Texts that differ in case and spaces only are the same. With --near so are those whose vectors are: the first one
    stays, and a row goes only if one that stays is near.

    \b
    Examples:
      weft data dedupe rows.jsonl -o clean.jsonl
      weft data dedupe rows.jsonl -o clean.jsonl --near all-MiniLM-L6-v2 --removed twins.jsonl
    """
    from weft import data as library

    found = library.dedupe(data, how.pop("output"), **how)
    counts = {"rows": found.rows, "kept": found.kept, "exact": len(found.exact), "near": len(found.near)}
    _tell(counts, as_json, {"exact": "the same text as an earlier row", "near": "near to an earlier row"})


@command.command("check")
@common()
@click.option("--against", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The evaluation set.")
@click.option("--against-field", "against_fields", multiple=True, metavar="NAME", help="The field with its texts.")
@click.option("--ngram", type=click.IntRange(3), default=8, show_default=True, help="Words of a run.")
@click.option(
    "--overlap",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    show_default=True,
    help="The share of an evaluation text's runs that a row may not have.",
)
@click.option("--clean", type=click.Path(path_type=Path), metavar="FILE", help="Where rows go that were not found.")
@click.option("--found", type=click.Path(path_type=Path), metavar="FILE", help="Where the others go.")
@click.option("--strict", is_flag=True, help="End with status 1 if a row is found.")
@vectors(0.9)
def check(data: Path, against: Path, as_json: bool, strict: bool, **how: Any) -> None:
    """Find rows that an evaluation set has too.

    A model that has learnt what it is judged by looks better than it is. A row is found by the same text, by long runs
    of the same words, and with --near by vectors.

    \b
    Examples:
      weft data check train.jsonl --against test.jsonl --strict
      weft data check train.jsonl --against test.jsonl --near all-MiniLM-L6-v2 --clean clean.jsonl
    """
    from weft import data as library

    made = library.check(data, against, **how)
    counts = {"rows": made.rows, "against": made.against, **made.counts, "touched": made.touched}
    said = {"exact": "the same text", "ngram": "the same runs of words", "near": "near by vectors"}
    _tell(counts, as_json, {**said, "touched": "evaluation rows that were found"})
    if strict and made.found:
        raise click.exceptions.Exit(1)


@command.command("stats")
@common()
@click.option("--tokens", metavar="MODEL", help="Count the tokens of this model too.")
@click.option("--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write a page.")
def stats(data: Path, fields: tuple[str, ...], as_json: bool, tokens: str | None, page: Path | None) -> None:
    """Say what a data set is like: fields, lengths, labels, repetitions.

    \b
    Examples:
      weft data stats rows.jsonl --tokens smollm2-135m-instruct
      weft data stats rows.jsonl --html rows.html
    """
    from dataclasses import asdict

    from weft import data as library

    tokenizer = None
    if tokens is not None:
        from weft.cli.commands.tokenize import opened_tokenizer

        tokenizer = opened_tokenizer(tokens)
    found = library.stats(data, fields=fields, tokenizer=tokenizer)
    if page is not None:
        library.write_page(found, page)
    if as_json:
        screen.print_json(asdict(found))
        return
    _tell_stats(found)
    if page is not None:
        click.echo(str(page))


def _parts(text: str) -> dict[str, float]:
    made: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            made[name.strip()] = float(share)
        except ValueError:
            raise click.UsageError(f"--parts must be NAME=SHARE,NAME=SHARE: {part!r} is not") from None
    return made


def _tell(counts: dict[str, int], as_json: bool, said: dict[str, str]) -> None:
    if as_json:
        screen.print_json(counts)
        return
    screen.facts([(said.get(name, name), f"{count:,}") for name, count in counts.items()])


def _tell_stats(found: Statistics) -> None:
    facts = [("rows", f"{found.rows:,}"), ("repeated texts", f"{found.repeated:,}"), ("empty", f"{found.empty:,}")]
    for name, kinds in found.fields.items():
        facts.append((f"field {name}", ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())))
    for name, one in found.lengths.items():
        spread = f"{one.least:,} to {one.most:,}, median {one.median:,}, mean {one.mean:,.1f}, 99 % up to {one.p99:,}"
        facts.append((name, f"{spread}; {one.total:,} in all"))
    shown = list(found.labels.items())[:SHOWN_LABELS]
    facts += [(f"label {name}", f"{count:,}") for name, count in shown]
    if len(found.labels) > len(shown):
        facts.append(("more labels", f"{len(found.labels) - len(shown):,}"))
    screen.facts(facts)
