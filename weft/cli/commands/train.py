"""weft train: adapters on rows of text, completions, conversations or preferences; embedders and rerankers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from weft.cli import options, screen
from weft.cli.commands.classify import classifier
from weft.cli.counting import make_steps, plan_of
from weft.cli.stopping import terminable
from weft.computes import AUTO, TRAINING_COMPUTES
from weft.progress import duration

# How the options of the command are called in the library, where they differ.
NAMES = {"lr": "rate", "weight_decay": "decay", "from_": "start"}


def training_options(too_long: tuple[str, ...]) -> Callable[[options.F], options.F]:
    """The options of both kinds of training, whose defaults are those of weft.train.Options."""
    part = click.FloatRange(0, 1)
    return options.together(
        click.argument("model"),
        click.argument("data", type=click.Path(path_type=Path)),
        click.option(
            "-o",
            "--output",
            type=click.Path(path_type=Path),
            metavar="FOLDER",
            help="Where the adapter goes; a new folder. Needed except with --dry-run.",
        ),
        click.option("--valid", metavar="FILE|PART", help="Rows to measure the loss on: a file, or a part as 0.05."),
        click.option("--rank", type=int, metavar="N", help="Rank of each adapted matrix (default: 8)."),
        click.option("--alpha", type=float, help="The change is scaled by alpha / rank (default: 16)."),
        click.option("--rslora", is_flag=True, default=None, help="Scale by alpha / sqrt(rank) instead."),
        click.option(
            "--targets",
            metavar="NAMES",
            help="What is adapted: all-linear (the default), names as q_proj,v_proj, or a regular expression for whole "
            "names of modules. Experts are named: experts, or all-linear,experts.",
        ),
        click.option(
            "--modules-to-save",
            metavar="NAMES",
            callback=lambda _, __, value: None if value is None else [name.strip() for name in value.split(",")],
            help="Modules that are trained in full and saved with the adapter, as embed_tokens,o_proj.",
        ),
        click.option(
            "--from", "from_", metavar="ADAPTER", help="Train this adapter on; it gives rank, alpha and targets."
        ),
        click.option("--lr", type=float, help="Learning rate after the warm-up (default: 2e-4)."),
        click.option(
            "--schedule",
            type=click.Choice(["constant", "linear", "cosine"]),
            help="What becomes of the rate after the warm-up (default: cosine, down to zero).",
        ),
        click.option("--warmup", type=part, help="Part of all steps in which the rate rises (default: 0.03)."),
        click.option("--epochs", type=int, help="How often all rows are learnt (default: 1)."),
        click.option("--steps", type=click.IntRange(1), help="So many steps, whatever the number of rows."),
        click.option("--batch-tokens", type=int, metavar="N", help="Tokens of a step (default: 8192)."),
        click.option("--weight-decay", type=float, help="AdamW's decay of the matrices (default: 0)."),
        click.option("--clip", type=float, help="The most that a gradient's norm may be; 0 for any (default: 1)."),
        click.option("--max-length", type=int, metavar="N", help="Tokens of the longest row (default: 2048)."),
        compute(),
        click.option(
            "--too-long", type=click.Choice(too_long), help="What becomes of longer rows (default: an error)."
        ),
        running(),
        options.threads(),
        terminable(),
    )


def compute() -> Callable[[options.F], options.F]:
    """The arithmetic of products with frozen weights."""
    return click.option(
        "--compute",
        type=click.Choice([*TRAINING_COMPUTES, AUTO]),
        help="Arithmetic of products with the base of an adapter (default: f32). f16 needs a processor with half "
        "precision, bf16 is fast on those with AMX; auto takes the faster one if it is faster here and gradients stay "
        "near f32's.",
    )


def running() -> Callable[[options.F], options.F]:
    """The options of all that change no step."""
    number = click.IntRange(0)
    return options.together(
        click.option("--valid-every", type=number, metavar="N", help="Steps between validations (default: ten a run)."),
        click.option(
            "--patience",
            type=number,
            metavar="N",
            help="Stop after N validations without a better one (default: never).",
        ),
        click.option(
            "--memory",
            metavar="SIZE",
            callback=options.byte_count,
            help="The most memory to use, as 4G (default: 90% of what is free).",
        ),
        click.option("--seed", type=number, help="Decides the first matrices and the order of rows (default: 0)."),
        click.option("--save-every", type=float, default=60.0, show_default=True, help="Seconds between saves."),
        click.option("--resume", is_flag=True, help="Go on with a run that was stopped, bit for bit."),
        click.option("--dry-run", is_flag=True, help="Say what would be trained, how much memory and time it takes."),
    )


@click.group()
def command() -> None:
    """Train adapters, embedders, rerankers and classifiers.

    The base stays as it is, quantised and mapped, and is shared with a server that runs beside. Runs on the CPU, in
    f32 unless --compute says otherwise. The same data, options and seed give the same adapter, bit for bit, whatever
    the number of threads and the memory.

    \b
    Examples:
      weft train lora smollm2-135m-instruct chats.jsonl -o my-lora --valid 0.05
      weft train dpo smollm2-135m-instruct pairs.jsonl -o preferred
      weft train embedder all-MiniLM-L6-v2 pairs.jsonl -o mine --valid 0.05
    """


@command.command()
@training_options(("error", "cut", "split", "drop"))
@click.option(
    "--loss",
    type=click.Choice(["assistant", "completion", "all"]),
    help="What is learnt: all answers, the last answer or the completion, or every token (default: the answers of "
    "messages, completions, whole texts).",
)
@click.option("--dropout", type=float, help="Part of each adapter's inputs that a step leaves out (default: 0).")
def lora(**given: Any) -> None:
    """Train an adapter on rows of MODEL's texts.

    DATA is a file of rows: .jsonl, .csv or .parquet, with fields `text`, `prompt` and `completion`, or `messages` (and
    `tools`). The folder gets the adapter in PEFT's format (the best one if there is validation data, the last one
    beside it), loss.svg and report.html. Ctrl-C saves the run; --resume goes on.

    \b
    Examples:
      weft train lora smollm2-135m-instruct chats.jsonl -o my-lora --dry-run
      weft train lora smollm2-135m-instruct chats.jsonl -o my-lora --valid 0.05 --epochs 3
      weft train lora ./model docs.jsonl -o more --from my-lora --loss all --too-long split
      weft train lora smollm2-135m-instruct chats.jsonl -o my-lora --resume
    """
    from weft import train as library

    train(library.lora, given)


@command.command()
@training_options(("error", "drop"))
@click.option("--beta", type=float, help="How strongly the model is held to where it began (default: 0.1).")
def dpo(**given: Any) -> None:
    """Train an adapter on preferences between two answers (direct preference optimisation).

    Rows have `chosen` and `rejected`, beside a `prompt` (texts, or lists of messages), or as two conversations with the
    same beginning. MODEL without an adapter is what the trained one is compared with.

    \b
    Examples:
      weft train dpo smollm2-135m-instruct pairs.jsonl -o preferred --lr 5e-5
      weft train dpo smollm2-135m-instruct pairs.parquet -o preferred --beta 0.3 --valid 0.1
    """
    from weft import train as library

    train(library.dpo, given)


def vector_options() -> Callable[[options.F], options.F]:
    """The options of embedders and rerankers, whose defaults are those of weft.train.VectorOptions."""
    return options.together(
        click.argument("model"),
        click.argument("data", type=click.Path(path_type=Path)),
        click.option(
            *("-o", "--output"),
            type=click.Path(path_type=Path),
            metavar="FOLDER",
            help="Where the model or the adapter goes; a new folder. Needed except with --dry-run.",
        ),
        click.option("--valid", metavar="FILE|PART", help="Rows to measure on, or a part of them, as 0.05."),
        click.option("--lora", "rank", type=int, metavar="RANK", help="Train an adapter of this rank."),
        click.option("--full", is_flag=True, help="Train all weights (the default)."),
        click.option("--alpha", type=float, help="With --lora: the change is scaled by alpha / rank (default: 16)."),
        click.option("--targets", metavar="NAMES", help="With --lora: what is adapted (default: all-linear)."),
        click.option("--merged", is_flag=True, help="With --lora: write the whole model too, in FOLDER/merged."),
        click.option("--batch", type=int, metavar="N", help="Examples of a step, as many as wanted (default: 16)."),
        click.option("--epochs", type=int, help="How often all rows are learnt (default: 1)."),
        click.option("--steps", type=click.IntRange(1), help="So many steps, whatever the number of rows."),
        click.option("--lr", type=float, help="Learning rate after the warm-up (default: 2e-5)."),
        click.option(
            "--schedule",
            type=click.Choice(["constant", "linear", "cosine"]),
            help="What becomes of the rate after the warm-up (default: linear, down to zero).",
        ),
        click.option(
            "--warmup", type=click.FloatRange(0, 1), help="Part of all steps in which it rises (default: 0.1)."
        ),
        click.option("--weight-decay", type=float, help="AdamW's decay of matrices (default: 0)."),
        click.option("--clip", type=float, help="The most that a gradient's norm may be; 0 for any (default: 1)."),
        options.dropout(),
        click.option(
            "--max-length", type=int, metavar="N", help="Tokens to which texts are cut (default: the model's)."
        ),
        compute(),
        running(),
        options.threads(),
        terminable(),
    )


@command.command()
@vector_options()
@click.option(
    "--loss",
    type=click.Choice(["ranking", "triplet", "cosine", "cosent", "mse"]),
    help="What is learnt: to find the positive among all texts of a batch, that negatives are farther, scores as "
    "cosines or as an order, or vectors of a teacher (default: ranking).",
)
@click.option("--dims", metavar="N,N…", help="Lengths to which vectors may be cut afterwards (Matryoshka).")
@click.option("--no-prompts", is_flag=True, help="Learn texts without the model's prompts.")
def embedder(full: bool, dims: str | None, no_prompts: bool, **given: Any) -> None:
    """Train an embedding model on texts that belong together.

    DATA is a file of rows: .jsonl, .csv or .parquet, with `anchor`, `positive` and any number of negatives (`negative`,
    `negative_1` …, or a list `negatives`), `sentence1`, `sentence2` and `score`, or `text` and a `vector`. Losses and
    defaults are those of sentence-transformers. The folder gets a model that weft and sentence-transformers load or,
    with --lora, an adapter in PEFT's format; the best one if there is validation data. Ctrl-C saves; --resume goes on.

    \b
    Examples:
      weft train embedder all-MiniLM-L6-v2 pairs.jsonl -o mine --valid 0.05 --batch 128
      weft train embedder all-MiniLM-L6-v2 sts.csv -o mine --loss cosine --epochs 4 --valid dev.csv
      weft train embedder all-MiniLM-L6-v2 pairs.jsonl -o mine --lora 8 --lr 2e-4 --dims 384,128,64
    """
    from weft import train as library

    _one_way(full, given)
    if dims is not None:
        given["dims"] = _whole_numbers(dims)
    if no_prompts:
        given["prompts"] = False
    train(library.embedder, given, "the model")


@command.command()
@vector_options()
def reranker(full: bool, **given: Any) -> None:
    """Train a cross-encoder on pairs of a query and a document.

    Rows have `query`, `document` and a `label` of 0 to 1, or `query`, `positive` and negatives, as `weft train mine
    --form pair` writes them. The loss is the binary cross-entropy of the model's one logit. An encoder without a
    classifier gets a new one.

    \b
    Examples:
      weft train reranker cross-encoder/ms-marco-MiniLM-L6-v2 labelled.jsonl -o mine --valid 0.1
      weft train reranker all-MiniLM-L6-v2 labelled.jsonl -o mine --epochs 3
    """
    from weft import train as library

    _one_way(full, given)
    train(library.reranker, given, "the model")


def _one_way(full: bool, given: dict[str, Any]) -> None:
    if full and given["rank"] is not None:
        raise click.UsageError("--full trains all weights, --lora an adapter; give one of them")


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise click.BadParameter("give whole numbers, as 384,256,128", param_hint="--dims") from None


command.add_command(classifier)


@command.command()
@click.argument("model")
@click.argument("data", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="A .jsonl file.")
@click.option("--negatives", type=int, default=3, show_default=True, help="Of each anchor.")
@click.option("--corpus", type=click.Path(path_type=Path), help="More candidates: a file with a text on each line.")
@click.option("--first", type=int, default=0, show_default=True, help="Skip so many of the nearest: may be positives.")
@click.option("--last", type=int, help="Look at candidates up to this rank (default: as many as are needed).")
@click.option("--min-score", "least", type=float, help="Least cosine of a negative with its anchor.")
@click.option("--max-score", "most", type=float, help="Greatest cosine of a negative with its anchor.")
@click.option("--margin", type=float, help="By how much less similar than the positive a negative must be.")
@click.option("--relative-margin", type=float, help="The same as a part of the positive's similarity, as 0.05.")
@click.option("--sampling", type=click.Choice(["top", "random"]), default="top", show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Decides random choices.")
@click.option(
    "--form",
    type=click.Choice(["triplet", "tuple", "pair"]),
    default="triplet",
    show_default=True,
    help="Rows that are written: one for each negative; one with all of them; or pairs with a label, for a reranker.",
)
@options.threads()
@terminable()
def mine(model: str, data: Path, output: Path, corpus: Path | None, form: str, threads: int | None, **how: Any) -> None:
    """Find hard negatives: texts that MODEL finds near to an anchor and that are not its positives.

    DATA has rows with an `anchor` (or `query`) and a `positive` (or `document`, `answer`). Candidates are the positives
    of all rows, and the lines of --corpus. The rows that are written can be learnt with --loss ranking or triplet.

    \b
    Examples:
      weft train mine all-MiniLM-L6-v2 pairs.jsonl -o triplets.jsonl --relative-margin 0.05
      weft train mine ./model pairs.jsonl -o labelled.jsonl --form pair --sampling random
    """
    import json

    from weft.embed import Embedder
    from weft.train.vectors.mining import mine as mined
    from weft.weights.files import replacing

    lines = None if corpus is None else [line for line in corpus.read_text("utf-8").splitlines() if line.strip()]
    embedder = Embedder(model, truncate="head", threads=threads)
    anchors = rows = short = 0
    with replacing(output) as out:
        for found in mined(embedder, data, corpus=lines, **how):
            anchors += 1
            short += len(found.negatives) < how["negatives"]
            for row in found.rows(form, how["negatives"]):
                rows += 1
                out.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
    screen.note(f"{rows:,} rows of {anchors:,} pairs in {output}")
    if short:
        screen.note(f"{short:,} pairs have fewer than {how['negatives']} negatives; widen --last or the margins")


def train(make: Callable[..., Any], given: dict[str, Any], what: str = "the adapter") -> None:
    """Run one of the commands: `make` takes the model, the data and the options of the library."""
    dry = given.pop("dry_run")
    if given["output"] is None and not dry:
        raise click.UsageError(f"no folder for {what}; give -o FOLDER, or --dry-run")
    named = {NAMES.get(name, name): value for name, value in given.items() if value is not None}
    if "valid" in named:
        named["valid"] = _valid(named["valid"])
    if dry:
        named.pop("output", None)
    training = make(str(named.pop("model")), named.pop("data"), **named)
    if dry:
        _tell_plan(training)
        return
    make_steps(training, given["output"])
    _tell_end(training)


def _valid(given: str) -> float | Path:
    try:
        return float(given)
    except ValueError:
        return Path(given)


def _tell_plan(training: Any) -> None:
    tokens = training.run.step_tokens
    plan, speed = training.memory_plan(tokens), training.estimate()
    parts = ", ".join(f"{name} {screen.size(size)}" for name, size in plan.items())
    memory = f"{screen.size(sum(plan.values()))}: {parts} for {tokens:,} tokens at a time"
    if training.learner.again:
        memory += f"; {training.learner.again} of {training.learner.parts} parts are computed again to save memory"
    about = f"{duration(speed['seconds'])}, at {speed['tokens_per_second']:,.0f} tokens/s"
    screen.facts([*plan_of(training), ("memory", memory), ("about", about)])


def _tell_end(training: Any) -> None:
    from weft.train.report import curve
    from weft.train.report.files import curves

    run = training.run
    if run.done > 1:
        screen.note("\n".join(curve.text(curves(training)[0])))
    best = ""
    if run.best is not None and run.measure_name:
        first = f" ({run.before['score']:.4f} before)" if run.before else ""
        best = f"; best {run.measure_name} {run.best[0].score:.4f}{first} after step {run.best[0].number:,}"
    elif run.best is not None:
        best = f"; best validation loss {run.best[0].valid:.4f} after step {run.best[0].number:,}"
    early = " (stopped early)" if run.stopped_early and run.done < run.steps else ""
    screen.note(f"{run.done:,} steps{early} in {duration(training.seconds)}, loss {run.history[-1].loss:.4f}{best}")
    screen.note(f"see {training.output}/report.html; use it:")
    for line in training.uses():
        click.echo(line)
