"""weft distill: have a larger model label texts, and train a smaller one on what it said."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen
from weft.cli.commands import train as training
from weft.cli.commands.classify import classifier_options, tell_trained
from weft.cli.stopping import terminable

if TYPE_CHECKING:
    from weft.distill import Labelled, Plan


@click.group()
def command() -> None:
    """Have a teacher label texts, to train a student on them.

    \b
    Examples:
      weft distill label questions.jsonl --teacher openai:gpt-4o-mini -o labelled \\
          --price-in 0.15 --price-out 0.60 --max-cost 2
      weft distill label texts.jsonl --teacher local:qwen3-0.6b -o out --labels refund,other
      weft distill train classifier all-MiniLM-L6-v2 out -o student
    """


def asking() -> Callable[[options.F], options.F]:
    """The options of requests to a server."""
    rate = click.FloatRange(0, min_open=True)
    return options.together(
        click.option(
            "--base-url", metavar="URL", help="Another server of the same API, such as http://localhost:8000/v1."
        ),
        click.option(
            "--allow-host",
            "allow_hosts",
            multiple=True,
            metavar="HOST",
            help="A host beside the providers' own and this machine that texts may be sent to; several times.",
        ),
        click.option("--price-in", metavar="AMOUNT", help="Price of a million tokens in the prompt."),
        click.option("--price-out", metavar="AMOUNT", help="Price of a million tokens in the answer."),
        click.option(
            "--prices",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help='Prices of models as JSON: {"MODEL": {"input": 0.15, "output": 0.6}}.',
        ),
        click.option("--max-cost", metavar="AMOUNT", help="The most that all runs in this folder may cost together."),
        click.option(
            "--concurrency", type=click.IntRange(1, 256), default=4, show_default=True, help="Requests at once."
        ),
        click.option("--requests-per-minute", type=rate, metavar="N", help="The most requests to begin in a minute."),
        click.option("--tokens-per-minute", type=rate, metavar="N", help="The most tokens, counted at their worst."),
        click.option("--retries", type=click.IntRange(0), default=6, show_default=True, help="How often to ask again."),
        click.option("--timeout", type=rate, default=120.0, show_default=True, help="Seconds of silence to bear."),
        click.option("--deadline", type=rate, default=600.0, show_default=True, help="Seconds of a whole request."),
    )


@command.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--teacher",
    required=True,
    metavar="KIND:NAME",
    help="openai:MODEL, anthropic:MODEL, gemini:MODEL, local:MODEL, or file:ANSWERS.jsonl.",
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="Where the labels go."
)
@click.option(
    "--template", metavar="TEXT", help="The question about a row, with its fields in braces: 'Sum up: {text}'."
)
@click.option("--system", metavar="TEXT", help="A system message before each question.")
@click.option("--labels", metavar="A,B,…", help="Labels that the teacher chooses from; other answers count as failed.")
@click.option(
    "--max-tokens", type=click.IntRange(1), default=256, show_default=True, help="Tokens of the longest answer."
)
@click.option(
    "--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="Randomness of answers."
)
@click.option("--no-temperature", is_flag=True, help="Send none, for models that refuse it.")
@click.option(
    "--top-k",
    "--top-logprobs",
    "top_logprobs",
    type=click.IntRange(0),
    default=0,
    metavar="K",
    help="Keep the K likeliest tokens of each place, for `weft distill train logits` (at most 20).",
)
@asking()
@click.option("--dry-run", is_flag=True, help="Say what would be sent and the most that it can cost; send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@terminable()
def label(data: Path, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Have a teacher answer the rows of DATA.

    DATA is a .jsonl, .csv or .parquet file whose rows have a `text` or `prompt`, `messages`, or the fields that
    --template names. Keys are read from OPENAI_API_KEY, ANTHROPIC_API_KEY and GEMINI_API_KEY, which go to these
    providers only, and from WEFT_TEACHER_KEY for a server at --base-url.

    Every reply is on disk before the next request is sent. Run again, the command asks only for what is missing. The
    cost of a request's worst case is reserved before it is sent, so --max-cost is never exceeded.

    \b
    Examples:
      weft distill label texts.jsonl --teacher anthropic:claude-haiku -o out --labels refund,other \\
          --prices prices.json --max-cost 5 --dry-run
      weft distill label texts.jsonl --teacher openai:mine --base-url http://localhost:8000/v1 -o out
      weft distill label texts.jsonl --teacher file:answers.jsonl -o labelled
    """
    from weft.distill import Labelling, Limits, Prompting

    names = tuple(part.strip() for part in (given.pop("labels") or "").split(",") if part.strip())
    prompting = Prompting(given.pop("template"), given.pop("system"), names)
    limits = Limits(
        **{name: given.pop(name) for name in ("concurrency", "requests_per_minute", "tokens_per_minute", "retries")},
        timeout_s=given.pop("timeout"),
        deadline_s=given.pop("deadline"),
    )
    prices = _prices(given.pop("price_in"), given.pop("price_out"), given.pop("prices"))
    temperature = given.pop("temperature")
    given["temperature"] = None if given.pop("no_temperature") else temperature
    with Labelling(data, given.pop("teacher"), prompting=prompting, limits=limits, prices=prices, **given) as made:
        plan = made.plan
        if dry_run:
            _tell_plan(plan, as_json)
            return
        with _shown(plan.requests - plan.kept, paid=not made.price.free) as tell:
            done = made.run(tell)
    _tell_end(done, given["output"], as_json)
    if done.stopped:
        raise KeyboardInterrupt


CHAT = "Write prompts and answers with the model's chat template (default: if it has one)."


@command.group("train")
def students() -> None:
    """Train a student on what a teacher said.

    DATA is the folder that `weft distill label` has written, or a file of such rows. Every student runs with the
    commands that others do: weft chat --adapter, weft classify, weft registry add.

    \b
    Examples:
      weft distill train classifier all-MiniLM-L6-v2 labelled -o intents
      weft distill train lora smollm2-135m-instruct labelled -o student --valid 0.05
      weft distill train logits smollm2-135m-instruct labelled -o student --soft 0.7
    """


@students.command("lora")
@training.training_options(("error", "cut", "split", "drop"))
@click.option("--dropout", type=float, help="Part of each adapter's inputs that a step leaves out (default: 0).")
@click.option("--chat/--no-chat", default=None, help=CHAT)
def taught_lora(**given: Any) -> None:
    """Train an adapter of MODEL on the teacher's answers.

    The answers are learnt as `weft train lora` learns messages: in the model's own chat template, if it has one, and
    as plain completions otherwise. Where the teacher chose from labels, the prompt that it read and the label are
    learnt. Ctrl-C saves the run; --resume goes on.

    \b
    Examples:
      weft distill train lora smollm2-135m-instruct labelled -o student --valid 0.05
      weft distill train lora smollm2-135m-instruct labelled -o student --resume
    """
    _train("lora", given)


@students.command("logits")
@training.training_options(("error", "cut", "split", "drop"))
@click.option("--temperature", type=float, help="Of both distributions; more counts unlikely words more (default: 2).")
@click.option("--soft", type=float, help="Weight of the teacher's distribution, 0 to 1 (default: 0.5).")
@click.option("--chat/--no-chat", default=None, help=CHAT)
def taught_logits(**given: Any) -> None:
    """Train an adapter of MODEL on the teacher's likeliest words.

    Rows were labelled with --top-k. The loss of a token is 1 - SOFT of that of the word that was said, and SOFT of how
    far the student is from the teacher: the Kullback-Leibler divergence over the words that are kept, at the
    temperature. Teacher and student must have the same tokenizer.

    \b
    Examples:
      weft distill label prompts.jsonl --teacher local:qwen3-4b -o labelled --top-k 20
      weft distill train logits qwen3-0.6b labelled -o student --valid 0.05
      weft distill train logits qwen3-0.6b labelled -o student --temperature 1 --soft 0.9
    """
    _train("logits", given)


@students.command("classifier")
@classifier_options()
@click.option("--hard", is_flag=True, help="Learn the one label, also where rows have the teacher's probabilities.")
def taught_classifier(model: str, data: Path, as_json: bool, hard: bool, **given: Any) -> None:
    """Train a classifier on the vectors of the embedder MODEL, with the teacher's labels.

    Rows have a `text` and a `label`; where they have `probabilities` of all labels, as `weft classify --all` prints,
    these are learnt: they say more than one label does. Accuracies are beside the teacher's labels.

    \b
    Examples:
      weft distill train classifier all-MiniLM-L6-v2 labelled -o intents
      weft distill train classifier all-MiniLM-L6-v2 labelled -o intents --precision 0.98
    """
    from weft import distill

    found = distill.train("classifier", model, data, soft=not hard, **given)
    tell_trained(found, as_json)


def _train(student: str, given: dict[str, Any]) -> None:
    from functools import partial

    from weft import distill

    training.train(partial(distill.train, student), given)


def _prices(price_in: str | None, price_out: str | None, file: Path | None) -> Any:
    from weft.distill import Price

    if (price_in is None) != (price_out is None):
        raise click.UsageError("give --price-in and --price-out together")
    if price_in is not None and file is not None:
        raise click.UsageError("give --prices, or --price-in and --price-out, not both")
    return file if price_in is None else Price.per_million(price_in, price_out)


@contextmanager
def _shown(total: int, paid: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar of replies with what was spent; remarks of the library go above it."""
    from weft import flags
    from weft.distill.prices import shown

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("weft.distill")
    log.addHandler(handler)
    try:
        if not total or not (sys.stderr.isatty() and flags.progress_wanted()):
            yield lambda done, cost: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        cost_of = TextColumn("{task.fields[cost]}")
        columns = (TextColumn("replies"), BarColumn(), MofNCompleteColumn(), cost_of, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("replies", total=total, cost="")
            yield lambda done, cost: bar.update(
                task, completed=done, cost=f"{shown(cost)} spent at most" if paid else ""
            )
    finally:
        log.removeHandler(handler)


def _tell_plan(plan: Plan, as_json: bool) -> None:
    from weft.distill.prices import shown

    left = plan.requests - plan.kept
    if as_json:
        screen.print_json(
            {
                "rows": plan.rows,
                "requests": left,
                "kept": plan.kept,
                "worst": shown(plan.worst),
                "spent": shown(plan.spent),
            }
        )
        return
    screen.facts(
        [
            ("rows", f"{plan.rows:,}"),
            ("to be sent", screen.many(left, "request")),
            ("kept from before", f"{plan.kept:,}"),
            ("spent so far", shown(plan.spent)),
            ("these cost at most", shown(plan.worst)),
        ]
    )


def _tell_end(done: Labelled, folder: Path, as_json: bool) -> None:
    from weft.distill.prices import shown

    if as_json:
        counts = {"rows": done.rows, "labelled": done.labelled, "failed": done.failed, "replies": done.sent}
        screen.print_json({**counts, "cost": shown(done.cost), "stopped": done.stopped})
        return
    screen.note(f"{done.labelled:,} of {screen.many(done.rows, 'row')} labelled, {done.sent:,} by new replies")
    for why, count in sorted(done.failed.items()):
        screen.note(f"{count:,} {why}; see {folder}/failed.jsonl")
    if done.cost:
        screen.note(f"spent at most {shown(done.cost)} so far")
    if done.stopped:
        screen.note("stopped; run the same command again to go on")
    click.echo(str(folder / "labels.jsonl"))
