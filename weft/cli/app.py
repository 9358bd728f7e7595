"""The command group: imports a command when it is used, prints an error as one line, and sets the exit code.

A command imports everything but click inside its functions, so `weft --help` takes no longer than importing click.
"""

import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from weft import __version__, flags
from weft.cli import screen
from weft.errors import InputError, NotFoundError, WeftError

# The order of the help page: using models, getting models, looking at models, the machine.
COMMANDS = (
    *("chat", "generate", "embed", "search", "index", "store", "rerank", "classify"),
    *("migrate", "tokenize", "serve", "ps", "stop"),
    *("drift", "train", "eval", "merge", "quantize", "export", "distill", "data", "registry"),
    *("pull", "list", "cache", "inspect", "show", "adopt", "verify", "doctor", "bench", "ops", "env"),
)

EXIT_CODES = {
    0: "done",
    1: "an error of a model, a download, a file or the machine",
    2: "an error of the command line: an option, an input, a name that does not exist",
    70: "a bug in weft",
    130: "interrupted with Ctrl-C",
    141: "the reader of the output closed the pipe",
    143: "ended by SIGTERM; `embed`, `index`, `store`, `migrate`, `train`, `distill` keep their work",
}


class App(click.Group):
    """The group of weft's commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"weft.cli.commands.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"commands are {', '.join(COMMANDS)}"
            raise click.UsageError(f"{args[0]!r} is not a command; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end it quietly when the reader closes the pipe (`weft list | head`)."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # so that the last flush does not fail as well
            raise click.exceptions.Exit(141) from None

    def main(  # type: ignore[override]  # click's own has five arguments; these are the ones in use
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run a command line and exit with one of EXIT_CODES."""
        sys.exit(self._exit_code(args, prog_name, **extra))

    def _exit_code(self, args: Sequence[str] | None, prog_name: str | None, **extra: Any) -> int:
        try:
            code = super().main(args, prog_name, **{**extra, "standalone_mode": False})
            return code if isinstance(code, int) else 0
        except click.Abort:
            return 130
        except click.ClickException as error:
            return _usage(error)
        except WeftError as error:
            return _report(str(error), 2 if isinstance(error, (InputError, NotFoundError)) else 1)
        except (OSError, MemoryError) as error:
            return _report(str(error) or "out of memory", 1)
        except Exception as error:
            return _report(f"a bug in weft: {type(error).__name__}: {error}; WEFT_DEBUG=1 prints the traceback", 70)


class Moves(click.Group):
    """`weft migrate STORE` means `weft migrate start STORE`, unless STORE looks like a subcommand, mistyped or of
    another group."""

    elsewhere = ("add", "search", "delete", "list")  # subcommands of `weft store`

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in self.elsewhere and not os.path.exists(args[0]):
            raise click.UsageError(f"{args[0]!r} is not a command of `weft migrate`; run `weft store {args[0]}`", ctx)
        if args and args[0] not in (*self.commands, "-h", "--help"):
            near = difflib.get_close_matches(args[0], self.commands, n=1)
            if near and not os.path.exists(args[0]):
                raise click.UsageError(f"{args[0]!r} is not a command; did you mean {near[0]}?", ctx)
            args = ["start", *args]
        return super().parse_args(ctx, args)


def _usage(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # `weft index` alone
        click.echo(error.format_message())
        return 0
    context = getattr(error, "ctx", None)
    advice = f" (see `{context.command_path} --help`)" if context else ""
    return _report(error.format_message().rstrip(".") + advice, error.exit_code)


def _report(message: str, code: int) -> int:
    """Print an error as one line, after the traceback if WEFT_DEBUG is set."""
    if _debugging():
        traceback.print_exc()
    click.echo(f"weft: {screen.clean(' '.join(message.split()))}", err=True)
    return code


def _debugging() -> bool:
    try:
        return bool(flags.get("WEFT_DEBUG"))
    except InputError:
        return True  # it is set, to something invalid


@click.group(
    cls=App,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A MODEL is a name of the catalogue (`weft list --catalog`), org/name[:QUANT][@revision] on the hub, the "
    "path of a folder or file, or registry:NAME@… (`weft registry`). A model that is not on this machine is downloaded "
    "when it is first used.",
)
@click.version_option(__version__, message="weft %(version)s")
@click.pass_context
def app(context: click.Context) -> None:
    """Run transformer models on this machine: embed, search, generate, chat and serve.

    \b
    Examples:
      weft chat
      weft embed "a cat" "a dog" "the stock market"
      weft generate "The capital of France is" --max-tokens 20
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
