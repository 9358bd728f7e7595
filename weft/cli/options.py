"""Options that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft import flags
from weft.computes import DECODER_COMPUTES, EMBEDDER_COMPUTES, ENCODER_COMPUTES

if TYPE_CHECKING:
    from weft import BaseEmbedder
    from weft.embed.pipeline import Selection
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


class AutoOrPart(click.ParamType):
    """`auto`, or a number."""

    name = "auto or a number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        try:
            return "auto" if value == "auto" else float(value)
        except ValueError:
            self.fail(f"{value!r} is neither auto nor a number", param, ctx)


def dropout() -> Callable[[F], F]:
    """`--dropout` of encoders that learn."""
    help = "Part of its activations that the model leaves out while it learns (default: auto, what its config says)."
    return click.option("--dropout", type=AutoOrPart(), metavar="auto|PART", help=help)


def threads() -> Callable[[F], F]:
    return click.option(
        "--threads", type=click.IntRange(1), metavar="N", help="Worker threads (default: see `weft doctor`)."
    )


def device() -> Callable[[F], F]:
    """`--device`: what runs the models of this command, by WEFT_BACKEND."""

    def use(_: click.Context, __: click.Parameter, given: str | None) -> None:
        if given is None:
            return
        from weft.backends import is_gpu

        if given not in ("auto", "cpu") and not is_gpu(given):
            raise click.BadParameter(f"{given!r:.40} is not a device; use auto, cpu, gpu, or gpu:1 for the second GPU")
        os.environ["WEFT_BACKEND"] = given

    text = "What computes: cpu (default), gpu, gpu:1 for the second GPU, cuda, webgpu, or auto."
    return click.option("--device", metavar="DEVICE", callback=use, expose_value=False, is_eager=True, help=text)


def context() -> Callable[[F], F]:
    text = "Longest sequence in tokens (default: the model's, if half of the free memory holds it; `weft show` says)."
    return click.option("--context", type=click.IntRange(1), metavar="N", help=text)


def variables() -> Callable[[F], F]:
    """`--set NAME=VALUE`, several times: a dict; values are JSON, or text where they are not."""

    def parse(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
        found = {name: json_or_text(value) for name, value in map(_pair, given)}
        for name in found:
            if not name.isidentifier():
                raise click.BadParameter(f"{name!r:.60} is not a variable name; use letters, digits and _")
        return found

    text = "Set a variable of the chat template, as in enable_thinking=false; may be given several times."
    return click.option("--set", "variables", multiple=True, metavar="NAME=VALUE", callback=parse, help=text)


def where() -> Callable[[F], F]:
    """`--where NAME=VALUE`, several times: names, each with a condition for the `where` of an index."""

    def parse(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
        return [(name, condition) for name, value in map(_field, given) for condition in _conditions(name, value)]

    text = (
        "Only rows whose field has this value (lang=en) or meets a condition ('year={\"gte\": 2000}'); may be given "
        "several times."
    )
    return click.option("--where", multiple=True, metavar="NAME=VALUE", callback=parse, help=text)


def _field(given: str) -> tuple[str, str]:
    """A name and a value; a range written as in other languages (year>2000) is an error that shows how to write it."""
    before, equals, _ = given.partition("=")
    if before.endswith(("<", ">", "!")) or (not equals and ("<" in given or ">" in given)):
        name = before.partition("<")[0].partition(">")[0].rstrip("!") or "year"
        example = f'\'{name}={{"gte": 2000, "lt": 2010}}\''
        raise click.BadParameter(
            f"{given!r:.60} is not NAME=VALUE; write a range as {example}; eq, ne, in and nin work too"
        )
    return _pair(given)


def _conditions(name: str, text: str) -> list[dict[str, Any]]:
    """The conditions on a field, one operator each. A number also matches its text: a CSV file has only texts."""
    value = json_or_text(text)
    if isinstance(value, str) and text.lstrip().startswith("{"):
        raise click.BadParameter(f"{text!r:.60} is not JSON; write a condition as '{name}={{\"gte\": 2000}}'")
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


def byte_count(_: click.Context, __: click.Parameter, given: str | None) -> int | None:
    """A callback for options that are sizes: 4000000, 500MB, 2G, 2Gi."""
    found = None if given is None else flags.size_bytes(given)
    if given is not None and found is None:
        raise click.BadParameter(f"{given!r} is not a size; give bytes, 500MB or 2GB")
    return found


def kv_dtype() -> Callable[[F], F]:
    text = (
        "Type of the KV cache (default: f32 with f32 weights, bf16 where activations are rounded, else f16). int8 "
        "takes half the memory of bf16, int4 a quarter and loses more; int8-plain does without the rotation that "
        "spreads outliers."
    )
    return click.option(
        "--kv-dtype", type=click.Choice(["f32", "f16", "bf16", "int8", "int8-plain", "int4"]), help=text
    )


def decoder_compute() -> Callable[[F], F]:
    return click.option(
        "--compute",
        type=click.Choice(DECODER_COMPUTES),
        help="Arithmetic for activations: int8 (default with quantised weights), bf16 or f16 (default with 16-bit "
        "weights where the processor multiplies them), or f32, which rounds nothing.",
    )


def encoder_compute(default: str | None = None, *, auto: bool = False) -> Callable[[F], F]:
    """`--compute` of an encoder; with `auto` weft may choose it."""
    text = (
        "Arithmetic for activations and weights. f32 is exact; bf16x3 is close to f32, and faster with a matrix unit; "
        "bf16 is much faster with one; f16 is faster on Arm with half precision; int8 is the fastest and least exact"
    )
    chosen = "; auto compares int8 with f32 on a few texts, and takes it if all cosines are 0.995 or more."
    return click.option(
        "--compute",
        type=click.Choice(EMBEDDER_COMPUTES if auto else ENCODER_COMPUTES),
        default=default,
        show_default=default is not None,
        help=text + (chosen if auto else "."),
    )


def expert_memory() -> Callable[[F], F]:
    text = (
        "Memory for the experts of a mixture, as in 4G; the others are read from the file when they are needed "
        "(default: all of them, or what memory has room for; `weft show` says)."
    )
    return click.option("--expert-memory", "expert_bytes", metavar="SIZE", callback=byte_count, help=text)


def mmproj() -> Callable[[F], F]:
    text = "The picture tower of a GGUF file (default: the mmproj file beside it, if there is one)."
    return click.option("--mmproj", metavar="FILE", help=text)


LOADING = ("threads", "context", "compute", "kv_dtype", "expert_bytes", "mmproj")


def loading() -> Callable[[F], F]:
    """How a generator is loaded: the options LOADING are keyword arguments of weft.load."""
    return together(threads(), device(), context(), decoder_compute(), kv_dtype(), expert_memory(), mmproj())


SAMPLING = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("stop", "seed", "sampling"),
)


def sampling(*, max_tokens: int, defaults: str) -> Callable[[F], F]:
    """How tokens are chosen: the options SAMPLING, None where they are not given. Ranges are checked by the library.

    `defaults` says in the help what an option that is not given means.
    """
    return together(
        click.option(
            "--max-tokens", type=int, default=max_tokens, show_default=True, help="Generate at most this many tokens."
        ),
        click.option("--temperature", type=float, help=f"0 always takes the likeliest token (default: {defaults})."),
        click.option("--top-p", type=float, help="Keep the likeliest tokens that together have this probability."),
        click.option("--top-k", type=int, help="Keep this many of the likeliest tokens; 0 keeps all."),
        click.option("--min-p", type=float, help="Keep tokens at least this likely, relative to the likeliest."),
        click.option("--repetition-penalty", type=float, help="Above 1, tokens that already appeared get less likely."),
        click.option(
            "--stop", multiple=True, metavar="TEXT", help="Stop before this text; may be given several times."
        ),
        click.option("--seed", type=int, help="The same seed gives the same text (default: a new one each time)."),
        rare(),
    )


def _switch(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _biases(text: str) -> dict[int, float]:
    return {int(key): float(value) for key, value in (part.split(":") for part in text.split(","))}


# The keys of --sampling: what reads a value, how the value is written, and what it does.
RARE: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "typical_p": (
        float,
        "NUMBER",
        "Typical sampling: keep tokens whose surprise is near the expected one, up to this probability mass.",
    ),
    "presence_penalty": (
        float,
        "NUMBER",
        "Subtract this from the logit of every token that was already generated (-2 to 2).",
    ),
    "frequency_penalty": (float, "NUMBER", "The same, times how often the token was generated (-2 to 2)."),
    "logit_bias": (
        _biases,
        "ID:NUMBER[,…]",
        "Add to the logits of these tokens (-100 to 100); `weft tokenize` shows ids.",
    ),
    "min_tokens": (int, "INTEGER", "Generate at least this many tokens."),
    "stop_ids": (_ids, "ID[,…]", "Stop before any of these tokens."),
    "ignore_eos": (_switch, "true|false", "Go on after the model's end token."),
    "reasoning_budget": (int, "INTEGER", "End reasoning (<think>) after this many tokens."),
    "speculate": (
        _switch,
        "true|false",
        "Check several drafted tokens per step where that is faster (default: true); the text is the same.",
    ),
}


def rare() -> Callable[[F], F]:
    """`--sampling KEY=VALUE`, several times: a dict of the settings RARE."""

    def parse(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
        return dict(_rare(*_pair(one)) for one in given)

    text = "A setting from the list at the end; may be given several times."
    return click.option("--sampling", multiple=True, metavar="KEY=VALUE", callback=parse, help=text)


def _rare(name: str, text: str) -> tuple[str, Any]:
    key = name.replace("-", "_")
    if key in SAMPLING:
        raise click.BadParameter(f"{name!r} is an option of its own: --{key.replace('_', '-')} {text}")
    if key not in RARE:
        raise click.BadParameter(f"{name!r:.60} is not a key; keys are {', '.join(RARE)}")
    read, form, _ = RARE[key]
    try:
        return key, read(text)
    except (ValueError, KeyError):
        raise click.BadParameter(f"{key}={text:.60} cannot be read; write {key}={form}") from None


SHAPES = ("schema", "regex", "grammar", "choice")


def shape() -> Callable[[F], F]:
    """What the text must look like: the options SHAPES, of which at most one is given."""
    return together(
        click.option("--schema", metavar="FILE", help="JSON that satisfies this JSON Schema (a file, or the JSON)."),
        click.option("--regex", metavar="PATTERN", help="Text that the whole pattern matches."),
        click.option("--grammar", metavar="FILE", help="Text of a grammar: Lark, or GBNF in a .gbnf file."),
        click.option("--choice", multiple=True, metavar="TEXT", help="One of these texts; give it once for each."),
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
        click.option("--prefix-dir", metavar="DIR", help="Keep the KV cache of prompts here, for later runs too."),
        click.option(
            "--draft-model",
            metavar="MODEL",
            help="What drafts tokens, for the same text sooner: a smaller model with the same vocabulary, 'mtp' (the "
            "model's own head, the default where it has one) or 'none'.",
        ),
    )


# The headings that the help of a `Grouped` command lists options under; the others come first, under "Options".
GROUPS = {"Sampling": SAMPLING, "Constraints": SHAPES, "Engine": ENGINE, "Loading": LOADING}


class Grouped(click.Command):
    """A command whose help lists its options under the headings of GROUPS."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], **{heading: [] for heading in GROUPS}}
        for param in self.get_params(ctx):
            heading = next((heading for heading, names in GROUPS.items() if param.name in names), "Options")
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections[heading].append(record)
        if any(param.name == "sampling" for param in self.params):
            sections["Keys of --sampling"] = [(f"{key}={form}", text) for key, (_, form, text) in RARE.items()]
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def embedding() -> Callable[[F], F]:
    """The options of an embedder and its vectors; `make_embedder` reads them."""
    return together(
        click.option("-m", "--model", default=DEFAULT_EMBEDDER, show_default=True, help="Name, folder or file."),
        click.option(
            "--prompt-name", help="Put the model's prompt of this name before each text, such as query or document."
        ),
        click.option(
            "--truncate",
            type=click.Choice(["error", "head", "tail", "chunk"]),
            help="What to do with a text that is too long: refuse it (the default), keep its beginning (head) or its "
            "end (tail), or take the mean of the vectors of its windows (chunk).",
        ),
        click.option("--no-normalise", is_flag=True, help="Do not scale vectors to length 1."),
        click.option("--pooling", help="Pooling of an encoder whose files do not state it: mean, first, last or max."),
        click.option(
            "--dimensions",
            type=click.IntRange(1),
            metavar="N",
            help="Shorten vectors to N numbers, for models trained for that.",
        ),
        encoder_compute(default="f32", auto=True),
        click.option("--cache", metavar="disk|FILE", help="Keep vectors in a cache and reuse them; see `weft cache`."),
    )


def remote(model: str = "model") -> Callable[[F], F]:
    """A server that computes the vectors: `base_url`, and `api_key`, read from an environment variable."""

    def read(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
        if name is None:
            return None
        if not os.environ.get(name):
            raise click.BadParameter(f"the environment variable {name!r:.60} is not set; set it to the server's key")
        return os.environ[name]

    return together(
        click.option("--base-url", metavar="URL", help=f"Use the {model} of this server, which speaks OpenAI's API."),
        click.option(
            "--api-key-env",
            "api_key",
            metavar="NAME",
            callback=read,
            help="The environment variable that holds the server's key.",
        ),
    )


def schema() -> Callable[[F], F]:
    return click.option("--schema", default="weft", show_default=True, help="Schema of a PostgreSQL database.")


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
            raise click.UsageError(f"--{named[0]} works for models on this machine only; leave it out with --base-url")
        return server.ask_for(given["model"], dimensions=given["dimensions"], cache=given["cache"])
    normalise = False if given["no_normalise"] else None
    names = ("pooling", "dimensions", "compute", "cache", "threads")
    return weft.Embedder(given["model"], normalise=normalise, **{name: given[name] for name in names})


def documents() -> Callable[[F], F]:
    """Which files of a folder are documents, and how they are cut; `selection_of` reads the first two."""
    return together(
        click.option(
            "--all-files",
            is_flag=True,
            help="Also read hidden files, and what .gitignore, packages (node_modules), __pycache__ and virtual "
            "environments leave out of a folder.",
        ),
        click.option(
            "--max-file-size",
            type=click.FloatRange(0, min_open=True),
            default=16.0,
            show_default=True,
            metavar="MB",
            help="Leave out documents that are larger; 1 MB is a million bytes.",
        ),
        click.option("-v", "--verbose", is_flag=True, help="Name every file that is left out, not only the first."),
        click.option(
            "--chunk-tokens",
            type=click.IntRange(8),
            default=200,
            show_default=True,
            metavar="N",
            help="Cut the documents of a folder into chunks of N tokens.",
        ),
        click.option(
            "--overlap",
            type=click.IntRange(0),
            metavar="N",
            help="Tokens that a chunk shares with the previous one (default: a fifth of --chunk-tokens).",
        ),
    )


def selection_of(given: Mapping[str, Any]) -> Selection:
    """The files that the options of `documents` choose."""
    from weft.embed.pipeline import Selection

    return Selection(all_files=given["all_files"], max_file_bytes=max(1, round(given["max_file_size"] * 1_000_000)))


def rebuilding() -> Callable[[F], F]:
    """What happens to an output or an unfinished run that is there already."""
    return together(
        click.option(
            "--restart",
            is_flag=True,
            help="Embed everything again: do not resume a stopped run, and take no vectors from the existing index.",
        ),
        click.option(
            "--replace", is_flag=True, help="Replace an index that was built from another source or by another model."
        ),
    )
