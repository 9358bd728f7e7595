"""weft merge: write a model with an adapter in its weights, after measuring what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weft.cli import screen


@click.command()
@click.argument("model")
@click.argument("adapter", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="A new .gguf file, or a folder for a folder."
)
@click.option(
    "--type",
    metavar="TYPE",
    help="What changed matrices, and others that are not quantised, are stored as: f32, f16, bf16, q8_0, q5_1, q5_0, "
    "q4_1, q4_0 (default: each as in the base).",
)
@click.option(
    "--max-loss", type=float, default=0.01, show_default=True, help="Refuse if the loss is more than this above."
)
@click.option("--data", type=click.Path(path_type=Path), help="Rows to measure on (default: those beside the adapter).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(model: str, adapter: Path, output: Path, as_json: bool, **given: Any) -> None:
    """Write MODEL with ADAPTER added to its weights.

    Rounding may lose an adapter's small changes, so the loss is measured of the base, of the base with the adapter, of
    the merged model, and of the merged model as it is served. If one of the merged model's is more than --max-loss
    above that of the adapter, nothing is written.

    \b
    Examples:
      weft merge smollm2-135m-instruct my-lora -o merged.gguf --type q8_0
      weft merge ./model my-lora -o merged --type bf16 --data held-out.jsonl --max-loss 0.005
    """
    from weft.train.merge import merge

    found = merge(model, adapter, output, **given)
    names = {"base": "base", "adapted": "base with adapter", "merged": "merged", "served": "merged, as served"}
    if as_json:
        losses = {name: getattr(found, name).loss for name in names}
        screen.print_json({"path": str(found.path), **losses, "lost": found.lost, "targets": found.base.targets})
        return
    rows = [
        (shown, f"{one.loss:.4f}", f"{100 * one.accuracy:.1f} %")
        for name, shown in names.items()
        for one in [getattr(found, name)]
    ]
    screen.table(("", "loss", "accuracy"), rows, right=("loss", "accuracy"))
    screen.note(f"{output} written; measured on {screen.many(found.base.targets, 'token')}")
