"""A corpus: a store together with the embedders of an application, which follow the store's route by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weft.embed.migrate.embedding import AnyEmbedder, fingerprint_of, skip_reason
from weft.embed.migrate.proof import Proof, check_measure
from weft.embed.stores import Hit, Route, Store
from weft.embed.stores.values import check_documents, check_vectors
from weft.errors import FingerprintError, InputError, TooLongError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
TRIES = 5  # of a call that meets a cut-over
TOGETHER = 100  # documents of a part


class Answer(NamedTuple):
    """What was found, and whose vectors found it: one fingerprint, whatever is under way."""

    fingerprint: str
    hits: list[Hit]


class Corpus:
    """Documents that are written and asked by text.

    Before a migration it has one embedder; while one is under way it should have both models' (`Corpus(store, old,
    new)`), so that it goes on over the cut-over, and back. With the old one alone, documents that are written wait for
    the migrator, and after the cut-over the corpus refuses to go on. A model whose own measure gives another order
    than cosine is refused, and so is one behind a server that is not the one of then.
    """

    def __init__(self, store: Store, *embedders: AnyEmbedder) -> None:
        self.store = store
        self._embedders = {fingerprint_of(embedder): embedder for embedder in embedders}
        self._proof = Proof(store)
        for embedder in embedders:
            check_measure(embedder)

    def put(self, documents: Mapping[str, str]) -> None:
        """Add or replace documents: id to text. When it returns they are committed, with the vectors searches use.

        What only the other model of a migration cannot embed is not refused: the documents of this call wait for the
        migrator then, which skips with a reason those that have one.
        """
        check_documents(documents)
        made: dict[str, np.ndarray] = {}

        def attempt(route: Route) -> None:
            for name in route.write if documents else ():
                if name in self._embedders and name not in made:
                    self._proof.give(self._embedders[name], name)
                    vectors = self._embedded(documents, name, name == route.query)
                    if vectors is not None:
                        made[name] = vectors
            if documents:
                self.store.put(documents, {name: made[name] for name in route.write if name in made})

        self._following(attempt)

    def _embedded(self, documents: Mapping[str, str], name: str, asked: bool) -> np.ndarray | None:
        """The vectors of one model; None where it cannot embed them all and is not the one that is `asked`."""
        embedder = self._embedders[name]
        try:
            return check_vectors(embedder.encode_document(list(documents.values())), len(documents), embedder.dimension)
        except Exception as error:
            if not asked and skip_reason(error) is not None:
                return None
            if isinstance(error, TooLongError) and 0 <= error.index < len(documents):
                culprit = list(documents)[error.index]
                facts = {"length": error.length, "limit": error.limit, "index": error.index}
                raise TooLongError(f"[corpus] the document {culprit[:80]!r}: {error}", **facts) from error
            raise

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete documents; the number of those that were there. A string is one id."""
        return self.store.delete(ids)

    def search(self, text: str, k: int = 10, *, truncate: str | None = None) -> Answer:
        """The `k` documents nearest to a text, by the vectors that are served.

        `truncate` says what becomes of a text that is too long, where the embedder that is asked can cut at all.
        """

        def attempt(route: Route) -> Answer:
            name = route.query or ""
            embedder = self._embedders.get(name)
            if embedder is None:
                raise FingerprintError(f"[corpus] {name or 'nothing'} is served; there is no embedder for it here")
            self._proof.give(embedder, name, keep=False)  # who asks need not be allowed to write
            encode = getattr(embedder, "encode_query", embedder.encode_document)
            how = {"truncate": truncate} if truncate is not None and getattr(embedder, "cuts", False) else {}
            return Answer(name, self.store.search(encode([text], **how)[0], k, fingerprint=name))

        return self._following(attempt)

    def _following(self, attempt: Callable[[Route], T]) -> T:
        """Call `attempt` with the route, again where the route has changed under it."""
        route = self.store.route()
        for _ in range(TRIES):
            try:
                return attempt(route)
            except FingerprintError:
                before, route = route, self.store.route()
                if route == before:
                    raise
        return attempt(route)


def in_parts(rows: Iterable[Mapping[str, Any]], id_field: str, field: str) -> Iterator[dict[str, str]]:
    """Objects as documents, TOGETHER at a time; an id that comes twice is refused: one of its texts would be lost."""
    seen: set[str] = set()
    part: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        name = row.get(id_field)
        if not isinstance(name, (str, int)) or isinstance(name, bool):
            raise InputError(f"[corpus] object {number} has no id in the field {id_field!r}; name another field")
        name = str(name)
        if name in seen:
            raise InputError(f"[corpus] object {number} has the id {name[:80]!r}, as one before it; give each its own")
        seen.add(name)
        part[name] = row[field]
        if len(part) == TOGETHER:
            yield part
            part = {}
    if part:
        yield part
