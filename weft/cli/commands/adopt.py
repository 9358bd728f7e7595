"""weft adopt: draft the description of a model whose type weft has no file for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.cli import screen

if TYPE_CHECKING:
    from weft.describe.adopting import Adoption

SHOWN = 40  # lines of a list before it is cut


@click.command()
@click.argument("model", metavar="FOLDER")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the description to this file or folder.")
def command(model: str, output: Path | None) -> None:
    """Draft the description of a model whose type weft has no file for.

    Reads config.json and the names and shapes of the tensors, no weights. The draft is tried on them, and what was
    assumed, what is missing and what is not understood is listed: tensors that the description needs and the file
    lacks, tensors that it does not use, and keys of config.json that it does not take into account. A model that a
    description cannot express is refused with the reason.

    The description is printed, or written with -o; as weft.json beside the weights it is what weft runs. Compare the
    first answers with another implementation before you rely on it: assumptions are facts that no file states.

    \b
    Examples:
      weft adopt ./stablelm-2-1_6b
      weft adopt ./stablelm-2-1_6b -o ./stablelm-2-1_6b/weft.json
      weft adopt ./gpt2 > gpt2.json
    """
    from weft.cli.counting import reported
    from weft.describe import adopt
    from weft.errors import InputError, UnsupportedError, WeightError
    from weft.runtime.checkpoint import DESCRIPTION
    from weft.weights.sources import locate

    if output is not None and output.is_dir():
        output = output / DESCRIPTION
    if output is not None and output.exists():
        raise InputError("adopt", f"{output} exists", advice="remove it, or give another path")
    with reported("tensors compared") as tell:
        found = adopt(locate(model).path, tell)
    if found.description is None:
        what = f"a {found.model_type} does not fit a description: {'; '.join(found.obstacles)}"
        raise UnsupportedError("adopt", what, advice="such a model needs a file in weft/models")
    _report(found)
    if output is None:
        screen.print_json(found.description)
    else:
        _write(output, json.dumps(found.description, indent=2, ensure_ascii=False) + "\n")
        screen.note(f"written to {output}")
    if not found.fits:
        missing, left = screen.many(len(found.missing), "tensor"), screen.many(len(found.unmatched), "tensor")
        what = f"the draft does not fit the file: {missing} missing or of another shape, {left} not used"
        raise WeightError("adopt", what, advice="complete it by hand: docs/howto/run-a-model-from-a-description.md")


def _report(found: Adoption) -> None:
    """What people should know, on standard error."""
    _list("assumed, since no file says it", found.assumed)
    _list("keys of config.json that the draft does not take into account", found.unknown)
    _list("tensors that are missing or have another shape", found.missing)
    _list("tensors that the draft does not use", found.unmatched)
    if found.fits:
        screen.note(f"The draft fits: every tensor of this {found.model_type} is used, and none is missing.")


def _list(title: str, lines: tuple[str, ...]) -> None:
    if lines:
        screen.note(f"{title}:")
        for line in lines[:SHOWN]:
            screen.note(f"  {screen.clean(line)}")
        if len(lines) > SHOWN:
            screen.note(f"  … {len(lines) - SHOWN} more")


def _write(path: Path, text: str) -> None:
    from weft.weights.files import replacing

    with replacing(path) as file:
        file.write(text.encode())
