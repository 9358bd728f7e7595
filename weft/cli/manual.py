"""The help of all commands as one Markdown page, docs/cli.md."""

import click

from weft.cli.app import EXIT_CODES, app

WIDTH = 100


def page() -> str:
    """Markdown: the help of `weft` and of each of its commands, and the exit codes."""
    context = _context(app, "weft", None)
    parts = ["# The weft command", _help(app, context)]
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None, name
        inside = _context(command, name, context)
        parts += [f"## weft {name}", _help(command, inside)]
        if isinstance(command, click.Group):
            for inner, member in command.commands.items():
                parts += [f"### weft {name} {inner}", _help(member, _context(member, inner, inside))]
    rows = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    parts += ["## Exit codes", f"| code | meaning |\n|---|---|\n{rows}"]
    parts.append("An error is one line on standard error, `weft: …`; WEFT_DEBUG=1 prints the traceback before it.")
    return "\n\n".join(parts) + "\n"


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(
        command,
        parent,
        info_name=name,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )


def _help(command: click.Command, context: click.Context) -> str:
    return f"```text\n{command.get_help(context).rstrip()}\n```"
