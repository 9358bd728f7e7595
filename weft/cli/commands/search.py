"""weft search: the texts of an index that are nearest to a query."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen
from weft.errors import InputError, NotFoundError, OfflineError

if TYPE_CHECKING:
    import numpy as np

    from weft import BaseEmbedder, Index
    from weft.embed.index import Hit

SHOWN = 240  # characters of a text
MATCHED = 20  # hits whose nearest sentence is looked for, which embeds all their sentences
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
DIGITS = tuple("-0123456789")  # what a number begins with
Asked = list[tuple[str, dict[str, Any]]]  # fields, each with a condition
MAKE_ONE = "build an index with `weft index build`"


def map_option() -> Callable[[options.F], options.F]:
    text = "Search with a query of --model, another model, through this map of `weft drift align`."
    return click.option("--map", "map_file", metavar="FILE", help=text)


@click.command()
@click.argument("place", metavar="INDEX")
@click.argument("query", required=False, default="")
@click.option(
    "--image",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Search with a picture instead of a query, in an index of a model that sees.",
)
@click.option(
    "-k", "count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many texts to print."
)
@options.where()
@click.option("-m", "--model", help="Name or path of the model (default: the one that the index names).")
@click.option("--whole", is_flag=True, help="Print whole texts instead of the sentence that matches best.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, best first.")
@map_option()
@options.remote("model, if a server made the vectors")
@options.threads()
@options.device()
def command(
    place: str,
    query: str,
    image: Path | None,
    count: int,
    where: Asked,
    whole: bool,
    as_json: bool,
    map_file: str | None,
    **given: Any,
) -> None:
    """Find the texts of an index nearest to a query.

    Prints the score, the file and line, and the sentence of the text that is nearest to the query (of the first 20
    results; of later ones the beginning). `--json` has it as "match", with its place in the text.

    `weft index build` makes an index, which contains the name of its model. The model's fingerprint and the vectors of
    canary texts are checked before every search, so that results never come from another model's vectors. A store is
    searched with `weft store search`. With --map, an index of the old model is searched with a query of the new one
    before it is built again.

    \b
    Examples:
      weft search notes.index "how do I renew the certificate?"
      weft search notes.index "trains to Berlin" -k 10 --json
      weft search articles.index "tax rules" --where lang=en --where 'year={"gte": 2000}'
      weft search notes.index "trains to Berlin" --model ./where-the-model-is-now
      weft search old.index "trains to Berlin" --model new-model --map old-to-new.npz
      weft search cloud.index "trains to Berlin" --base-url https://api.openai.com/v1
      weft search photos.index "a red bicycle"
      weft search photos.index --image bicycle.jpg
    """
    from weft.embed.stores.values import without_password

    _check_query(query, image, map_file)
    if "://" in place or Path(place).is_file():
        what = f"{without_password(place)} is not an index, which is a folder"
        advice = f"if it is a store, run: weft store search {shlex.quote(without_password(place))} …"
        raise InputError("search", what, advice=advice)
    if not Path(place).exists():
        raise NotFoundError("search", f"{place} does not exist", advice=MAKE_ONE)
    chosen = Conditions(where) if where else None
    if map_file is not None:
        index = _unmodelled(Path(place), given)
        vector, embedder = mapped_query(map_file, query, index.fingerprint, given)
        hits = index.search(vector, count, where=chosen)
    else:
        index = _opened(Path(place), given)
        assert index.embedder is not None
        embedder = index.embedder
        hits = _hits(index, image or query, count, chosen, "error" if given["base_url"] else "chunk")
    if not hits:
        screen.note("no results: the index is empty" if chosen is None or not len(index) else chosen.why_none())
    # The row's own fields are nested: one of them may be named "score".
    found = [{"id": hit.id, "score": hit.score, "text": hit.text, "metadata": hit.metadata} for hit in hits]
    if (as_json or not whole) and image is None and not any(hit["metadata"].get("picture") for hit in found):
        _find_matches(found, query, embedder)
    print_hits(found, whole=whole, as_json=as_json)


def _hits(index: Index, query: Any, count: int, where: Conditions | None, truncate: str) -> list[Hit]:
    """The nearest rows to a text, or to the picture at a Path."""
    if isinstance(query, str):
        return index.search_texts(query, count, where=where, truncate=truncate)
    assert index.embedder is not None
    return index.search(index.embedder.encode(query), count, where=where)


def _check_query(query: str, image: Path | None, map_file: str | None) -> None:
    if image is not None and (query or map_file is not None):
        raise click.UsageError("give either a query or --image, and no --map with it")
    if image is None and not query.strip():
        raise click.UsageError("the query is empty; give a text to search for")


def mapped_query(file: str, query: str, vectors_of: str, given: dict[str, Any]) -> tuple[np.ndarray, BaseEmbedder]:
    """The query as a vector [d] to search those of the fingerprint `vectors_of` with, and the model it came from."""
    from weft.embed.migrate.naming import load_named, named_with
    from weft.transport.drift import Alignment

    if given["model"] is None:
        raise click.UsageError("--map needs --model: the new model, which the query is embedded with")
    found = Alignment.load(file)
    named = named_with(given["model"], base_url=given["base_url"])
    embedder = load_named(named, threads=given["threads"], server=options.server_of(given))
    found.check_models(vectors_of, str(embedder.info["fingerprint"]))
    how = {"truncate": "chunk"} if getattr(embedder, "cuts", False) else {}
    encode = getattr(embedder, "encode_query", embedder.encode)
    if found.held_out:
        screen.note(f"searching through a map; its recall@{found.k} on items held out was {found.query_recall:.2f}")
    return found.queries(encode([query], **how)[0]), embedder


def _find_matches(hits: list[dict[str, Any]], query: str, embedder: BaseEmbedder) -> None:
    """Add "match" to the hits: their sentence nearest to the query, or None where it is not looked for."""
    from weft.embed.index.sentences import nearest_sentences

    nearest = nearest_sentences(embedder, query, [hit["text"] for hit in hits[:MATCHED]])
    for hit, sentence in zip_longest(hits, nearest):
        line = hit["metadata"].get("line")
        hit["match"] = sentence and {
            "text": sentence.text,
            "start": sentence.start,
            "end": sentence.end,
            "line": line + sentence.lines_before if isinstance(line, int) else None,
        }


def print_hits(hits: list[dict[str, Any]], *, whole: bool, as_json: bool) -> None:
    """Print what a search has found: `id`, `score`, `text`, `metadata`, of a store `chunk`, of an index `match`."""
    for hit in hits:
        if as_json:
            click.echo(json.dumps(hit, ensure_ascii=False))
            continue
        if hit["metadata"].get("picture") is True and not hit["text"]:
            click.echo(f"{hit['score']:.3f}  {_place(hit, whole)}")
            continue
        match = hit.get("match")
        text = screen.clean((match["text"] if match and not whole else hit["text"]) or "")
        click.echo(f"{hit['score']:.3f}  {_place(hit, whole)}\n       {text if whole else screen.cut(text, SHOWN)}")


class Conditions:
    """The conditions of `--where`, as a function of a row's metadata that remembers which fields it has seen.

    For a range of numbers, text that is a number counts as one: all values of a CSV file are text.
    """

    def __init__(self, asked: Asked, place: str = "index") -> None:
        from weft.embed.index.filters import compile_where

        self._asked, self._place = asked, place
        self._tests = [(compile_where({name: condition}), _is_of_numbers(condition)) for name, condition in asked]
        self._fields: dict[str, None] = {}  # of all rows, in the order of their appearance
        self._kinds: dict[str, set[str]] = {name: set() for name, _ in asked}  # the types of their values

    def __call__(self, metadata: Mapping[str, Any]) -> bool:
        self._fields.update(dict.fromkeys(metadata))
        numbers = {name: _number(metadata[name]) for name in self._kinds if name in metadata}
        for name, value in numbers.items():
            self._kinds[name].update((_kind(metadata[name]), _kind(value)))
        return all(test(numbers if of_numbers else metadata) for test, of_numbers in self._tests)

    def why_none(self) -> str:
        """Why no row matches, as far as that can be seen."""
        for name, condition in self._asked:
            if name not in self._fields:
                fields = ", ".join(map(repr, list(self._fields)[:SHOWN_FIELDS])) or "none"
                return f"no results: no row has a field {name!r}; the fields are {fields}"
            for bound in (condition[way] for way in RANGES if way in condition):
                if _kind(bound) not in self._kinds[name]:
                    here = f"{' or '.join(sorted(self._kinds[name]))} in this {self._place}"
                    return f"no results: {name!r} is {here}, but {json.dumps(bound)} is {_kind(bound)}"
        return "no results: no row matches --where"


def _is_of_numbers(condition: dict[str, Any]) -> bool:
    return any(_kind(condition.get(way)) == "a number" for way in RANGES)


def _number(value: Any) -> Any:
    """The number that a text contains; other values unchanged."""
    if not isinstance(value, str) or value[:1] not in DIGITS:
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if _kind(found) == "a number" else value


def _kind(value: Any) -> str:
    return KINDS.get(type(value), "an object")


def _check_index(index: Path) -> None:
    from weft.embed.index.files import HEADER

    if not (index / HEADER).is_file():
        raise click.UsageError(f"{index} is a folder, but not an index; build one with `weft index build {index}`")


def _unmodelled(index: Path, given: dict[str, Any]) -> Index:
    """The index without its model, which a search through a map does not need."""
    from weft.embed.index import Index

    _check_index(index)
    return Index.open(index, mapped=True, threads=given["threads"])


def _opened(index: Path, given: dict[str, Any]) -> Index:
    """The index with its model."""
    from weft.embed.pipeline.indexing import open_searchable, remembered_model

    _check_index(index)
    with naming_the_model(lambda: remembered_model(index)[0], given):
        return open_searchable(index, given["model"], threads=given["threads"], server=options.server_of(given))


@contextmanager
def naming_the_model(name: Callable[[], str], given: dict[str, Any]) -> Iterator[None]:
    """If the model is not on this machine, raise an error that names it and says what to do."""
    try:
        yield
    except (OfflineError, NotFoundError) as error:
        if given["model"] is not None or given["base_url"] is not None:
            raise
        model = name()
        if Path(model).is_absolute():
            what = f"the model of these vectors, {model}, does not exist any more"
            raise NotFoundError("search", what, advice="give its new path with --model") from None
        if isinstance(error, NotFoundError):
            raise
        raise NotFoundError(
            "search",
            f"the model of these vectors, {model}, is not on this machine",
            advice=f"run `weft pull {model}`, or give its path with --model",
        ) from None


def _place(hit: dict[str, Any], whole: bool) -> str:
    """Where a text is from: its file and line, its document and place in it, or its id."""
    about, chunk = hit["metadata"], hit.get("chunk")
    if chunk is not None:
        return screen.clean(f"{chunk['document']} ({chunk['start']} to {chunk['end']})")
    if "path" not in about:
        return screen.clean(str(hit["id"]))
    match = None if whole else hit.get("match")
    line = about.get("line") if match is None else match["line"]
    if line is None and about.get("picture") is True:
        return screen.clean(str(about["path"]))
    if line is None:  # an index of an earlier weft
        return screen.clean(f"{about['path']} ({about.get('start', 0)} to {about.get('end', 0)})")
    return screen.clean(f"{about['path']}:{line}")
