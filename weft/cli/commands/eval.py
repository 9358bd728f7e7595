"""weft eval: what a model is worth: on rows, on a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weft.cli import options, screen


@click.group()
def command() -> None:
    """Measure what models know and what smaller files lose.

    \b
    Examples:
      weft eval ppl model-f16.gguf model-q4.gguf text.txt
      weft eval rows smollm2-135m-instruct held-out.jsonl --adapter my-lora
    """


@command.command()
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
@click.option("--rows", "each", is_flag=True, help="Print one JSON object for each row first.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@options.decoder_compute()
@options.threads()
def rows(model: str, data: Path, each: bool, as_json: bool, **given: Any) -> None:
    """Measure MODEL, as it is served, on the rows of DATA.

    DATA is a file of rows as `weft train lora` takes them. The loss is the mean over all tokens that count, in nats;
    the perplexity is its exponential; the accuracy is the part of these tokens that the model would have chosen; exact
    counts the rows where it would have chosen all of them, which is what decoding greedily gives.

    \b
    Examples:
      weft eval rows smollm2-135m-instruct held-out.jsonl
      weft eval rows smollm2-135m-instruct held-out.jsonl --adapter my-lora --rows
    """
    from weft.cli.counting import counted
    from weft.train.measure import Evaluation, together

    evaluation = Evaluation(model, data, **given)
    found = []
    with counted("rows") as tell:
        for one in evaluation:
            found.append(one)
            tell(len(found), len(evaluation.lessons.lessons))
    if each:
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


@command.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.argument("text", type=click.Path(path_type=Path), metavar="TEXT")
@click.option(
    "--window", type=click.IntRange(4), default=512, show_default=True, metavar="N", help="Tokens of a window."
)
@click.option(
    "--stride",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens between windows (default: 256, at most half a window).",
)
@click.option("--tokens", type=click.IntRange(2), metavar="N", help="Only the first N tokens of TEXT.")
@click.option("--llama", is_flag=True, help="llama.cpp's windows: side by side, the second half of each is scored.")
@click.option("--adapter", metavar="FOLDER", help="Measure the models with this LoRA adapter.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each model.")
@options.decoder_compute()
@options.kv_dtype()
@options.threads()
def ppl(models: tuple[str, ...], text: Path, as_json: bool, **given: Any) -> None:
    """Measure the perplexity of each MODEL on TEXT, a UTF-8 file.

    The model reads windows of 512 tokens that begin every 256. Of the first window every token but the very first is
    scored, of each later one only the tokens that are new, so that all but the first have at least 256 tokens before
    them. Special tokens are added at the beginning of TEXT as for a prompt. The error is the standard error of the mean
    over tokens. Bits per byte compare models of different tokenizers, the perplexity does not.

    With --llama the figure is that of llama.cpp's perplexity program with as large a context: windows lie side by
    side, each begins with bos where the tokenizer adds one, its second half is scored, and the rest of TEXT that fills
    no window is not read.

    \b
    Examples:
      weft eval ppl model-f16.gguf model-q4_k_m.gguf wiki.test.raw
      weft eval ppl smollm2-135m-instruct wiki.test.raw --tokens 16384 --json
    """
    from weft.cli.counting import counted
    from weft.measure import Perplexity, summed

    lines = []
    for model in models:
        measuring, found = Perplexity(model, text, **given), []
        scored, every = 0, sum(window.targets for window in measuring.windows)
        with counted(f"tokens, {screen.cut(Path(model).name, 40)}") as tell:
            for one in measuring:
                found.append(one)
                scored += one.targets
                tell(scored, every)
        size = measuring.decoder.checkpoint.size_bytes
        lines.append({"model": model, "bytes": size, **summed(found).as_dict()})
        if as_json:
            click.echo(json.dumps(lines[-1]))
    if as_json:
        return
    columns = ("model", "size", "perplexity", "error", "bits per byte", "tokens", "tokens/s")
    rows = [
        (
            line["model"], screen.size(line["bytes"]), f"{line['perplexity']:.4f}", f"{line['error']:.4f}",
            f"{line['bits_per_byte']:.4f}", f"{line['targets']:,}", f"{line['targets'] / line['seconds']:.0f}",
        )
        for line in lines
    ]  # fmt: skip
    screen.table(columns, rows, right=columns[1:])
