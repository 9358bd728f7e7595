"""weft store: documents with their vectors in a database: add, search, list and delete them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen
from weft.cli.commands.search import map_option, mapped_query
from weft.cli.counting import counted
from weft.cli.stopping import terminable
from weft.errors import NotAStoreError, NotFoundError, TooLongError

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder
    from weft.embed.migrate import Corpus
    from weft.embed.pipeline.folder import Chunking
    from weft.embed.stores import Document, Store

ADD_ONE = "create a store with `weft store add`"
NO_VECTORS = "the documents of this store have no vectors yet"
SHOWN, SHOWN_FIELDS = 60, 60  # characters of a text and of fields in a list
TRUNCATIONS = click.Choice(["error", "head", "tail", "chunk"])


def store_argument() -> Callable[[options.F], options.F]:
    return options.together(click.argument("store", metavar="STORE"), options.schema())


def truncate_option(default: str | None, more: str = "") -> Callable[[options.F], options.F]:
    text = f"For documents that are too long: skip them, or embed their beginning, end, or the mean of windows{more}."
    return click.option("--truncate", type=TRUNCATIONS, default=default, show_default=default is not None, help=text)


def opened_store(store: str, schema: str, *, create: bool = False) -> Store:
    """The store; a missing one is an error that says how to create it."""
    from weft.embed.stores import open_store

    try:
        return open_store(store, schema=schema, create=create)
    except (NotAStoreError, NotFoundError) as error:
        raise error.but(advice=ADD_ONE) from None


@click.group()
def command() -> None:
    """Keep documents with their vectors in a database.

    STORE is a SQLite file or postgresql://user@host/database. It keeps documents with their fields, and their vectors
    of one model; several processes may use it at once. `weft migrate` changes the model. For a folder of files that
    only you search, `weft index` is simpler.

    \b
    Examples:
      weft store add notes.db notes.jsonl --model all-MiniLM-L6-v2
      weft store search notes.db "trains to Berlin" --where lang=en
      weft store list notes.db
      weft store delete notes.db note-17
    """


@command.command()
@store_argument()
@click.argument("source", metavar="FILE.jsonl|-")
@click.option("--id-field", default="id", show_default=True, help="The field of a row's id.")
@click.option("--field", default="text", show_default=True, help="The field of a row's text.")
@click.option("-m", "--model", help="The model of a store that has none yet (default: none, see below).")
@click.option(
    "--chunk-tokens",
    type=click.IntRange(8),
    metavar="N",
    help="Store documents of more than N tokens in chunks of N tokens, each with a vector of its own.",
)
@click.option(
    "--overlap",
    type=click.IntRange(0),
    metavar="N",
    help="Tokens that a chunk shares with the previous one (default: a fifth of --chunk-tokens).",
)
@truncate_option(None, " (default: as the store has it, or else refuse them)")
@options.remote()
@options.threads()
@options.device()
@terminable()
def add(store: str, schema: str, source: str, id_field: str, field: str, **given: Any) -> None:
    """Add or replace documents; a missing store is created.

    A row's other fields are kept with the document, for --where. Documents get vectors of the models that the store
    uses now. In a new store that is --model; without it they wait for the first `weft migrate STORE --to MODEL`. They
    are committed in batches of a hundred: if a row is refused, the batches before it stay, and the command can be
    repeated.

    \b
    Examples:
      weft store add notes.db notes.jsonl --model all-MiniLM-L6-v2
      weft store add notes.db reports.jsonl --chunk-tokens 200
      weft store add notes.db export.jsonl --id-field key --field body
    """
    from weft.cli.texts import read_rows
    from weft.embed.migrate.corpus import in_parts

    chunking = _chunking(given)
    parts = in_parts(read_rows(source, field), id_field, field)
    first = next(parts, {})  # before a store is created for unreadable input
    with opened_store(store, schema, create=True) as opened:
        corpus, put = _writing(opened, given), 0
        try:
            with counted("documents") as tell:
                for part in chain([first], parts):
                    corpus.put(part, chunking=chunking)
                    put += len(part)
                    tell(put)
        except BaseException as error:
            screen.note(f"{screen.many(put, 'document')} added before this")
            if isinstance(error, TooLongError):
                raise error.but(advice="use --chunk-tokens N, or --truncate head, tail or chunk") from None
            raise
        screen.note(f"{screen.many(put, 'document')} added; the store has {opened.count():,}")


@command.command()
@store_argument()
@click.argument("query")
@click.option(
    "-k", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many texts to print."
)
@options.where()
@click.option("-m", "--model", help="Name or path of the model (default: the one that the store names).")
@click.option("--whole", is_flag=True, help="Print whole texts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, best first.")
@map_option()
@options.remote("model, if a server made the vectors")
@options.threads()
@options.device()
def search(
    store: str, schema: str, query: str, count: int, whole: bool, as_json: bool, map_file: str | None, **given: Any
) -> None:
    """Find the documents of a store nearest to a query.

    The store contains the name of its model, whose fingerprint is checked before every search, so that results never
    come from another model's vectors. With --map, a store of the old model's vectors is searched with a query of the
    new one before or while `weft migrate` embeds its documents again.

    \b
    Examples:
      weft store search notes.db "trains to Berlin"
      weft store search notes.db "trains to Berlin" --model new-model --map old-to-new.npz
      weft store search notes.db "tax rules" --where lang=en --where 'year={"gte": 2000}'
      weft store search postgresql:///notes "trains to Berlin" -k 10 --json
    """
    from weft.cli.commands.search import Conditions, print_hits

    if not query.strip():
        raise click.UsageError("the query is empty; give a text to search for")
    chosen = Conditions(given["where"], "store") if given["where"] else None
    with opened_store(store, schema) as opened:
        if map_file is not None:
            served = opened.route().query
            if served is None:
                raise NotFoundError("store", NO_VECTORS, advice="run `weft migrate STORE --to MODEL`")
            vector = mapped_query(map_file, query, served, given)[0]
            hits = opened.search(vector, count, fingerprint=served, where=chosen)
        else:
            embedder = _served(opened, given)
            hits = _corpus(opened, embedder).search(query, count, where=chosen, truncate="chunk").hits
        if not hits:
            screen.note("no results: the store is empty" if chosen is None or not opened.count() else chosen.why_none())
    found = [
        {
            "id": hit.id,
            "score": hit.score,
            "text": hit.text,
            "metadata": dict(hit.fields),
            "chunk": None if hit.chunk is None else hit.chunk._asdict(),
        }
        for hit in hits
    ]
    print_hits(found, whole=whole, as_json=as_json)


@command.command("list")
@store_argument()
@options.where()
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Print at most N documents.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with whole texts.")
def list_(store: str, schema: str, where: list[Any], limit: int | None, as_json: bool) -> None:
    """List the documents of a store, ordered by id.

    \b
    Examples:
      weft store list notes.db
      weft store list notes.db --where lang=en --limit 20
      weft store list notes.db --json > notes.jsonl
    """
    from itertools import islice

    from weft.cli.commands.search import Conditions

    chosen = Conditions(where, "store") if where else None
    with opened_store(store, schema) as opened:
        found = islice(opened.documents(chosen), limit)
        if as_json:
            for one in found:
                click.echo(json.dumps({**one._asdict(), "fields": dict(one.fields)}, ensure_ascii=False))
            return
        rows = [_shown(one) for one in found]
        total = opened.count()
    screen.table(("id", "chunks", "characters", "fields", "text"), rows)
    if not rows and chosen is not None and total:
        screen.note(chosen.why_none())
    screen.note(f"{len(rows):,} of {screen.many(total, 'document')}")


@command.command()
@store_argument()
@click.argument("ids", nargs=-1, metavar="[ID…]")
@options.where()
def delete(store: str, schema: str, ids: tuple[str, ...], where: list[Any]) -> None:
    """Delete documents by id, or all that --where matches, with their chunks and vectors.

    If one of the ids does not exist, nothing is deleted.

    \b
    Examples:
      weft store delete notes.db note-17 note-18
      weft store delete notes.db --where source=old
    """
    from weft.cli.commands.search import Conditions

    if bool(ids) == bool(where):
        raise click.UsageError("give ids, or --where, to say what is deleted")
    with opened_store(store, schema) as opened:
        if where:
            chosen = Conditions(where, "store")
            ids = tuple(one.id for one in opened.documents(chosen))
            if not ids:
                screen.note(chosen.why_none() if opened.count() else "the store is empty")
        elif missing := [name for name in ids if opened.get(name) is None]:
            shown = ", ".join(repr(name[:80]) for name in missing[:3])
            what = f"{screen.many(len(missing), 'document')} of {len(ids)} {'do' if len(missing) > 1 else 'does'} not"
            advice = "see `weft store list`; nothing was deleted"
            raise NotFoundError("store", f"{what} exist: {shown}", advice=advice)
        gone = opened.delete(ids)
        screen.note(f"{screen.many(gone, 'document')} deleted; the store has {opened.count():,}")


def _chunking(given: dict[str, Any]) -> Chunking | None:
    from weft.embed.pipeline.folder import Chunking

    if given["chunk_tokens"] is None:
        if given["overlap"] is not None:
            raise click.UsageError("--overlap needs --chunk-tokens")
        return None
    return Chunking.of(given["chunk_tokens"], given["overlap"])


def _writing(store: Store, given: dict[str, Any]) -> Corpus:
    """The store with all models that it keeps vectors of; a new store adopts --model."""
    from weft.embed.migrate.naming import load_named, named_with, settled

    how = {"threads": given["threads"], "truncate": given["truncate"], "server": options.server_of(given)}
    known, route = store.generations(), store.route()
    if given["model"] is not None:
        if route.write:
            models = " and ".join(known[name].model or "an unnamed model" for name in route.write)
            advice = "leave --model out, or change the model with `weft migrate STORE --to MODEL`"
            raise click.UsageError(f"--model is for a new store, and this one has vectors of {models}; {advice}")
        named = named_with(given["model"], base_url=given["base_url"], truncate=given["truncate"] or "error")
        embedder = load_named(named, **how)
        store.adopt(str(embedder.info["fingerprint"]), embedder.dimension, settled(named, embedder))
        return _corpus(store, embedder)
    return _corpus(store, *(load_named(known[name].model, **how) for name in route.write))


def _served(store: Store, given: dict[str, Any]) -> BaseEmbedder:
    """The model that the store serves."""
    from weft.cli.commands.search import naming_the_model
    from weft.embed.migrate.naming import load_named, named_with, parts_of

    served = store.route().query
    if served is None:
        raise NotFoundError("store", NO_VECTORS, advice="run `weft migrate STORE --to MODEL`")
    model, settings = parts_of(store.generations()[served].model)
    named = named_with(given["model"] or model, **settings)
    offline = True if given["model"] is None else None  # the content of a store must not cause network access
    with naming_the_model(lambda: model, given):
        return load_named(named, threads=given["threads"], server=options.server_of(given), offline=offline)


def _corpus(store: Store, *embedders: BaseEmbedder) -> Corpus:
    from weft.embed.migrate import Corpus

    return Corpus(store, *embedders)


def _shown(one: Document) -> tuple[str, ...]:
    fields = json.dumps(dict(one.fields), ensure_ascii=False) if one.fields else ""
    text = screen.cut(screen.clean(one.text), SHOWN)
    return one.id, str(one.chunks or ""), f"{len(one.text):,}", screen.cut(screen.clean(fields), SHOWN_FIELDS), text
