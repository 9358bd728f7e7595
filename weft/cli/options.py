"""Options that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from weft import BaseEmbedder
    from weft.embed.remote import Server

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_EMBEDDER = "all-MiniLM-L6-v2"
DEFAULT_GENERATOR = "smollm2-135m-instruct"


def together(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator, shown in the order they are given."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def threads() -> Callable[[F], F]:
    return click.option(
        "--threads", type=click.IntRange(1), metavar="N", help="Worker threads (default: see `weft doctor`)."
    )


def context() -> Callable[[F], F]:
    text = "Longest sequence in tokens (default: the model's, at most 8192)."
    return click.option("--context", type=click.IntRange(1), metavar="N", help=text)


def variables() -> Callable[[F], F]:
    """`--set NAME=VALUE`, several times: a dict; values are JSON, or text where they are not."""

    def parse(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
        found = {name: json_or_text(value) for name, value in map(_pair, given)}
        for name in found:
            if not name.isidentifier():
                raise click.BadParameter(f"{name!r:.60} is no name of a variable")
        return found

    text = "A variable of the chat template, such as enable_thinking=false; may be given several times."
    return click.option("--set", "variables", multiple=True, metavar="NAME=VALUE", callback=parse, help=text)


def where() -> Callable[[F], F]:
    """`--where NAME=VALUE`, several times: names, each with a condition that an index's `where` takes."""

    def parse(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
        return [(name, condition) for name, value in map(_field, given) for condition in _conditions(name, value)]

    text = (
        "Only rows whose field has this value: lang=en, or a condition as 'year={\"gte\": 2000}'; may be given several "
        "times."
    )
    return click.option("--where", multiple=True, metavar="NAME=VALUE", callback=parse, help=text)


def _field(given: str) -> tuple[str, str]:
    """A name and a value; what other languages write for a range is told from them."""
    before, equals, _ = given.partition("=")
    if before.endswith(("<", ">", "!")) or (not equals and ("<" in given or ">" in given)):
        name = before.partition("<")[0].partition(">")[0].rstrip("!") or "year"
        example = f'\'{name}={{"gte": 2000, "lt": 2010}}\''
        raise click.BadParameter(
            f"{given!r:.60} is not NAME=VALUE; a range is written {example}, and there are eq, ne, in and nin"
        )
    return _pair(given)


def _conditions(name: str, text: str) -> list[dict[str, Any]]:
    """What is asked of a field, an operator at a time. Numbers may be texts there: a CSV file has no others."""
    value = json_or_text(text)
    if isinstance(value, str) and text.lstrip().startswith("{"):
        raise click.BadParameter(f"{text!r:.60} is not JSON; a condition is written '{name}={{\"gte\": 2000}}'")
    if isinstance(value, dict):
        return [_with_texts(way, wanted) for way, wanted in value.items()] or [value]
    return [{"eq": value} if isinstance(value, str) else {"in": [value, text]}]


def _with_texts(way: str, wanted: Any) -> dict[str, Any]:
    same = {"eq": "in", "ne": "nin"}
    if way not in (*same, *same.values()) or (way not in same and not isinstance(wanted, list)):
        return {way: wanted}
    values = [wanted] if way in same else wanted
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return {same.get(way, way): [*values, *map(json.dumps, numbers)]}


def _pair(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{given!r:.60} is not NAME=VALUE")
    return name, value


def json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def kv_dtype() -> Callable[[F], F]:
    text = (
        "How keys and values are kept (default: f32 beside f32 weights, bf16 where activations are rounded, else f16); "
        "int8 takes half the memory of bf16."
    )
    return click.option("--kv-dtype", type=click.Choice(["f32", "f16", "bf16", "int8"]), help=text)


LOADING = ("threads", "context", "compute", "kv_dtype")


def loading() -> Callable[[F], F]:
    """How a generator is loaded: the options LOADING are keyword arguments of weft.load."""
    compute = click.option(
        "--compute",
        type=click.Choice(["int8", "bf16", "f16", "f32"]),
        help="What activations are rounded to before products: int8 beside quantised weights (their default), bf16 "
        "or f16 beside others (the default of 16-bit ones where the processor multiplies one of them), f32 not at all.",
    )
    return together(threads(), context(), compute, kv_dtype())


def sampling(*, max_tokens: int, temperature: float, top_p: float) -> Callable[[F], F]:
    """How tokens are chosen; the keyword arguments of a request. Ranges are checked by the library."""
    return together(
        click.option("--max-tokens", type=int, default=max_tokens, show_default=True, help="Most tokens to make."),
        click.option(
            "--temperature", type=float, default=temperature, show_default=True, help="0 takes the best token."
        ),
        click.option("--top-k", type=int, default=0, show_default=True, help="Keep the k best tokens; 0 keeps all."),
        click.option("--top-p", type=float, default=top_p, show_default=True, help="Keep this much probability."),
        click.option(
            "--min-p", type=float, default=0.0, show_default=True, help="Least share of the best's probability."
        ),
        click.option("--typical-p", type=float, default=1.0, show_default=True, help="Keep this much of the typical."),
        click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="Above 1: repeat less."),
        click.option("--presence-penalty", type=float, default=0.0, show_default=True, help="Taken from what came."),
        click.option("--frequency-penalty", type=float, default=0.0, show_default=True, help="The same, each time."),
        biases(),
        click.option("--seed", type=int, help="Repeats a result; default: a fresh one."),
        click.option("--min-tokens", type=int, default=0, show_default=True, help="Fewest tokens to make."),
        click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times."),
        click.option("--ignore-eos", is_flag=True, help="Go on past the model's own end."),
        click.option("--reasoning-budget", type=int, metavar="N", help="End reasoning (<think>) after N tokens."),
        click.option(
            "--speculate/--no-speculate",
            default=True,
            help="Check repeated text several tokens at a time where that pays (default); the text is the same.",
        ),
    )


def biases() -> Callable[[F], F]:
    """`--logit-bias ID=VALUE`, several times: a dict."""

    def parse(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[int, float]:
        try:
            return {int(key): float(value) for key, _, value in (pair.partition("=") for pair in given)}
        except ValueError:
            raise click.BadParameter(f"{given!r:.80} is not ID=VALUE") from None

    text = "Add VALUE (-100 to 100) to the logit of token ID; may be given several times. `weft tokenize` shows ids."
    return click.option("--logit-bias", multiple=True, metavar="ID=VALUE", callback=parse, help=text)


SHAPES = ("schema", "regex", "grammar", "choice")


def shape() -> Callable[[F], F]:
    """What the text has to look like: the options SHAPES, of which at most one is given."""
    return together(
        click.option("--schema", metavar="FILE", help="JSON that satisfies this JSON Schema (a file, or the JSON)."),
        click.option("--regex", metavar="PATTERN", help="Text that the whole pattern matches."),
        click.option("--grammar", metavar="FILE", help="A grammar in Lark's notation, or GBNF in a .gbnf file."),
        click.option("--choice", multiple=True, metavar="TEXT", help="One of these; given once for each."),
    )


ENGINE = ("adapter", "prefix_dir", "draft_model")


def adapter() -> Callable[[F], F]:
    return click.option(
        "--adapter",
        multiple=True,
        metavar="FOLDER[=WEIGHT]",
        help="A LoRA adapter (PEFT or MLX); several are blended by their weights.",
    )


def engine() -> Callable[[F], F]:
    """What the engine works with: the options ENGINE."""
    return together(
        adapter(),
        click.option(
            "--prefix-dir", metavar="DIR", help="Keep the computed beginnings of texts here, for the next start too."
        ),
        click.option(
            "--draft-model", metavar="MODEL", help="A smaller model of the same vocabulary that drafts; same text."
        ),
    )


def embedding() -> Callable[[F], F]:
    """The options that decide an embedder and its vectors; `make_embedder` reads them."""
    return together(
        click.option("-m", "--model", default=DEFAULT_EMBEDDER, show_default=True, help="Name, folder or file."),
        click.option("--prompt-name", help="Put the model's prompt of this name before each text: query, document."),
        click.option(
            "--truncate",
            type=click.Choice(["error", "head", "tail", "chunk"]),
            help="A text that is too long: refuse it (the default), keep its beginning, keep its end, or embed all of "
            "it in windows and take their mean.",
        ),
        click.option("--no-normalise", is_flag=True, help="Leave vectors at their own length."),
        click.option("--pooling", help="How an encoder that does not say so pools: mean, first, last or max."),
        click.option("--dimensions", type=click.IntRange(1), metavar="N", help="Cut vectors of a model made for it."),
        click.option(
            "--compute",
            type=click.Choice(["f32", "f16", "bf16x3", "bf16", "int8"]),
            default="f32",
            show_default=True,
            help="What products are made of; with a matrix unit bf16x3 (near f32) is faster than f32, bf16 much "
            "faster, and without one both are slower; on Arm with half precision f16 is faster; int8 is the fastest, "
            "with vectors a little further away.",
        ),
        click.option("--cache", metavar="disk|FILE", help="Keep vectors, and take those that are there; `weft cache`."),
    )


def remote(model: str = "model") -> Callable[[F], F]:
    """A server that makes the vectors: `base_url` and, read from its variable, `api_key`."""

    def read(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
        if name is None:
            return None
        if not os.environ.get(name):
            raise click.BadParameter(f"the variable {name!r:.60} is not set; it should hold the key")
        return os.environ[name]

    return together(
        click.option("--base-url", metavar="URL", help=f"Ask this server, which speaks OpenAI's API, for its {model}."),
        click.option(
            "--api-key-env",
            "api_key",
            metavar="NAME",
            callback=read,
            help="The environment variable that holds the server's key.",
        ),
    )


def schema() -> Callable[[F], F]:
    return click.option("--schema", default="weft", show_default=True, help="The schema in a PostgreSQL database.")


def server_of(given: Mapping[str, Any]) -> Server | None:
    """The server that the options of `remote` name."""
    from weft.embed.remote import Server

    url = given["base_url"]
    return None if url is None else Server(url, given["api_key"])


def make_embedder(given: Mapping[str, Any]) -> BaseEmbedder:
    """The embedder that the options of `embedding`, `remote` and `threads` ask for."""
    import weft

    server = server_of(given)
    if server is not None:
        own = {"pooling": given["pooling"], "no-normalise": given["no_normalise"], "compute": given["compute"] != "f32"}
        if named := [name for name, value in own.items() if value]:
            raise click.UsageError(f"--{named[0]} is for models on this machine, and --base-url asks a server")
        return server.ask_for(given["model"], dimensions=given["dimensions"], cache=given["cache"])
    normalise = False if given["no_normalise"] else None
    names = ("pooling", "dimensions", "compute", "cache", "threads")
    return weft.Embedder(given["model"], normalise=normalise, **{name: given[name] for name in names})


def chunks() -> Callable[[F], F]:
    """How the documents of a folder are cut."""
    return together(
        click.option(
            "--chunk-tokens",
            type=click.IntRange(8),
            default=200,
            show_default=True,
            metavar="N",
            help="Tokens of a chunk of a folder's document.",
        ),
        click.option(
            "--overlap",
            type=click.IntRange(0),
            metavar="N",
            help="Tokens that a chunk shares with the one before it (default: a fifth of it).",
        ),
    )
