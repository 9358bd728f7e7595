"""weft migrate: another model for a store of documents, while the store is in use."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from weft import flags
from weft.cli import options, screen
from weft.cli.app import Moves
from weft.cli.counting import counted
from weft.cli.stopping import terminable
from weft.computes import ENCODER_COMPUTES
from weft.errors import InputError, InvalidTransitionError, NotFoundError

if TYPE_CHECKING:
    from weft.embed.migrate import Migrator, Progress
    from weft.embed.stores import Migration, Store

POOLINGS = ("mean", "first", "last", "max")
TRUNCATIONS = ("error", "head", "tail", "chunk")
WINDOW = "How long `finish` keeps the old vectors at least (default: 86400, a day)."
SAID_S = 15.0  # between two lines of progress where there is no terminal
SHORT = 20  # characters of a fingerprint in a table
SETTLED = {"kept": "finished"}  # as `weft migrate finish` calls it


def store_argument() -> Callable[[options.F], options.F]:
    return options.together(click.argument("store", metavar="STORE"), options.schema())


def truncate_option(default: str | None, more: str = "") -> Callable[[options.F], options.F]:
    text = f"A document that is too long: skip it, embed its beginning, its end, or the mean of its windows{more}."
    kind = click.Choice(TRUNCATIONS)
    return click.option("--truncate", type=kind, default=default, show_default=default is not None, help=text)


def model_options() -> Callable[[options.F], options.F]:
    """How a model is loaded; what differs from the defaults is written down with its name."""
    computes, same = click.Choice(ENCODER_COMPUTES), "As `weft embed`."
    return options.together(
        click.option("--compute", type=computes, default=ENCODER_COMPUTES[0], show_default=True, help=same),
        truncate_option(TRUNCATIONS[0]),
        click.option("--pooling", type=click.Choice(POOLINGS), help=same),
        click.option("--dimensions", type=click.IntRange(1), metavar="N", help=same),
    )


def skips_option() -> Callable[[options.F], options.F]:
    text = "Serve these vectors though N documents have none (default: 1 in 100 of all)."
    return click.option("--allow-skips", type=click.IntRange(0), metavar="N", help=text)


def run_options() -> Callable[[options.F], options.F]:
    """How documents are embedded; SIGTERM pauses what does it, as Ctrl-C does."""
    return options.together(
        click.option("--batch", type=click.IntRange(1), default=100, show_default=True, help="Documents of a commit."),
        click.option("--take-over", is_flag=True, help="Do not wait for the lease of a process that is gone."),
        options.remote(),
        options.threads(),
        terminable(),
    )


@click.group(cls=Moves, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Re-embed a store of documents with another model.

    STORE is a SQLite file or postgresql://user@host/database. It may be read and written meanwhile: searches use the
    old vectors until every document has a new one; then one commit serves the new ones, and the old ones are kept for
    a rollback. The state is in the store: a migration that was paused or killed is resumed, and costs one batch.

    \b
    Examples:
      weft migrate add notes.db notes.jsonl
      weft migrate notes.db --to bge-small-en-v1.5
      weft search notes.db "trains to Berlin"
      weft migrate status notes.db
      weft migrate resume notes.db
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
    """Migrate a store to a model; `start` may be left out.

    The same command again goes on with a migration that was paused, failed or killed. With another --truncate it also
    embeds what was skipped, even where the model is served by now. Ctrl-C commits the batch under way and pauses.

    \b
    Examples:
      weft migrate notes.db --to bge-small-en-v1.5
      weft migrate postgresql:///notes --to ./my-model --batch 500 --truncate head
      weft migrate notes.db --to text-embedding-3-small --base-url https://api.openai.com/v1
    """
    from weft.embed.migrate.naming import DEFAULTS, named_with

    named = named_with(model, **{name: given[name] for name in DEFAULTS})
    with _opened(store, schema) as opened:
        migrator = _migrator(opened, named, given)
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
    """Go on with a paused, failed or killed migration.

    The model is the one it was started with. Where a server has it, the server is named again.

    \b
    Examples:
      weft migrate resume notes.db
      weft migrate resume notes.db --take-over
    """
    with _opened(store, schema) as opened:
        found = opened.migrations.current("resume")
        _run(opened, _migrator(opened, found.model, running), store, running["take_over"])


@command.command()
@store_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(store: str, schema: str, as_json: bool) -> None:
    """Show what a store serves, and how its migration is.

    \b
    Examples:
      weft migrate status notes.db
    """
    with _opened(store, schema) as opened:
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def skipped(store: str, schema: str, as_json: bool) -> None:
    """List the documents that a migration left out, and why.

    They are those of the open migration, or those that lack a vector of the model that is served.

    \b
    Examples:
      weft migrate skipped notes.db
    """
    names = ("id", "reason", "detail")
    with _opened(store, schema) as opened:
        rows = opened.migrations.skipped()
    if as_json:
        screen.print_json([dict(zip(names, row)) for row in rows])
        return
    screen.table(names, rows)
    screen.note(f"{len(rows)} skipped")


@command.command()
@store_argument()
@click.argument("ids", nargs=-1, metavar="[ID…]")
@truncate_option(None, " (default: as the store keeps it)")
@run_options()
def retry(store: str, schema: str, ids: tuple[str, ...], truncate: str | None, **running: Any) -> None:
    """Embed documents that were skipped, after all.

    Without ids, all that nobody left out by hand. The model is that of the open migration, or the one that is served;
    --truncate is kept for the documents that come later.

    \b
    Examples:
      weft migrate retry notes.db --truncate head
      weft migrate retry notes.db doc-17
    """
    from weft.embed.migrate.naming import with_truncation

    with _opened(store, schema) as opened:
        found, known = opened.migrations.open(), opened.generations()
        name = found.target if found is not None and found.target in known else opened.route().query
        if name is None:
            raise NotFoundError("[migrate] no document has a vector yet: there is nothing to retry")
        named = with_truncation(known[name].model, truncate)
        _retry(opened, _migrator(opened, named, running), store, named, ids or None)
        _say_advice(opened.migrations.open(), store)


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
@truncate_option(None, " (default: as the store keeps it)")
@skips_option()
@run_options()
def rollback(store: str, schema: str, **running: Any) -> None:
    """Serve the old vectors again, after a cut-over.

    That is possible until `finish`. Documents that changed meanwhile and have no vector of the old model are embedded
    with it first; with --truncate also those that it skipped.

    \b
    Examples:
      weft migrate rollback notes.db
      weft migrate rollback notes.db --truncate head
    """
    with _opened(store, schema) as opened:
        done = _rolled_back(opened, opened.migrations.current("roll back"), store, running)
        _tell(done, store, opened.migrations.skips(str(done.source)))


@command.command()
@store_argument()
@click.option("--now", is_flag=True, help="Do not wait for the end of the rollback window.")
def finish(store: str, schema: str, now: bool) -> None:
    """Drop the old vectors; there is no way back after this.

    \b
    Examples:
      weft migrate finish notes.db
    """
    with _opened(store, schema) as opened:
        _tell(opened.migrations.finish(now=now), store)


@command.command()
@store_argument()
@click.argument("source", metavar="FILE.jsonl|-")
@click.option("--id-field", default="id", show_default=True, help="Where an object has its id.")
@click.option("--field", default="text", show_default=True, help="Where an object has its text.")
@truncate_option(None, " (default: as the store keeps it, or else refuse it)")
@options.remote()
@options.threads()
@terminable()
def add(store: str, schema: str, source: str, id_field: str, field: str, **given: Any) -> None:
    """Put documents into a store, old or new.

    A store that is not there is made. Documents get vectors of the models that the store writes now; in a new store,
    they wait for the first `weft migrate STORE --to MODEL`. They are put by the hundred: what stands before a line
    that is refused stays, and the same command may be given again.

    \b
    Examples:
      weft migrate add notes.db notes.jsonl
      weft migrate add notes.db export.jsonl --id-field key --field body
    """
    from weft.cli.texts import read_rows
    from weft.embed.migrate import Corpus
    from weft.embed.migrate.corpus import in_parts
    from weft.embed.migrate.naming import load_named

    parts = in_parts(read_rows(source, field), id_field, field)
    first = next(parts, {})  # before a store is made for what cannot be read
    with _opened(store, schema, create=True) as opened:
        known = opened.generations()
        models = [known[name].model for name in opened.route().write]
        how = {"threads": given["threads"], "truncate": given["truncate"], "server": options.server_of(given)}
        corpus = Corpus(opened, *(load_named(model, **how) for model in models))
        put = 0
        try:
            with counted("documents") as tell:
                for part in chain([first], parts):
                    corpus.put(part)
                    put += len(part)
                    tell(put)
        except BaseException:
            screen.note(f"{screen.many(put, 'document')} put before this")
            raise
        screen.note(f"{screen.many(put, 'document')} put; the store has {opened.count():,}")


def _opened(store: str, schema: str, *, create: bool = False) -> Store:
    from weft.embed.stores import open_store

    return open_store(store, schema=schema, create=create)


def _migrator(store: Store, named: str, running: dict[str, Any]) -> Migrator:
    from weft.embed.migrate import Migrator
    from weft.embed.migrate.naming import load_named

    embedder = load_named(named, threads=running["threads"], server=options.server_of(running))
    return Migrator(store, embedder, batch=running["batch"], allow_skips=running.get("allow_skips"))


def _retry(store: Store, migrator: Migrator, where: str, named: str, ids: tuple[str, ...] | None) -> None:
    """Embed what was skipped, by a model that may cut texts otherwise from now on."""
    store.migrations.rename(migrator.fingerprint, named)
    with _progress() as progress:
        seen = migrator.retry(progress, ids=ids)
    screen.note(f"{screen.many(seen.processed, 'document')} embedded that were skipped, {seen.skipped} skipped again")
    if seen.skipped:
        screen.note(f"why: `weft migrate skipped {_typed(where)}`")


def _rolled_back(store: Store, found: Migration, where: str, running: dict[str, Any]) -> Migration:
    """Serve the old vectors again; their model is loaded only where something is to be embedded."""
    from weft.embed.migrate.naming import with_truncation

    old, truncate = store.generations().get(found.source or ""), running["truncate"]
    try:
        if truncate is None or old is None or not found.ended_at:
            return store.migrations.rollback(allow_skips=running["allow_skips"])
    except InvalidTransitionError:  # documents wait for their vectors, or it is too early
        if old is None or not found.ended_at:
            raise
    named = with_truncation(old.model, truncate)
    migrator = _migrator(store, named, running)
    if truncate is not None:
        _retry(store, migrator, where, named, None)
    with _progress() as progress:
        return migrator.rollback(progress, take_over=running["take_over"])


def _run(store: Store, migrator: Migrator, where: str, take_over: bool) -> None:
    """Run to the cut-over or to whatever stops it, and say how to go on."""
    left = store.migrations.lease_left()
    if left and not take_over:
        screen.note(f"another process may be migrating this store; waiting {left:.0f} s for its lease to end")
        time.sleep(left + 0.1)
    try:
        with _progress() as progress:
            done = migrator.run(progress, take_over=take_over)
    except InputError:
        found = store.migrations.open()
        if found is not None and found.missing:
            screen.note(_skip_advice(where))
        raise
    _tell(done, where)
    if done.state.value != "completed":  # the exit code says whether Ctrl-C or SIGTERM paused it
        raise KeyboardInterrupt if done.state.value == "paused" else click.exceptions.Exit(1)


def _tell(done: Migration, where: str, skips: dict[str, int] | None = None) -> None:
    """What became of a migration; `skips` are those of what is served now, where that is not its target."""
    from weft.embed.stores.states import missing

    skips = done.skips if skips is None else skips
    state = SETTLED.get(done.settled or "", done.settled or done.state.value)
    left_out = "".join(f", {n} skipped: {why}" for why, n in skips.items())
    screen.note(f"{state}: {_embedded(done)} in {done.worked_s:.1f} s{left_out}")
    if missing(skips) and state != "cancelled":
        screen.note(_skip_advice(where))
    _say_advice(done, where)


def _typed(where: str) -> str:
    """A store as it is typed, without a password: what is printed may be kept somewhere."""
    from weft.embed.stores.values import without_password

    return shlex.quote(without_password(where))


def _embedded(done: Migration) -> str:
    """How many documents, of how many; what is left of a cancelled one is not kept."""
    if done.state.value == "cancelled":
        return f"{screen.many(done.processed, 'document')} embedded"
    return f"{done.processed:,} of {screen.many(done.total, 'document')} embedded"


def _skip_advice(where: str) -> str:
    store = _typed(where)
    again = f"`weft migrate retry {store} --truncate head`, or --truncate chunk"
    return f"skipped: `weft migrate skipped {store}`; documents that are too long: {again}"


def _say_advice(last: Migration | None, where: str) -> None:
    """What can be done next."""
    if last is None or last.settled or last.state.value == "cancelled":
        return
    store = _typed(where)
    if last.state.value == "completed":
        screen.note(f"back: `weft migrate rollback {store}`; drop the old vectors: `weft migrate finish {store}`")
        return
    on = "begin" if last.state.value == "planned" else "go on"
    screen.note(f"{on}: `weft migrate resume {store}`; give up: `weft migrate cancel {store}`")


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
    yield "embedded", f"{_embedded(last).removesuffix(' embedded')}, in {last.worked_s:.1f} s"
    if last.error:
        yield "error", last.error
    times = {"planned": last.planned_at, "started": last.started_at, "ended": last.ended_at}
    yield from ((name, screen.moment(at)) for name, at in times.items() if at)
    if last.lease_owner:
        yield "run by", f"{last.lease_owner}, for {store.migrations.lease_left():.0f} s unless it renews"
    if last.window_ends_at and not last.settled:
        yield "old vectors", f"kept until {screen.moment(last.window_ends_at)} at least"


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A count on a terminal, and a line now and then elsewhere, unless WEFT_NO_PROGRESS asks for nothing."""
    lines, said = flags.progress_wanted() and not sys.stderr.isatty(), time.monotonic()
    with counted("documents") as tell:

        def update(seen: Progress) -> None:
            nonlocal said
            done = seen.processed + seen.skipped
            tell(done, done + seen.remaining)
            if lines and time.monotonic() - said >= SAID_S:
                said = time.monotonic()
                screen.note(f"{done:,} of {done + seen.remaining:,} documents")

        yield update
