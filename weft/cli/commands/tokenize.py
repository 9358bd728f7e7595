"""weft tokenize: the ids of texts, or the text of ids."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    from weft.text import Tokenizer


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT…]")
@click.option("-m", "--model", default=options.DEFAULT_GENERATOR, show_default=True, help="Name, folder or file.")
@click.option("-i", "--input", "source", metavar="FILE|-", help="Read one text, the whole file.")
@click.option("--ids", "only_ids", is_flag=True, help="Print only the ids, one line per text.")
@click.option("--count", is_flag=True, help="Print only the number of ids, one line per text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--decode", is_flag=True, help="Read ids and print their text.")
@click.option("--no-special", is_flag=True, help="Do not add the model's special tokens.")
@click.option("--parse-special", is_flag=True, help="Treat text such as <|im_end|> as the special token.")
def command(
    texts: tuple[str, ...],
    model: str,
    source: str | None,
    only_ids: bool,
    count: bool,
    as_json: bool,
    decode: bool,
    no_special: bool,
    parse_special: bool,
) -> None:
    """Show the tokens of texts, or the text of ids.

    Prints the id of each token, how the vocabulary writes it, and its position in the text in characters. Only the
    model's tokenizer is read; --model may be a tokenizer file alone (tokenizer.json, tokenizer.model, tekken.json,
    vocab.txt or a .tiktoken file).

    \b
    Examples:
      weft tokenize "Hello, world!"
      weft tokenize --model ./tokenizer.json "naïve café" --json
      weft tokenize --input book.txt --count
      weft tokenize --ids "a text" | weft tokenize --decode
    """
    if sum((only_ids, count, as_json, decode)) > 1:
        raise click.UsageError("--ids, --count, --json and --decode cannot be combined; give one")
    if texts and source is not None:
        raise click.UsageError("texts are given both as arguments and with --input; give one of them")
    if not texts and source is None and sys.stdin.isatty():
        raise click.UsageError("no text given; give texts as arguments, a file with --input, or pipe one in")
    from weft.cli.texts import read_text

    given = list(texts) or [read_text(source or "-")]
    tokenizer = opened_tokenizer(model)
    if decode:
        click.echo(tokenizer.decode(_numbers(given), skip_special=False))
        return
    rows = [_row(tokenizer, text, not no_special, parse_special) for text in given]
    if as_json:
        screen.print_json(rows)
    for row in [] if as_json else rows:
        _print(row, only_ids, count)


def opened_tokenizer(model: str) -> Tokenizer:
    from weft.text import Tokenizer
    from weft.weights import open_weights
    from weft.weights.sources import locate

    path = Path(model).expanduser()
    if not (path.is_file() and path.suffix in (".json", ".model", ".txt", ".tiktoken")):
        path = locate(model).path
    if path.suffix == ".gguf":
        with open_weights(path) as opened:
            return Tokenizer.from_gguf(opened.metadata)
    return Tokenizer.from_file(path.parent if path.suffix == ".safetensors" else path)


def _numbers(given: list[str]) -> list[int]:
    words = " ".join(given).replace(",", " ").replace("[", " ").replace("]", " ").split()
    wrong = next((word for word in words if not word.isdecimal() or len(word) > 9), None)
    if wrong is not None:
        raise click.UsageError(f"{screen.cut(wrong, 40)!r} is not a token id; ids are whole numbers")
    return [int(word) for word in words]


def _row(tokenizer: Tokenizer, text: str, special: bool, parse: bool) -> dict[str, Any]:
    located = tokenizer.encode_offsets(text, add_special=special, parse_special=parse)
    return {
        "text": text,
        "ids": located.ids,
        "tokens": [tokenizer.token(id) for id in located.ids],
        "offsets": located.offsets.tolist(),
    }


def _print(row: dict[str, Any], only_ids: bool, count: bool) -> None:
    if count:
        click.echo(len(row["ids"]))
    elif only_ids:
        click.echo(" ".join(map(str, row["ids"])))
    else:
        text = row["text"]
        lines = [
            (id, token, start, end, repr(text[start:end])[1:-1])
            for id, token, (start, end) in zip(row["ids"], row["tokens"], row["offsets"])
        ]
        screen.table(("id", "token", "start", "end", "text"), lines, right=("id", "start", "end"))
