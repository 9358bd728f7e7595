"""weft eval: the loss, the perplexity and the accuracy of a model on rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weft.cli import options, screen


@click.command()
@click.argument("model")
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--adapter", metavar="FOLDER", help="Measure the model with this LoRA adapter.")
@click.option(
    "--loss",
    type=click.Choice(["assistant", "completion", "all"]),
    help="Which tokens count (default: the answers of messages, completions, whole texts).",
)
@click.option("--max-length", type=int, default=2048, show_default=True, metavar="N", help="Tokens of the longest row.")
@click.option(
    "--too-long",
    type=click.Choice(["error", "cut", "split", "drop"]),
    default="error",
    show_default=True,
    help="What becomes of longer rows.",
)
@click.option("--rows", is_flag=True, help="Print one JSON object for each row first.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@options.decoder_compute()
@options.threads()
def command(model: str, data: Path, rows: bool, as_json: bool, **given: Any) -> None:
    """Measure MODEL, as it is served, on the rows of DATA.

    DATA is a file of rows as `weft train lora` takes them. The loss is the mean over all tokens that count, in nats;
    the perplexity is its exponential; the accuracy is the part of these tokens that the model would have chosen; exact
    counts the rows where it would have chosen all of them, which is what decoding greedily gives.

    \b
    Examples:
      weft eval smollm2-135m-instruct held-out.jsonl
      weft eval smollm2-135m-instruct held-out.jsonl --adapter my-lora --rows
    """
    from weft.cli.counting import counted
    from weft.train.measure import Evaluation, together

    evaluation = Evaluation(model, data, **given)
    found = []
    with counted("rows") as tell:
        for one in evaluation:
            found.append(one)
            tell(len(found), len(evaluation.lessons.lessons))
    if rows:
        for source, one in zip(evaluation.lessons.sources, found):
            click.echo(json.dumps({"row": source + 1, "loss": one.loss, "targets": one.targets, "right": one.right}))
    whole = together(found)
    numbers = {"loss": whole.loss, "perplexity": whole.perplexity, "accuracy": whole.accuracy}
    counts = {"rows": evaluation.lessons.rows, "tokens": evaluation.lessons.tokens, "targets": whole.targets}
    counts["exact"] = whole.exact
    if as_json:
        screen.print_json({**numbers, **counts})
        return
    shown = [(name, f"{value:.4f}") for name, value in numbers.items()]
    screen.facts([*shown, *((name, f"{value:,}") for name, value in counts.items())])
