"""weft generate: continue a prompt, or answer it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import asked, options, screen
from weft.cli.conversation import images as image_option
from weft.cli.conversation import with_images

if TYPE_CHECKING:
    from weft.generate import Generation, Handle


@click.command(cls=options.Grouped)
@click.argument("prompt", required=False)
@click.option("-m", "--model", default=options.DEFAULT_GENERATOR, show_default=True, help="Name, folder or file.")
@click.option(
    "--raw/--chat", default=True, help="Continue the prompt as it is (default), or answer it as a chat message."
)
@click.option(
    "--parse-special/--no-parse-special",
    default=None,
    help="Read <|im_end|> in a raw prompt as the special token (default), or as plain text.",
)
@image_option()
@click.option("--suffix", help="Fill in the text between the prompt and this suffix; for code models that can.")
@options.variables()
@options.sampling(max_tokens=256, defaults="0; with --chat the model's own, see `weft show`")
@click.option("-n", "--n", type=int, default=1, show_default=True, help="Generate N answers, with consecutive seeds.")
@options.shape()
@click.option(
    "--logprobs",
    type=int,
    metavar="N",
    help="With --json: log probabilities of the tokens and of the N likeliest ones.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end: text, tokens, timings.")
@options.engine()
@options.loading()
def command(
    prompt: str | None,
    model: str,
    raw: bool,
    parse_special: bool | None,
    suffix: str | None,
    images: tuple[Path, ...],
    variables: dict[str, Any],
    as_json: bool,
    **settings: Any,
) -> None:
    """Continue a prompt, or answer it as a chat message.

    The prompt is an argument or, with `-` or a pipe, standard input less its last newline. The text is printed as it is
    generated, timings go to standard error. Ctrl-C stops it; what was generated so far stays.

    A raw prompt is continued with the likeliest token each time (temperature 0), and special tokens written in it, such
    as <|im_start|>, are read as such. With --chat, settings that are not given are those of the model's makers, as in
    `weft chat`. With --image, a model that sees reads pictures before the text, or where a raw prompt says <image>.

    \b
    Examples:
      weft generate "The capital of France is" --max-tokens 20
      weft generate --chat "Name three colours." --temperature 0.7 --seed 1
      weft generate "def fib(n):" --stop $'\\n\\n'
      weft generate "def add(a, b):" --suffix "    return total" -m qwen2.5-coder
      weft generate --chat "A person, as JSON." --schema '{"type": "object", "required": ["name"]}'
      weft generate "Colour: " --choice red --choice green -n 3 --temperature 1
      weft generate "Once" --temperature 1 --sampling typical_p=0.9 --sampling presence_penalty=0.5
      weft generate "Once" --adapter ./stories=0.7 --adapter ./poems=0.3
      weft generate --chat "What is written here?" --image sign.jpg -m ./SmolVLM-256M-Instruct
      cat letter.txt | weft generate --json --chat
    """
    if parse_special and not raw:
        raise click.UsageError("--parse-special works for raw prompts only; in a chat message special tokens stay text")
    _check_kind(raw, suffix, variables, images, parse_special is False)
    if settings["logprobs"] is not None and not as_json:
        raise click.UsageError("--logprobs needs --json")
    settings["grammar"] = asked.grammar(settings)
    settings = asked.sampling(settings)
    text = _prompt(prompt)
    import weft

    loaded = weft.load(model, **{name: settings.pop(name) for name in options.LOADING})
    asked.prepare(loaded, settings)
    from weft.generate import make_request  # the engine comes with it, and is imported while the weights are packed

    if images:
        loaded.prepare_images(images, progress=None)
    if raw:
        ids = loaded.prompt_ids(text, suffix, parse_special is not False, images)
        settings = loaded.with_ends(suffix, settings)
    else:
        ids = loaded.chat_ids([{"role": "user", "content": with_images(text, images)}], variables=variables)
        settings = {**loaded.defaults.options, **settings}
    handle = loaded.engine.submit(make_request(ids, **settings))
    results = _json(handle, model) if as_json else _texts(handle) if settings["n"] > 1 else [_text(handle)]
    loaded.engine.close()
    if any(result.finish_reason == "cancelled" for result in results):
        raise click.exceptions.Exit(130)


def _check_kind(
    raw: bool, suffix: str | None, variables: dict[str, Any], images: tuple[Path, ...], plain: bool
) -> None:
    """Refuse options of the other kind of prompt."""
    if images and raw and (suffix is not None or plain):
        raise click.UsageError("--image works with neither --suffix nor --no-parse-special")
    if suffix is not None and not raw:
        raise click.UsageError("--suffix works for raw prompts only")
    if variables and raw:
        raise click.UsageError("--set works with --chat only; a raw prompt does not use the chat template")


def _prompt(given: str | None) -> str:
    if given is not None and given != "-":
        return given
    if given is None and sys.stdin.isatty():
        raise click.UsageError("the prompt is missing; give it as an argument, or pipe it in")
    from weft.cli.texts import read_text

    return read_text("-").removesuffix("\n")


def _text(handle: Handle) -> Generation:
    from weft.cli import answer

    answer.write(handle)
    result = handle.result()
    if not result.text.endswith("\n"):
        click.echo()
    screen.note(answer.timings(result))
    return result


def _texts(handle: Handle) -> list[Generation]:
    """Print several answers once all are finished."""
    results = _results(handle)
    for result in results:
        screen.note(f"--- {result.index + 1} of {len(results)}, seed {result.seed}")
        click.echo(screen.clean(result.text) if sys.stdout.isatty() else result.text)
    return results


def _json(handle: Handle, model: str) -> list[Generation]:
    results = _results(handle)
    found = [asdict(result) for result in results]
    screen.print_json({"model": model, **(found[0] if len(found) == 1 else {"answers": found})})
    return results


def _results(handle: Handle) -> list[Generation]:
    try:
        return handle.results()
    except KeyboardInterrupt:
        return handle.results()  # what was generated before the interrupt
