"""weft env: every environment variable weft reads."""

from typing import Any

import click

from weft import flags
from weft.cli import screen
from weft.errors import InputError


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """Show the environment variables weft reads.

    Each has its value, its default and what it does. Secrets are never printed. A value that does not parse is marked,
    with what is wanted.

    \b
    Examples:
      weft env
      WEFT_THREADS=2 weft env --json
    """
    rows = [_row(flag) for flag in flags.all_flags()]
    if as_json:
        screen.print_json(rows)
    else:
        screen.table(("name", "value", "default", "what it does"), [tuple(row.values()) for row in rows])


def _row(flag: flags.Flag) -> dict[str, Any]:
    try:
        value = flag.shown()
    except InputError as error:
        value = f"invalid: {error}"
    default = "" if flag.default in (None, ()) else str(flag.default)
    return {"name": flag.name, "value": value, "default": default, "sentence": flag.sentence}
