"""A corpus: a store together with an application's embedders. Its writes and searches follow the store's route."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weft.embed.migrate.chunks import in_chunks
from weft.embed.migrate.embedding import AnyEmbedder, fingerprint_of, skip_reason
from weft.embed.migrate.proof import Proof, check_measure
from weft.embed.stores import Content, Hit, Route, Store
from weft.embed.stores.values import check_vectors, contents_of
from weft.errors import FingerprintError, InputError, TooLongError

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.index.filters import Where
    from weft.embed.pipeline.folder import Chunking

T = TypeVar("T")
TRIES = 5  # of a call during which the route changes
TOGETHER = 100  # documents in one part


class Answer(NamedTuple):
    """The hits of a search, and the one fingerprint whose vectors it used."""

    fingerprint: str
    hits: list[Hit]


class Corpus:
    """Documents that are written and searched as text.

    Outside a migration a corpus needs one embedder. During one it should have both (`Corpus(store, old, new)`), so that
    it works before and after the cut-over, and after a rollback. With the old one alone, written documents wait for the
    migrator, and after the cut-over every call is refused. A model is refused if its own similarity orders documents
    differently than cosine, or if its server no longer makes the same vectors.
    """

    def __init__(self, store: Store, *embedders: AnyEmbedder) -> None:
        self.store = store
        self._embedders = {fingerprint_of(embedder): embedder for embedder in embedders}
        self._proof = Proof(store)
        for embedder in embedders:
            check_measure(embedder)

    def put(self, documents: Mapping[str, str | Content], *, chunking: Chunking | None = None) -> None:
        """Add or replace documents: id to text, or to Content with fields. On return they are committed, with the
        vectors that searches use.

        With `chunking`, documents that are longer are stored in chunks, cut by the tokenizer of the model that is
        served. If only the other model of a migration cannot embed them, they are accepted and wait for the migrator,
        which skips those that it cannot embed either, with a reason.
        """
        contents = contents_of(documents)
        if chunking is not None:
            contents = in_chunks(contents, self._cutting_embedder(), chunking)
        made: dict[str, np.ndarray] = {}

        def attempt(route: Route) -> None:
            for name in route.write if contents else ():
                if name in self._embedders and name not in made:
                    self._proof.give(self._embedders[name], name)
                    vectors = self._embedded(contents, name, name == route.query)
                    if vectors is not None:
                        made[name] = vectors
            if contents:
                self.store.put(contents, {name: made[name] for name in route.write if name in made})

        self._following(attempt)

    def _cutting_embedder(self) -> AnyEmbedder:
        """The embedder whose tokenizer cuts documents: that of the served model, else the first."""
        found = self._embedders.get(self.store.route().query or "") or next(iter(self._embedders.values()), None)
        if found is None:
            raise InputError(
                "corpus",
                "documents cannot be cut into chunks yet, since the store has no model",
                advice="give a model (--model), or first run `weft migrate STORE --to MODEL`",
            )
        return found

    def _embedded(self, documents: Mapping[str, Content], name: str, asked: bool) -> np.ndarray | None:
        """The vectors of one model; None if it cannot embed all documents and is not the one that searches use."""
        embedder = self._embedders[name]
        texts = [content.text for content in documents.values()]
        try:
            return check_vectors(embedder.encode_document(texts), len(documents), embedder.dimension)
        except Exception as error:
            if not asked and skip_reason(error) is not None:
                return None
            if isinstance(error, TooLongError) and error.field == "text" and 0 <= error.index < len(documents):
                name = list(documents)[error.index]
                raise error.but(where="corpus", field="document", what=f"({name[:80]!r}) {error.what}") from error
            raise

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete documents and return how many existed. A string is one id."""
        return self.store.delete(ids)

    def search(self, text: str, k: int = 10, *, where: Where | None = None, truncate: str | None = None) -> Answer:
        """The `k` documents, or chunks, nearest to a text, by the vectors that are served.

        `where` chooses documents by their fields, as in `Store.search`; `truncate` is for a text that is too long, if
        the embedder can truncate.
        """

        def attempt(route: Route) -> Answer:
            name = route.query or ""
            embedder = self._embedders.get(name)
            if embedder is None:
                raise FingerprintError(
                    "corpus",
                    f"the store serves {name or 'no vectors yet'}, and this corpus has no embedder for it",
                    advice="give that embedder to Corpus(store, …)",
                )
            self._proof.give(embedder, name, keep=False)  # a reader may have no permission to write
            encode = getattr(embedder, "encode_query", embedder.encode_document)
            how = {"truncate": truncate} if truncate is not None and getattr(embedder, "cuts", False) else {}
            return Answer(name, self.store.search(encode([text], **how)[0], k, fingerprint=name, where=where))

        return self._following(attempt)

    def _following(self, attempt: Callable[[Route], T]) -> T:
        """Call `attempt` with the route, and again if the route has changed in the meantime."""
        route = self.store.route()
        for _ in range(TRIES):
            try:
                return attempt(route)
            except FingerprintError:
                before, route = route, self.store.route()
                if route == before:
                    raise
        return attempt(route)


def in_parts(rows: Iterable[Mapping[str, Any]], id_field: str, field: str) -> Iterator[dict[str, Content]]:
    """Rows as documents, TOGETHER at a time; what is neither the id nor the text is a field. A repeated id is refused:
    one of its texts would be lost."""
    seen: set[str] = set()
    part: dict[str, Content] = {}
    for number, row in enumerate(rows, 1):
        name = row.get(id_field)
        if not isinstance(name, (str, int)) or isinstance(name, bool):
            raise InputError(
                "corpus",
                f"has no id: its field {id_field!r} must be a string or a whole number",
                field="row",
                index=number,
                advice="name the field with --id-field",
            )
        name = str(name)
        if name in seen:
            raise InputError(
                "corpus",
                f"repeats the id {name[:80]!r} of an earlier row",
                field="row",
                index=number,
                advice="give every row its own id",
            )
        seen.add(name)
        part[name] = Content(row[field], {key: row[key] for key in row if key not in (id_field, field)})
        if len(part) == TOGETHER:
            yield part
            part = {}
    if part:
        yield part
