"""weft search: the nearest texts of an index or of a store to a question."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    from weft import Index
    from weft.embed.migrate import Corpus
    from weft.embed.stores import Store

SHOWN = 160  # characters of a text
SHOWN_FIELDS = 10
RANGES = ("lt", "lte", "gt", "gte")
KINDS: dict[type, str] = {
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "nothing",
    list: "a list",
}
DIGITS = tuple("-0123456789")  # that a number begins with
Asked = list[tuple[str, dict[str, Any]]]  # fields, and a condition on each


@click.command()
@click.argument("place", metavar="INDEX|STORE")
@click.argument("query")
@click.option("-k", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@options.where()
@click.option("-m", "--model", help="Where the model is now (default: what the index or the store says).")
@click.option("--whole", is_flag=True, help="Print each text whole, not its beginning.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, best first.")
@options.remote("model, where the vectors are a server's")
@options.schema()
@options.threads()
def command(
    place: str,
    query: str,
    count: int,
    where: Asked,
    whole: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the texts of an index or a store nearest to a query.

    `weft index build` makes an index, `weft migrate` a store (a SQLite file, or postgresql://user@host/database). Both
    have the name of their model in them; its fingerprint, and of an index some known vectors, are compared before it is
    used, so that answers never come from another model's numbers.

    \b
    Examples:
      weft search notes.index "how do I renew the certificate?"
      weft search notes.index "trains to Berlin" -k 10 --json
      weft search articles.index "tax rules" --where lang=en --where 'year={"gte": 2000}'
      weft search notes.index "trains to Berlin" --model ./where-the-model-is-now
      weft search cloud.index "trains to Berlin" --base-url https://api.openai.com/v1
      weft search notes.db "trains to Berlin"
    """
    if not query.strip():
        raise click.UsageError("the query is empty; ask for something")
    hits = (_of_index if Path(place).is_dir() else _of_store)(place, query, count, where, given)
    if as_json:
        for hit in hits:
            click.echo(json.dumps(hit, ensure_ascii=False))
        return
    for hit in hits:
        text = screen.clean(hit["text"] or "")
        click.echo(f"{hit['score']:.3f}  {_place(hit)}\n       {text if whole else screen.cut(text, SHOWN)}")


def _of_index(place: str, query: str, count: int, where: Asked, given: dict[str, Any]) -> list[dict[str, Any]]:
    chosen = _Conditions(where) if where else None
    index = _opened(Path(place), given)
    hits = index.search_texts(query, count, where=chosen, truncate="error" if given["base_url"] else "chunk")
    if not hits:
        screen.note("the index is empty" if chosen is None or not len(index) else chosen.why_none())
    # The row's own fields apart: one of them may be called "score".
    return [{"id": hit.id, "score": hit.score, "text": hit.text, "metadata": hit.metadata} for hit in hits]


class _Conditions:
    """What `--where` asks for, as a function of a row's metadata that keeps in mind which fields there are.

    Text that is a number is one to a range of numbers: a CSV file has no others.
    """

    def __init__(self, asked: Asked) -> None:
        from weft.embed.index.filters import compile_where

        self._asked = asked
        self._tests = [(compile_where({name: condition}), _is_of_numbers(condition)) for name, condition in asked]
        self._fields: dict[str, None] = {}  # of all rows, in the order in which they came
        self._kinds: dict[str, set[str]] = {name: set() for name, _ in asked}  # of the values that these have

    def __call__(self, metadata: Mapping[str, Any]) -> bool:
        self._fields.update(dict.fromkeys(metadata))
        numbers = {name: _number(metadata[name]) for name in self._kinds if name in metadata}
        for name, value in numbers.items():
            self._kinds[name].update((_kind(metadata[name]), _kind(value)))
        return all(test(numbers if of_numbers else metadata) for test, of_numbers in self._tests)

    def why_none(self) -> str:
        """Why no row is so, where that can be seen."""
        for name, condition in self._asked:
            if name not in self._fields:
                there = ", ".join(map(repr, list(self._fields)[:SHOWN_FIELDS])) or "no fields"
                return f"no row is so: none has a field {name!r}; there are {there}"
            for bound in (condition[way] for way in RANGES if way in condition):
                if _kind(bound) not in self._kinds[name]:
                    kinds = " or ".join(sorted(self._kinds[name]))
                    return f"no row is so: {name!r} is {kinds} in this index, and {json.dumps(bound)} is {_kind(bound)}"
        return "no row is so"


def _is_of_numbers(condition: dict[str, Any]) -> bool:
    return any(_kind(condition.get(way)) == "a number" for way in RANGES)


def _number(value: Any) -> Any:
    """The number that a text is; anything else as it is."""
    if not isinstance(value, str) or value[:1] not in DIGITS:
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if _kind(found) == "a number" else value


def _kind(value: Any) -> str:
    return KINDS.get(type(value), "an object")


def _of_store(place: str, query: str, count: int, where: Asked, given: dict[str, Any]) -> list[dict[str, Any]]:
    from weft.embed.stores import open_store
    from weft.errors import NotFoundError, StoreError

    if where:
        raise click.UsageError("--where asks for fields of an index's rows; the documents of a store have none")
    if "://" not in place and not Path(place).exists():
        raise NotFoundError(
            f"[search] {place} is not there; `weft index build` makes an index, `weft migrate add` a store"
        )
    try:
        opened = open_store(place, schema=given["schema"])
    except StoreError as error:
        if "no SQLite" not in str(error) and "not a store" not in str(error):
            raise
        raise StoreError(f"{error}; `weft index build` makes an index of texts, `weft migrate add` a store") from None
    with opened as store:
        return [hit._asdict() for hit in _corpus(store, given).search(query, count, truncate="chunk").hits]


def _opened(index: Path, given: dict[str, Any]) -> Index:
    """The index with the model that it is for."""
    from weft.embed.index.files import HEADER
    from weft.embed.pipeline.indexing import open_searchable, remembered_model

    if not (index / HEADER).is_file():
        raise click.UsageError(f"{index} holds no index; make one with `weft index build {index}`")
    with _told(lambda: remembered_model(index)[0], given):
        return open_searchable(index, given["model"], threads=given["threads"], server=options.server_of(given))


def _corpus(store: Store, given: dict[str, Any]) -> Corpus:
    """The store with the model whose vectors it serves."""
    from weft.embed.migrate import Corpus
    from weft.embed.migrate.naming import load_named, named_with, parts_of
    from weft.errors import NotFoundError

    served = store.route().query
    if served is None:
        raise NotFoundError("[search] no document has a vector yet; `weft migrate STORE --to MODEL` embeds them")
    model, settings = parts_of(store.generations()[served].model)
    named = named_with(given["model"] or model, **settings)
    offline = True if given["model"] is None else None  # what a store says makes nobody connect anywhere
    with _told(lambda: model, given):
        return Corpus(
            store, load_named(named, threads=given["threads"], server=options.server_of(given), offline=offline)
        )


@contextmanager
def _told(name: Callable[[], str], given: dict[str, Any]) -> Iterator[None]:
    """Says which model is missing on this machine, and what to do."""
    from weft.errors import NotFoundError, OfflineError

    try:
        yield
    except (OfflineError, NotFoundError) as error:
        if given["model"] is not None or given["base_url"] is not None:
            raise
        model = name()
        if Path(model).is_absolute():
            raise NotFoundError(f"[search] {model} made these vectors, and is gone; --model says where it is") from None
        if isinstance(error, NotFoundError):
            raise
        raise NotFoundError(
            f"[search] {model} made these vectors, and is not on this machine; `weft pull {model}` fetches it, and "
            "--model says where else it is"
        ) from None


def _place(hit: dict[str, Any]) -> str:
    """Where a text is: its file and what part of it, or its id."""
    about = hit.get("metadata", {})
    if "path" not in about:
        return screen.clean(str(hit["id"]))
    return screen.clean(f"{about['path']} ({about.get('start', 0)} to {about.get('end', 0)})")
