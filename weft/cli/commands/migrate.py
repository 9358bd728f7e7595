"""weft migrate: another model for a store of documents, while the store is in use."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft import flags
from weft.cli import options, screen

if TYPE_CHECKING:
    from weft import Embedder
    from weft.embed.migrate import Migrator, Progress
    from weft.embed.stores import Migration, Store

COMPUTES = ("f32", "f16", "bf16x3", "bf16", "int8")
TRUNCATIONS = ("error", "head", "tail")
DEFAULTS = {"compute": COMPUTES[0], "truncate": TRUNCATIONS[0]}
SHORT = 20  # characters of a fingerprint in a table


class Moves(click.Group):
    """`weft migrate STORE` is `weft migrate start STORE`: the first word is a move's name, or a store."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["start", *args]
        return super().parse_args(ctx, args)


def store_argument() -> Callable[[options.F], options.F]:
    schema = click.option("--schema", default="weft", show_default=True, help="The schema in a PostgreSQL database.")
    return options.together(click.argument("store", metavar="STORE"), schema)


def model_options() -> Callable[[options.F], options.F]:
    """How a model is loaded; what differs from the defaults is written down with its name."""
    return options.together(
        click.option(
            "--compute",
            type=click.Choice(COMPUTES),
            default=DEFAULTS["compute"],
            show_default=True,
            help="As `weft embed`.",
        ),
        click.option(
            "--truncate",
            type=click.Choice(TRUNCATIONS),
            default=DEFAULTS["truncate"],
            show_default=True,
            help="A document that is too long: skip it, embed its beginning, embed its end.",
        ),
    )


def run_options() -> Callable[[options.F], options.F]:
    return options.together(
        click.option("--batch", type=click.IntRange(1), default=100, show_default=True, help="Documents of a commit."),
        click.option("--take-over", is_flag=True, help="Do not wait for the lease of a process that is gone."),
        options.threads(),
    )


@click.group(cls=Moves)
def command() -> None:
    """Re-embed a store of documents with another model.

    STORE is a SQLite file or postgresql://user@host/database. It may be read and written meanwhile: searches use the
    old vectors until every document has a new one; then one commit serves the new ones, and the old ones are kept for
    a rollback. The state is in the store: a migration that was paused or killed is resumed, and costs one batch.

    \b
    Examples:
      weft migrate notes.db --to bge-small-en-v1.5
      weft migrate status notes.db
      weft migrate resume notes.db
      weft migrate rollback notes.db
      weft migrate finish notes.db
    """


@command.command()
@store_argument()
@click.option("--to", "model", required=True, metavar="MODEL", help="Name, folder or file of the new model.")
@click.option(
    "--rollback-window",
    "window_s",
    type=click.FloatRange(0),
    default=86_400,
    show_default=True,
    metavar="SECONDS",
    help="How long `finish` keeps the old vectors at least.",
)
@model_options()
@run_options()
def start(store: str, schema: str, model: str, window_s: float, compute: str, truncate: str, **running: Any) -> None:
    """Migrate a store to a model; `start` may be left out.

    The same command again goes on with a migration that was paused, failed or killed. Ctrl-C commits the batch under
    way and pauses.

    \b
    Examples:
      weft migrate notes.db --to bge-small-en-v1.5
      weft migrate postgresql:///notes --to ./my-model --batch 500 --truncate head
    """
    named = _named(model, compute=compute, truncate=truncate)
    with _opened(store, schema) as opened:
        migrator = _migrator(opened, named, running)
        if opened.migrations.open() is None:
            migrator.plan(window_s=window_s, model=named)
        _run(opened, migrator, store, running["take_over"])


@command.command()
@store_argument()
@run_options()
def resume(store: str, schema: str, **running: Any) -> None:
    """Go on with a paused, failed or killed migration.

    The model is the one it was started with.

    \b
    Examples:
      weft migrate resume notes.db
      weft migrate resume notes.db --take-over
    """
    with _opened(store, schema) as opened:
        found = _open_migration(opened, "resume")
        _run(opened, _migrator(opened, found.model, running), store, running["take_over"])


@command.command()
@store_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(store: str, schema: str, as_json: bool) -> None:
    """Show what a store serves, and how its migration is.

    \b
    Examples:
      weft migrate status notes.db
      weft migrate status notes.db --json
    """
    with _opened(store, schema) as opened:
        history = opened.migrations.history()
        last = history[-1] if history else None
        if as_json:
            shown = None if last is None else {**asdict(last), "total": last.total, "skipped": last.skipped}
            screen.print_json({"documents": opened.count(), "route": asdict(opened.route()), "migration": shown})
            return
        screen.facts(_facts(opened, last))
        advice = _advice(last, store)
    if advice:
        screen.note(advice)


@command.command()
@store_argument()
def pause(store: str, schema: str) -> None:
    """Pause a running migration, from anywhere.

    The process that runs it notices at its next commit, drops that batch and ends.

    \b
    Examples:
      weft migrate pause notes.db
    """
    with _opened(store, schema) as opened:
        _tell(opened.migrations.pause(), store)


@command.command()
@store_argument()
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
def skip(store: str, schema: str, ids: tuple[str, ...]) -> None:
    """Leave out documents that wait to be embedded.

    \b
    Examples:
      weft migrate skip notes.db doc-17 doc-18
    """
    with _opened(store, schema) as opened:
        opened.migrations.skip(ids)
    screen.note(f"{len(ids)} left out")


@command.command()
@store_argument()
def cancel(store: str, schema: str) -> None:
    """Give a migration up before its cut-over.

    The new vectors go, and what was served stays served.

    \b
    Examples:
      weft migrate cancel notes.db
    """
    with _opened(store, schema) as opened:
        _tell(opened.migrations.cancel(), store)


@command.command()
@store_argument()
@run_options()
def rollback(store: str, schema: str, **running: Any) -> None:
    """Serve the old vectors again, after a cut-over.

    That is possible until `finish`. Documents that changed meanwhile and have no vector of the old model are embedded
    with it first.

    \b
    Examples:
      weft migrate rollback notes.db
    """
    from weft.errors import InvalidTransitionError

    with _opened(store, schema) as opened:
        found = _open_migration(opened, "roll back")
        try:
            done = opened.migrations.rollback()
        except InvalidTransitionError:
            old = opened.generations().get(found.source or "")
            if old is None or not found.ended_at:
                raise
            with _bar() as progress:
                done = _migrator(opened, old.model, running).rollback(progress, take_over=running["take_over"])
        _tell(done, store)


@command.command()
@store_argument()
@click.option("--now", is_flag=True, help="Do not wait for the end of the rollback window.")
def finish(store: str, schema: str, now: bool) -> None:
    """Drop the old vectors; there is no way back after this.

    \b
    Examples:
      weft migrate finish notes.db
      weft migrate finish notes.db --now
    """
    with _opened(store, schema) as opened:
        _tell(opened.migrations.finish(now=now), store)


@command.command()
@store_argument()
@click.argument("source", metavar="FILE.jsonl|-")
@click.option("--id-field", default="id", show_default=True, help="Where an object has its id.")
@click.option("--field", default="text", show_default=True, help="Where an object has its text.")
@options.threads()
def add(store: str, schema: str, source: str, id_field: str, field: str, threads: int | None) -> None:
    """Put documents into a store, old or new.

    A store that is not there is made. Documents get vectors of the models that the store writes now; in a new store,
    they wait for the first `weft migrate STORE --to MODEL`.

    \b
    Examples:
      weft migrate add notes.db notes.jsonl
      weft migrate add notes.db export.jsonl --id-field key --field body
    """
    from weft.cli.texts import read_rows
    from weft.embed.migrate import Corpus

    documents = {_id(row, id_field, at): row[field] for at, row in enumerate(read_rows(source, field), 1)}
    with _opened(store, schema, create=True) as opened:
        known = opened.generations()
        models = [known[name].model for name in opened.route().write]
        corpus = Corpus(opened, *(_embedder(model, threads) for model in models))
        listed = list(documents.items())
        for first in range(0, len(listed), 100):
            corpus.put(dict(listed[first : first + 100]))
        screen.note(f"{len(documents)} documents put; the store has {opened.count()}")


@contextmanager
def _opened(store: str, schema: str, *, create: bool = False) -> Iterator[Store]:
    from weft.embed.stores import open_store

    with open_store(store, schema=schema, create=create) as opened:
        yield opened


def _named(model: str, **given: str) -> str:
    """A model with the options that are not the default, as they are typed; what a store keeps as its name.

    A path is kept whole, so that it leads there from another folder, too.
    """
    model = str(Path(model).resolve()) if Path(model).exists() else model
    return model + "".join(f" --{name} {value}" for name, value in given.items() if value != DEFAULTS[name])


def _embedder(named: str, threads: int | None) -> Embedder:
    """The model of a name that a store keeps."""
    from weft import Embedder
    from weft.errors import NotFoundError

    parts = re.fullmatch(r"(.+?)((?: --(?:compute|truncate) \w+)*)", named, re.DOTALL)
    if parts is None:
        raise NotFoundError("[migrate] the store does not know its model's name; use Python, or migrate to another")
    found = {**DEFAULTS, **dict(re.findall(r" --(\w+) (\w+)", parts[2]))}
    return Embedder(parts[1], threads=threads, **found)


def _migrator(store: Store, named: str, running: dict[str, Any]) -> Migrator:
    from weft.embed.migrate import Migrator

    return Migrator(store, _embedder(named, running["threads"]), batch=running["batch"])


def _open_migration(store: Store, action: str) -> Migration:
    from weft.errors import InvalidTransitionError

    found = store.migrations.open()
    if found is None:
        raise InvalidTransitionError(f"[migrate] cannot {action}: no migration is open in this store")
    return found


def _run(store: Store, migrator: Migrator, where: str, take_over: bool) -> None:
    """Run to the cut-over or to whatever stops it, and say how to go on."""
    left = store.migrations.lease_left()
    if left and not take_over:
        screen.note(f"another process may be migrating this store; waiting {left:.0f} s for its lease to end")
        time.sleep(left + 0.1)
    with _bar() as progress:
        done = migrator.run(progress, take_over=take_over)
    _tell(done, where)
    if done.state.value == "paused":
        raise click.exceptions.Exit(130)


def _tell(done: Migration, where: str) -> None:
    skips = "".join(f", {count} skipped: {reason}" for reason, count in done.skips.items())
    state = done.settled or done.state.value
    screen.note(f"{state}: {done.processed} of {done.total} documents embedded in {done.worked_s:.1f} s{skips}")
    advice = _advice(done, where)
    if advice:
        screen.note(advice)


def _advice(last: Migration | None, where: str) -> str:
    """What can be done next."""
    if last is None or last.settled or last.state.value == "cancelled":
        return ""
    place = shlex.quote(where)
    if last.state.value == "completed":
        return f"back: `weft migrate rollback {place}`; drop the old vectors: `weft migrate finish {place}`"
    if last.state.value == "planned":
        return f"begin: `weft migrate resume {place}`; give up: `weft migrate cancel {place}`"
    return f"go on: `weft migrate resume {place}`; give up: `weft migrate cancel {place}`"


def _facts(store: Store, last: Migration | None) -> Iterator[tuple[str, str]]:
    known, route = store.generations(), store.route()
    yield "documents", f"{store.count():,}"
    yield "phase", route.phase.value
    for name, role in [(name, "served" if name == route.query else "also written") for name in route.write]:
        yield role, f"{known[name].model or 'unnamed'} ({known[name].dimension} dimensions, {name[:SHORT]}…)"
    if last is None:
        return
    yield f"migration {last.id}", f"{last.state.value}{f', {last.settled}' if last.settled else ''}, to {last.model}"
    yield "embedded", f"{last.processed:,} of {last.total:,} documents, in {last.worked_s:.1f} s"
    yield from (("skipped", f"{count:,}: {reason}") for reason, count in last.skips.items())
    if last.error:
        yield "error", last.error
    times = {"planned": last.planned_at, "started": last.started_at, "ended": last.ended_at}
    yield from ((name, _time(at)) for name, at in times.items() if at)
    if last.lease_owner:
        yield "run by", f"{last.lease_owner}, for {store.migrations.lease_left():.0f} s unless it renews"
    if last.window_ends_at and not last.settled:
        yield "old vectors", f"kept until {_time(last.window_ends_at)} at least"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _id(row: dict[str, Any], field: str, number: int) -> str:
    value = row.get(field)
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise click.UsageError(f"object {number} has no id in the field {field!r}; name another with --id-field")
    return str(value)


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None] | None]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty() or flags.get("WEFT_NO_PROGRESS"):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("migrating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("migrating", total=None)

        def update(seen: Any) -> None:
            done = seen.processed + seen.skipped
            bar.update(task, completed=done, total=done + seen.remaining)

        yield update
