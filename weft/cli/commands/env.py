"""weft env: the environment variables weft reads."""

from typing import Any

import click

from weft import flags
from weft.cli import screen
from weft.errors import InputError


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """Show the environment variables weft reads.

    Prints the value, the default and the meaning of each. Secrets are never printed. An invalid value is marked, with
    the values that are allowed.

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
