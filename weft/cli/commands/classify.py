"""weft classify: the labels of texts, by a classifier that weft has trained or by a model with one of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen
from weft.cli.counting import make_steps
from weft.cli.stopping import terminable

if TYPE_CHECKING:
    from weft.classify import Trained

CONFUSIONS = 5  # shown


@click.command()
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT…]")
@click.option("-f", "--file", metavar="FILE", help="Texts of a file, one a line or .jsonl; - for standard input.")
@click.option("--field", metavar="NAME", help="Read JSON lines, with the text in this field (default: text).")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), help="Give no label to texts whose best one is less probable than this."
)
@click.option("--all", "every", is_flag=True, help="Print the probability of every label.")
@click.option(
    "--truncate",
    type=click.Choice(["error", "head", "tail"]),
    default="error",
    show_default=True,
    help="For texts that are too long: raise an error, keep the beginning, or keep the end.",
)
@options.threads()
@options.device()
def command(model: str, texts: tuple[str, ...], file: str | None, field: str | None, every: bool, **given: Any) -> None:
    """Print the label of each text as a line of JSON.

    MODEL is a folder that `weft train classifier` has written, a file of `weft.tiny.TextClassifier`, or a model with a
    classifier over several labels. A text below the threshold gets the label null; `best` is the one it would have got.

    \b
    Examples:
      weft classify ./intents "Where is my card?" "I want my money back"
      weft classify ./intents -f messages.jsonl --threshold 0.6
    """
    from weft.classify.classifier import Classifier, is_classifier
    from weft.cli.texts import read_rows
    from weft.tiny.files import is_tiny

    if bool(texts) == (file is not None):
        raise click.UsageError("give texts, or --file, and not both")
    rows: list[Any] = [{"text": text} for text in texts]
    asked = list(texts)
    if file is not None:
        rows = [dict(row) for row in read_rows(file, field)]
        asked = [row[field or "text"] for row in rows]
    truncate, threads, threshold = given["truncate"], given["threads"], given["threshold"]
    if is_classifier(model):
        classifier = Classifier(model, threshold=threshold, threads=threads)
        found = [
            (one.label, one.best, one.probability, one.probabilities)
            for one in classifier.classify(asked, truncate=truncate)
        ]
    elif Path(model).is_file() and is_tiny(Path(model)):
        found = _by_file(Path(model), asked, truncate, threads, threshold or 0.0)
    else:
        from weft.rerank import TextClassifier

        least = threshold or 0.0
        found = [
            (one.label if one.score >= least else None, one.label, one.score, one.scores)
            for one in TextClassifier(model, threads=threads).classify(asked, truncate=truncate)
        ]
    for row, (label, best, probability, scores) in zip(rows, found):
        made = {**row, "label": label, "probability": round(probability, 6)}
        made |= {} if label is not None else {"best": best}
        made |= {"probabilities": {name: round(value, 6) for name, value in scores.items()}} if every else {}
        click.echo(json.dumps(made, ensure_ascii=False))


def _number_or_auto(context: click.Context, parameter: click.Parameter, value: str) -> float | str:
    if value == "auto":
        return value
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number, nor auto") from None


def classifier_options() -> Callable[[options.F], options.F]:
    """The options of all that trains a classifier."""
    return options.together(
        click.argument("model"),
        click.argument("data", type=click.Path(path_type=Path)),
        click.option(
            *("-o", "--output"),
            required=True,
            type=click.Path(path_type=Path),
            metavar="FOLDER",
            help="Where it goes; a new folder.",
        ),
        click.option(
            "--valid",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Rows to measure with (default: folds of the data).",
        ),
        click.option(
            "--c",
            default="auto",
            show_default=True,
            callback=_number_or_auto,
            help="Weight of the data against the penalty; auto tries some on folds of the data.",
        ),
        click.option(
            "--threshold", type=click.FloatRange(0, 1), help="Give no label below this probability (default: 0)."
        ),
        click.option(
            "--precision",
            type=click.FloatRange(0, 1, min_open=True),
            help="Find the threshold from which on this share is right.",
        ),
        click.option(
            "--compute", default="f32", show_default=True, help="Arithmetic of the embedder: f32, f16, bf16, int8."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the measures as JSON, with the confusion matrix."),
        options.threads(),
        terminable(),
    )


def _by_file(path: Path, texts: list[str], truncate: str, threads: int | None, least: float) -> list[Any]:
    """Labels by a small network in one file, which names its embedder."""
    from weft.embed import Embedder
    from weft.errors import FormatError
    from weft.tiny import TextClassifier
    from weft.tiny.texts import embedder_of

    name, _ = embedder_of(path)
    if name is None:
        raise FormatError(path.name, "does not say which embedder it belongs to", advice="use it from Python")
    classifier = TextClassifier.load(path, Embedder(name, truncate=truncate, threads=threads))
    names = [str(one) for one in classifier.classes.tolist()]
    found = []
    for row in classifier.predict_proba(texts).tolist():
        best = max(range(len(row)), key=row.__getitem__)
        found.append((names[best] if row[best] >= least else None, names[best], row[best], dict(zip(names, row))))
    return found


def few_shot_options() -> Callable[[options.F], options.F]:
    """The options of the contrastive step, whose defaults are SetFit's; None where they are not given."""
    return options.together(
        click.option("--few-shot", is_flag=True, help="Train the encoder too: for a few texts of each label."),
        click.option("--pairs", type=click.IntRange(1), metavar="N", help="Pairs of each text and kind (default: 20)."),
        click.option(
            "--sampling",
            type=click.Choice(["oversampling", "undersampling", "unique"]),
            help="Make all pairs instead: the rarer kind repeated, the other one cut, or neither.",
        ),
        click.option("--epochs", type=int, help="How often all pairs are learnt (default: 1)."),
        click.option("--steps", type=click.IntRange(1), help="So many steps, whatever the number of pairs."),
        click.option("--batch", type=int, metavar="N", help="Pairs of a step (default: 16)."),
        click.option("--lr", "rate", type=float, help="Learning rate after the warm-up (default: 2e-5)."),
        click.option("--lora", "rank", type=int, metavar="RANK", help="Train an adapter and add it to the encoder."),
        click.option("--max-length", type=int, metavar="N", help="Tokens to which texts are cut to learn from them."),
        options.dropout(),
        click.option("--seed", type=click.IntRange(0), help="Decides pairs and their order (default: 0)."),
        click.option(
            "--memory", metavar="SIZE", callback=options.byte_count, help="The most memory to train with, as 4G."
        ),
        click.option("--save-every", type=float, help="Seconds between saves (default: 60)."),
        click.option("--resume", is_flag=True, default=None, help="Go on with a run that was stopped, bit for bit."),
    )


CONTRASTIVE = (
    *("pairs", "sampling", "epochs", "steps", "batch", "rate", "rank", "max_length", "dropout", "seed", "memory"),
    *("save_every", "resume"),
)


@click.command()
@classifier_options()
@few_shot_options()
def classifier(model: str, data: Path, as_json: bool, few_shot: bool, **given: Any) -> None:
    """Train a classifier on the vectors of the embedder MODEL.

    Rows of DATA (.jsonl, .csv, .parquet) have a `text` and a `label` (or `category`). The embedder stays as it is; a
    linear head is trained on its vectors until it has converged, so the same data give the same head. Texts that the
    head has not learnt say how sure it may be: probabilities are calibrated by them.

    With --few-shot the encoder first learns from pairs of texts that equal labels belong together (SetFit's method),
    and is written beside the head. Without --valid this is done twice: a quarter of the texts is left out the first
    time, to measure with. Ctrl-C saves the run; --resume goes on.

    \b
    Examples:
      weft train classifier all-MiniLM-L6-v2 intents.csv -o intents
      weft train classifier all-MiniLM-L6-v2 intents.csv -o intents --valid test.csv --precision 0.98
      weft train classifier all-MiniLM-L6-v2 few.csv -o intents --few-shot --valid test.csv
      weft classify intents "Where is my card?"
    """
    from weft.classify import FewShot, train_classifier

    learning = {name: value for name in CONTRASTIVE if (value := given.pop(name)) is not None}
    if not few_shot:
        if learning:
            name = {"rate": "lr", "rank": "lora"}.get(next(iter(learning)), next(iter(learning)))
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for --few-shot: without it the encoder learns nothing"
            )
        tell_trained(train_classifier(model, data, given.pop("output"), **given), as_json)
        return
    output = given.pop("output")
    run = FewShot(model, data, output, **given, **learning)
    for training in run.trainings():
        make_steps(training, output)
    tell_trained(run.finish(), as_json)


def tell_trained(found: Trained, as_json: bool) -> None:
    """What was trained and how good it is."""
    if as_json:
        from dataclasses import asdict

        facts = {"labels": found.labels, "rows": found.rows, "c": found.c, "temperature": found.temperature}
        facts |= {"threshold": found.threshold, "held_out": found.held_out, "seconds": found.seconds}
        screen.print_json({**facts, "size_bytes": found.size_bytes, **asdict(found.measures)})
        return
    _tell(found)
    click.echo(f'weft classify {found.folder} "…"')


def _tell(found: Trained) -> None:
    measures = found.measures
    shown = [
        ("labels", f"{len(found.labels):,}"),
        ("rows", f"{found.rows:,}"),
        ("c", f"{found.c:g}"),
        ("measured on", f"{measures.rows:,} texts ({found.held_out})"),
        ("accuracy", f"{measures.accuracy:.4f}"),
        ("macro F1", f"{measures.macro_f1:.4f}"),
        ("calibration error", f"{measures.calibration:.4f} at temperature {found.temperature:.3f}"),
    ]
    if found.threshold:
        right = f"{measures.answered_accuracy:.4f} of these right"
        shown.append(("threshold", f"{found.threshold:.3f}: {measures.answered:.1%} answered, {right}"))
    for wanted, got, count in measures.confused(found.labels, CONFUSIONS):
        shown.append((f"{count} times", f"{wanted} taken for {got}"))
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.seconds.items())
    screen.facts([*shown, ("time", times), ("size", screen.size(found.size_bytes))])
