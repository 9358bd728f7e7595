"""weft ops: the op catalogue, and which backends run each op on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.cli import screen

if TYPE_CHECKING:
    from weft.backends.base import Backend
    from weft.ops.registry import Op

GPU = "gpu"
CELLS = {"kernel": "✓", "parts": "parts", "none": "–"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def command(as_json: bool, markdown: bool) -> None:
    """Show every op, and which backends run it.

    The column gpu is any GPU.

    ✓: with a kernel. parts: decomposed into simpler ops. –: not at all.

    \b
    Examples:
      weft ops
      weft ops --markdown > ops.md
    """
    if as_json and markdown:
        raise click.UsageError("--json and --markdown cannot be combined; give one")
    from weft.backends import backends_present
    from weft.ops.registry import catalogue

    backends = backends_present()
    rows = [_row(op, backends) for op in catalogue().values()]
    names = [*(backend.name for backend in backends), GPU]
    if as_json:
        screen.print_json(rows)
    elif markdown:
        click.echo(_markdown(rows, names))
    else:
        cells = [(r["op"], r["family"], *(CELLS[r["backends"][n]] for n in names), r["meaning"]) for r in rows]
        screen.table(("op", "family", *names, "meaning"), cells)


def _row(op: Op, backends: list[Backend]) -> dict[str, Any]:
    from weft.backends import gpu_supports

    support = {}
    for backend in backends:
        lacking = "parts" if op.decomposition else "none"
        support[backend.name] = "kernel" if backend.supports(op.name, ()) else lacking
    lacking = "parts" if op.decomposition else "none"
    support[GPU] = "kernel" if gpu_supports(op.name) else lacking
    meaning = (op.__doc__ or "").strip().partition("\n")[0]
    return {"op": op.name, "family": op.family, "meaning": meaning, "backends": support}


def _markdown(rows: list[dict[str, Any]], names: list[str]) -> str:
    lines = [f"| op | {' | '.join(names)} | meaning |", "|---|" + "---|" * (len(names) + 1)]
    for row in rows:
        cells = " | ".join(CELLS[row["backends"][name]] for name in names)
        lines.append(f"| `{row['op']}` | {cells} | {row['meaning'].replace('|', chr(92) + '|')} |")
    return "\n".join(lines)
