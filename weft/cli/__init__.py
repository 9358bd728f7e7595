"""The weft command. Each command is a file in commands/ that parses arguments, calls the library and prints."""

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process, and exit."""
    from weft.cli.app import app

    app.main(prog_name="weft")


def reference() -> str:
    """Every command's help as one Markdown page, docs/cli.md."""
    from weft.cli.manual import page

    return page()
