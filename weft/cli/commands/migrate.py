"""weft migrate: re-embed a store of documents with another model, while the store is in use."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen
from weft.cli.app import Moves
from weft.cli.commands.store import opened_store, store_argument, truncate_option
from weft.cli.counting import reported
from weft.cli.stopping import terminable
from weft.errors import InvalidTransitionError, NotFoundError, SkipsError

if TYPE_CHECKING:
    from weft.embed.migrate import Migrator
    from weft.embed.stores import Migration, Store

POOLINGS = ("mean", "first", "last", "max")
WINDOW = "How long a rollback stays possible before `finish` may drop the old vectors (default: 86400, a day)."
SHORT = 20  # characters of a fingerprint in a table
SKIP = ("id", "reason", "detail")
SETTLED = {"kept": "finished"}  # by `weft migrate finish`


def model_options() -> Callable[[options.F], options.F]:
    """How a model is loaded; the store keeps options that differ from their defaults with the model's name."""
    same = "As for `weft embed`."
    return options.together(
        options.encoder_compute(default="f32", auto=True),
        truncate_option("error"),
        click.option("--pooling", type=click.Choice(POOLINGS), help=same),
        click.option("--dimensions", type=click.IntRange(1), metavar="N", help=same),
    )


def skips_option() -> Callable[[options.F], options.F]:
    text = "Cut over even if up to N documents are skipped (default: 1 in 100 of all)."
    return click.option("--allow-skips", type=click.IntRange(0), metavar="N", help=text)


def run_options() -> Callable[[options.F], options.F]:
    return options.together(
        click.option("--batch", type=click.IntRange(1), default=100, show_default=True, help="Documents per commit."),
        click.option(
            "--take-over",
            is_flag=True,
            help="Take over from a process that has died, without waiting for its lease to expire.",
        ),
        options.remote(),
        options.threads(),
        terminable(),
    )


@click.group(cls=Moves, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Re-embed a store of documents with another model.

    `weft store add` makes a STORE: a SQLite file, or tables at postgresql://user@host/database. It can be read and
    written during a migration: searches use the old vectors until every document has a new one; then one commit
    switches to the new ones, and the old ones are kept for a rollback. The state is in the store: a migration that was
    paused or killed can be resumed.

    \b
    Examples:
      weft migrate notes.db --to bge-small-en-v1.5
      weft migrate status notes.db
      weft migrate rollback notes.db
      weft migrate finish notes.db
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command()
@store_argument()
@click.option("--to", "model", required=True, metavar="MODEL", help="Name, folder or file of the new model.")
@click.option("--rollback-window", "window_s", type=click.FloatRange(0), default=86_400, metavar="SECONDS", help=WINDOW)
@model_options()
@skips_option()
@run_options()
def start(store: str, schema: str, model: str, window_s: float, **given: Any) -> None:
    """Migrate a store to a model; the word `start` is optional.

    The same command resumes a migration that was paused, failed or killed. With another --truncate it also embeds the
    documents that were skipped, even after the cut-over. Ctrl-C commits the current batch and pauses.

    \b
    Examples:
      weft migrate notes.db --to bge-small-en-v1.5
      weft migrate postgresql:///notes --to ./my-model --batch 500 --truncate head
      weft migrate notes.db --to text-embedding-3-small --base-url https://api.openai.com/v1
    """
    from weft.embed.migrate.naming import DEFAULTS, named_with

    named = named_with(model, **{name: given[name] for name in DEFAULTS})
    with opened_store(store, schema) as opened:
        named, migrator = _migrator(opened, named, given)
        found, known = opened.migrations.open(), opened.generations().get(migrator.fingerprint)
        served = opened.route().query == migrator.fingerprint
        goes_there = found is not None and found.target == migrator.fingerprint
        skips = served and bool(opened.migrations.skipped())
        if known is not None and known.model != named and (skips or (goes_there and not served)):
            _retry(opened, migrator, store, named, None)
            if served:
                return
        if skips:
            screen.note(_skip_advice(store))
        if found is None:
            migrator.plan(window_s=window_s, model=named)
        _run(opened, migrator, store, given["take_over"])


@command.command()
@store_argument()
@skips_option()
@run_options()
def resume(store: str, schema: str, **running: Any) -> None:
    """Resume a paused, failed or killed migration.

    The model is the one that the migration was started with. If it is on a server, give --base-url again.

    \b
    Examples:
      weft migrate resume notes.db
      weft migrate resume notes.db --take-over
    """
    with opened_store(store, schema) as opened:
        found = opened.migrations.current("resume")
        _run(opened, _migrator(opened, found.model, running)[1], store, running["take_over"])


@command.command()
@store_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(store: str, schema: str, as_json: bool) -> None:
    """Show which model a store serves, and the state of its migration.

    \b
    Examples:
      weft migrate status notes.db
      weft migrate status notes.db --json
    """
    with opened_store(store, schema) as opened:
        history = opened.migrations.history()
        last = history[-1] if history else None
        if as_json:
            shown = None if last is None else {**asdict(last), "total": last.total, "skipped": last.skipped}
            route = opened.route()
            skips = {name: opened.migrations.skips(name) for name in route.write}
            screen.print_json({"documents": opened.count(), "route": asdict(route), "skips": skips, "migration": shown})
            return
        screen.facts(_facts(opened, last))
    _say_advice(last, store)


@command.command()
@store_argument()
def pause(store: str, schema: str) -> None:
    """Pause a running migration, from any process.

    The process that runs it notices at its next commit, drops that batch and exits.

    \b
    Examples:
      weft migrate pause notes.db
    """
    with opened_store(store, schema) as opened:
        _report(opened.migrations.pause(), store)


@command.command()
@store_argument()
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
def skip(store: str, schema: str, ids: tuple[str, ...]) -> None:
    """Skip documents that are waiting to be embedded.

    \b
    Examples:
      weft migrate skip notes.db doc-17 doc-18
    """
    with opened_store(store, schema) as opened:
        opened.migrations.skip(ids)
    screen.note(f"{screen.many(len(ids), 'document')} skipped")


@command.command()
@store_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def skipped(store: str, schema: str, as_json: bool) -> None:
    """List the documents that were skipped, and why.

    These are the skips of the open migration, or else the documents without a vector of the model that is served.

    \b
    Examples:
      weft migrate skipped notes.db
    """
    with opened_store(store, schema) as opened:
        rows = opened.migrations.skipped()
    if as_json:
        screen.print_json([dict(zip(SKIP, row)) for row in rows])
        return
    screen.table(SKIP, rows)
    screen.note(f"{screen.many(len(rows), 'document')} skipped")


@command.command()
@store_argument()
@click.argument("ids", nargs=-1, metavar="[ID…]")
@truncate_option(None, " (default: as the store has it)")
@run_options()
def retry(store: str, schema: str, ids: tuple[str, ...], truncate: str | None, **running: Any) -> None:
    """Embed documents that were skipped.

    Without ids, all that were not skipped by hand. The model is that of the open migration, or else the one that is
    served. --truncate also applies to documents that are added later.

    \b
    Examples:
      weft migrate retry notes.db --truncate head
      weft migrate retry notes.db doc-17
    """
    from weft.embed.migrate.naming import with_truncation

    with opened_store(store, schema) as opened:
        found, known = opened.migrations.open(), opened.generations()
        name = found.target if found is not None and found.target in known else opened.route().query
        if name is None:
            what = "there is nothing to retry: the documents of this store have no vectors yet"
            raise NotFoundError("migrate", what, advice="run `weft migrate STORE --to MODEL`")
        named = with_truncation(known[name].model, truncate)
        _retry(opened, _migrator(opened, named, running)[1], store, named, ids or None)
        _say_advice(opened.migrations.open(), store)


@command.command()
@store_argument()
def cancel(store: str, schema: str) -> None:
    """Cancel a migration before its cut-over.

    The new vectors are dropped; the old ones stay served.

    \b
    Examples:
      weft migrate cancel notes.db
    """
    with opened_store(store, schema) as opened:
        _report(opened.migrations.cancel(), store)


@command.command()
@store_argument()
@truncate_option(None, " (default: as the store has it)")
@skips_option()
@run_options()
def rollback(store: str, schema: str, **running: Any) -> None:
    """Serve the old vectors again, after a cut-over.

    This is possible until `finish`. Documents that changed since the cut-over and have no vector of the old model are
    embedded with it first; with --truncate also those that it skipped.

    \b
    Examples:
      weft migrate rollback notes.db
      weft migrate rollback notes.db --truncate head
    """
    with opened_store(store, schema) as opened:
        try:
            done = _rolled_back(opened, opened.migrations.current("roll back"), store, running)
        except SkipsError as error:
            again = f"weft migrate rollback {_typed(store)} --truncate head"
            raise error.but(advice=f"run: {again}; or give --allow-skips") from None
        source = str(done.source)
        screen.note(f"rolled back; {opened.generations()[source].model or source} is served again")
        _say_skips(opened.migrations.skips(source), store)


@command.command()
@store_argument()
@click.option("--now", is_flag=True, help="Do not wait until the rollback window has ended.")
def finish(store: str, schema: str, now: bool) -> None:
    """Drop the old vectors; after this, no rollback is possible.

    \b
    Examples:
      weft migrate finish notes.db
      weft migrate finish notes.db --now
    """
    with opened_store(store, schema) as opened:
        try:
            done = opened.migrations.finish(now=now)
        except InvalidTransitionError as error:
            left = opened.migrations.window_left()
            raise (error.but(advice="--now skips the wait") if left else error) from None
        screen.note(f"finished; the old vectors are dropped, and {done.model or done.target} stays served")


def _migrator(store: Store, named: str, running: dict[str, Any]) -> tuple[str, Migrator]:
    """The name of a model as the store keeps it, and a migrator with that model."""
    from weft.embed.migrate import Migrator
    from weft.embed.migrate.naming import load_named, settled

    embedder = load_named(named, threads=running["threads"], server=options.server_of(running))
    made = Migrator(store, embedder, batch=running["batch"], allow_skips=running.get("allow_skips"))
    return settled(named, embedder), made


def _retry(store: Store, migrator: Migrator, where: str, named: str, ids: tuple[str, ...] | None) -> None:
    """Embed skipped documents, with a model that may have another truncation from now on."""
    store.migrations.rename(migrator.fingerprint, named)
    with reported("documents") as tell:
        seen = migrator.retry(lambda now: tell(*now.counts), ids=ids)
    screen.note(f"{screen.many(seen.processed, 'skipped document')} embedded, {seen.skipped} skipped again")
    if seen.skipped:
        screen.note(f"for the reasons, run: weft migrate skipped {_typed(where)}")


def _rolled_back(store: Store, found: Migration, where: str, running: dict[str, Any]) -> Migration:
    """Serve the old vectors again; their model is loaded only if documents must be embedded."""
    from weft.embed.migrate.naming import with_truncation

    old, truncate = store.generations().get(found.source or ""), running["truncate"]
    try:
        if truncate is None or old is None or not found.ended_at:
            return store.migrations.rollback(allow_skips=running["allow_skips"])
    except InvalidTransitionError:  # documents wait for their vectors, or the migration is not completed
        if old is None or not found.ended_at:
            raise
    named = with_truncation(old.model, truncate)
    migrator = _migrator(store, named, running)[1]
    if truncate is not None:
        _retry(store, migrator, where, named, None)
    with reported("documents") as tell:
        return migrator.rollback(lambda now: tell(*now.counts), take_over=running["take_over"])


def _run(store: Store, migrator: Migrator, where: str, take_over: bool) -> None:
    """Run until the cut-over or until something stops it, and print what to do next."""
    left = store.migrations.lease_left()
    if left and not take_over:
        screen.note(f"another process may be migrating this store; waiting {left:.0f} s for its lease to expire")
        time.sleep(left + 0.1)
    try:
        with reported("documents") as tell:
            done = migrator.run(lambda now: tell(*now.counts), take_over=take_over)
    except SkipsError as error:
        raise error.but(
            advice=f"run: weft migrate retry {_typed(where)} --truncate head; or give --allow-skips"
        ) from None
    _report(done, where)
    if done.state.value != "completed":  # the exit code says whether Ctrl-C or SIGTERM paused it
        raise KeyboardInterrupt if done.state.value == "paused" else click.exceptions.Exit(1)


def _report(done: Migration, where: str) -> None:
    """Print the state of a migration and what can be done next."""
    state = SETTLED.get(done.settled or "", done.settled or done.state.value)
    screen.note(f"{state}: {_embedded(done)} embedded in {done.worked_s:.1f} s")
    if state != "cancelled":
        _say_skips(done.skips, where)
    _say_advice(done, where)


def _say_skips(skips: dict[str, int], where: str) -> None:
    """Print how many documents were skipped, by reason, and how to embed them."""
    from weft.embed.stores.states import missing

    if skips:
        screen.note("skipped: " + ", ".join(f"{n:,} {why}" for why, n in skips.items()))
    if missing(skips):
        screen.note(_skip_advice(where))


def _typed(where: str) -> str:
    """A store as typed in a shell, without a password: the output may end up in a log."""
    from weft.embed.stores.values import without_password

    return shlex.quote(without_password(where))


def _embedded(done: Migration) -> str:
    """How many documents were embedded, of how many; a cancelled migration has no total."""
    whole = screen.many(done.processed, "document")
    return whole if done.state.value == "cancelled" else f"{done.processed:,} of {screen.many(done.total, 'document')}"


def _skip_advice(where: str) -> str:
    store = _typed(where)
    return (
        f"to see why, run: weft migrate skipped {store}; to embed long ones: weft migrate retry {store} --truncate head"
    )


def _say_advice(last: Migration | None, where: str) -> None:
    if last is None or last.settled or last.state.value == "cancelled":
        return
    store = _typed(where)
    if last.state.value == "completed":
        advice = f"to go back, run: weft migrate rollback {store}; to drop the old vectors: weft migrate finish {store}"
    else:
        advice = f"to resume it, run: weft migrate resume {store}; to cancel it: weft migrate cancel {store}"
    screen.note(advice)


def _facts(store: Store, last: Migration | None) -> Iterator[tuple[str, str]]:
    known, route = store.generations(), store.route()
    yield "documents", f"{store.count():,}"
    yield "phase", route.phase.value
    for name, role in [(name, "served" if name == route.query else "also written") for name in route.write]:
        yield role, f"{known[name].model or 'unnamed'} ({known[name].dimension} dimensions, {name[:SHORT]}…)"
        yield from (("skipped", f"{n:,}: {reason}") for reason, n in store.migrations.skips(name).items())
    if last is None:
        return
    settled = f", {SETTLED.get(last.settled, last.settled)}" if last.settled else ""
    yield f"migration {last.id}", f"{last.state.value}{settled}, to {last.model}"
    yield "embedded", f"{_embedded(last)}, in {last.worked_s:.1f} s"
    if last.error:
        yield "error", last.error
    times = {"planned": last.planned_at, "started": last.started_at, "ended": last.ended_at}
    yield from ((name, screen.moment(at)) for name, at in times.items() if at)
    if last.lease_owner:
        yield "run by", f"{last.lease_owner}; its lease expires in {store.migrations.lease_left():.0f} s unless renewed"
    if last.window_ends_at and not last.settled:
        yield "rollback window", f"until {screen.moment(last.window_ends_at)}"
