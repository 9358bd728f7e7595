"""weft eval: what a model is worth: on rows, on a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weft.cli import options, screen
from weft.computes import ENCODER_COMPUTES


def _windows(function: Any) -> Any:
    """The options of what is read of a text, and how."""
    size, least = click.IntRange(4), click.IntRange(1)
    between = "Tokens between windows (default: 256, at most half a window)."
    for option in (
        click.option("--tokens", type=click.IntRange(2), metavar="N", help="Only the first N tokens of TEXT."),
        click.option("--stride", type=least, metavar="N", help=between),
        click.option("--window", type=size, default=512, show_default=True, metavar="N", help="Tokens of a window."),
    ):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Measure what models know and what smaller files lose.

    \b
    Examples:
      weft eval ppl model-f16.gguf model-q4.gguf text.txt
      weft eval compare model-f16.gguf model-q4.gguf text.txt
      weft eval sts all-MiniLM-L6-v2 sts-test.csv --compute f32 --compute int8
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
@options.device()
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
@_windows
@click.option("--llama", is_flag=True, help="llama.cpp's windows: side by side, the second half of each is scored.")
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw size against perplexity into this file."
)
@click.option("--adapter", metavar="FOLDER", help="Measure the models with this LoRA adapter.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each model.")
@options.decoder_compute()
@options.kv_dtype()
@options.threads()
@options.device()
def ppl(models: tuple[str, ...], text: Path, svg: Path | None, as_json: bool, **given: Any) -> None:
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
    _drawn(lines, svg)
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


@command.command()
@click.argument("a")
@click.argument("b")
@click.argument("text", type=click.Path(path_type=Path))
@_windows
@click.option(
    "--worst", "shown", type=click.IntRange(0), default=5, show_default=True, metavar="N", help="Positions shown."
)
@click.option("--layers/--no-layers", default=True, help="Compare the hidden states after each layer.")
@click.option("--speed/--no-speed", default=True, help="Measure how fast both decode.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON.")
@options.decoder_compute()
@options.kv_dtype()
@options.threads()
@options.device()
def compare(a: str, b: str, text: Path, as_json: bool, **given: Any) -> None:
    """Hold model B, a smaller file of A, to A on TEXT.

    Both read the same windows as in `weft eval ppl`. The divergence (Kullback-Leibler, of B from A, in nats) says how
    far apart the chances are that both give to the next token; agreement is the part of the tokens for which both would
    choose the same. The worst positions are shown with the text before them. Layers show the mean over tokens of
    |B - A| / |A| of the hidden state, over the first 256 tokens. Speeds are those of one sequence on this machine, now.

    \b
    Examples:
      weft eval compare model-f16.gguf model-q4_k_m.gguf wiki.test.raw --tokens 16384
      weft eval compare model-f16.gguf model-q4_0.gguf wiki.test.raw --json >> sizes.jsonl
    """
    from weft.cli.counting import counted
    from weft.measure import Comparison

    comparison = Comparison(a, b, text, **given)
    with counted("tokens") as tell:
        for done in comparison:
            tell(done, comparison.targets)
    found = comparison.result()
    if as_json:
        click.echo(json.dumps({"a": a, "b": b, **found.as_dict()}))
        return
    part = 100 * (found.perplexity_b / found.perplexity_a - 1)
    speeds = [f"{speed:.1f}" if speed else "-" for speed in (found.speed_a, found.speed_b)]
    rows = [
        ("A", a, screen.size(found.bytes_a), f"{found.perplexity_a:.4f}", speeds[0]),
        ("B", b, screen.size(found.bytes_b), f"{found.perplexity_b:.4f}", speeds[1]),
    ]
    screen.table(("", "model", "size", "perplexity", "tokens/s"), rows, right=("size", "perplexity", "tokens/s"))
    screen.facts([
        ("perplexity", f"{part:+.2f} %"),
        ("divergence", f"mean {found.mean:.3g}, median {found.median:.3g}, p99 {found.p99:.3g}, max {found.max:.3g}"),
        ("agreement", f"{100 * found.agreement:.2f} % of {found.targets:,} tokens"),
        *([("layers", " ".join(f"{error:.2g}" for error in found.layers))] if found.layers else []),
    ])  # fmt: skip
    worst = [
        (f"{w.divergence:.3g}", screen.cut(w.before, 60)[-60:], *map(repr, (w.token, w.a, w.b))) for w in found.worst
    ]
    if worst:
        screen.table(("divergence", "after", "token", "A expects", "B expects"), worst, right=("divergence",))


@command.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.argument("data", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--against", metavar="MODEL", help="Also say how far vectors are from this model's, in f32.")
@click.option(
    "--compute",
    "computes",
    multiple=True,
    type=click.Choice(ENCODER_COMPUTES),
    help="Arithmetic; given several times, each model is measured with each (default: f32).",
)
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw size against 1 - cosine (--against)."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each measure.")
@options.threads()
@options.device()
def sts(
    models: tuple[str, ...], data: Path, against: str | None, computes: tuple[str, ...], svg: Path | None,
    as_json: bool, threads: int | None,
) -> None:  # fmt: skip
    """Measure embedders on FILE, pairs of sentences with scores that people gave.

    FILE is one of STS-B's, or has rows with two texts and a score, as `weft train embedder --loss cosine` takes them.
    Spearman's correlation says how well cosines follow the scores. With --against, lost is the mean of 1 - cosine
    between the vectors of the model and of the reference, over all sentences; farthest is the largest.

    \b
    Examples:
      weft eval sts all-MiniLM-L6-v2 sts-test.csv
      weft eval sts all-MiniLM-L6-v2 sts.csv --compute f32 --compute int8 --against all-MiniLM-L6-v2
    """
    from weft.measure import Pairs

    pairs = Pairs(data, against=against, threads=threads)
    lines: list[dict[str, Any]] = []
    for model in models:
        for compute in computes or ("f32",):
            lines.append({"model": model, **pairs.measure(model, compute=compute).as_dict()})
            if as_json:
                click.echo(json.dumps(lines[-1]))
    _drawn(lines, svg)
    if as_json:
        return
    columns = ["model", "size", "compute", "spearman", "pearson", "pairs/s", *(["lost", "farthest"] if against else [])]
    rows = [
        (
            line["model"], screen.size(line["bytes"]), line["compute"], f"{line['spearman']:.4f}",
            f"{line['pearson']:.4f}", f"{line['pairs'] / line['seconds']:.0f}",
            *(f"{line[name]:.3g}" for name in ("lost", "farthest") if name in line),
        )
        for line in lines
    ]  # fmt: skip
    screen.table(columns, rows, right=("size", *columns[3:]))


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), help="Write the picture into this file as well."
)
def plot(files: tuple[Path, ...], svg: Path | None) -> None:
    """Plot size against loss for the lines of JSON that `ppl`, `compare` and `sts --against` print.

    \b
    Examples:
      weft eval plot sizes.jsonl --svg sizes.svg
    """
    from weft.measure.perplexity import text_of
    from weft.measure.plot import best, points_of, text

    lines = [line for file in files for line in text_of(file).splitlines()]
    measure, points = points_of(lines, ", ".join(file.name for file in files))
    for line in text(measure, points):
        click.echo(screen.clean(line))
    screen.note("best of their size: " + ", ".join(point.name for point in best(points)))
    _drawn([json.loads(line) for line in lines if line.strip()], svg)


def _drawn(lines: list[dict[str, Any]], path: Path | None) -> None:
    """Write the picture of size against loss, where one is wanted."""
    if path is None:
        return
    from weft.measure.plot import points_of, svg
    from weft.weights.files import replacing

    with replacing(path) as out:
        out.write(svg(*points_of(lines)).encode())
    screen.note(f"wrote {path}")
