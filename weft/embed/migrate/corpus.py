"""A corpus: a store together with the embedders of an application, which follow the store's route by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from weft.embed.migrate.embedding import AnyEmbedder, fingerprint_of
from weft.embed.stores import Hit, Route, Store
from weft.errors import FingerprintError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
TRIES = 5  # of a call that meets a cut-over


class Answer(NamedTuple):
    """What was found, and whose vectors found it: one fingerprint, whatever is under way."""

    fingerprint: str
    hits: list[Hit]


class Corpus:
    """Documents that are written and asked by text.

    Before a migration it has one embedder; while one is under way it should have both models' (`Corpus(store, old,
    new)`), so that it goes on over the cut-over, and back. With the old one alone, documents that are written wait for
    the migrator, and after the cut-over the corpus refuses to go on.
    """

    def __init__(self, store: Store, *embedders: AnyEmbedder) -> None:
        self.store = store
        self._embedders = {fingerprint_of(embedder): embedder for embedder in embedders}

    def put(self, documents: Mapping[str, str]) -> None:
        """Add or replace documents: id to text. When it returns they are committed, with the vectors searches use."""
        made: dict[str, np.ndarray] = {}

        def attempt(route: Route) -> None:
            if documents:
                known = [name for name in route.write if name in self._embedders]
                for name in known:
                    if name not in made:
                        made[name] = self._embedders[name].encode_document(list(documents.values()))
                self.store.put(documents, {name: made[name] for name in known})

        self._following(attempt)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents; the number of those that were there."""
        return self.store.delete(ids)

    def search(self, text: str, k: int = 10) -> Answer:
        """The `k` documents nearest to a text, by the vectors that are served."""

        def attempt(route: Route) -> Answer:
            name = route.query or ""
            embedder = self._embedders.get(name)
            if embedder is None:
                raise FingerprintError(f"[corpus] {name or 'nothing'} is served; there is no embedder for it here")
            encode = getattr(embedder, "encode_query", embedder.encode_document)
            return Answer(name, self.store.search(encode([text])[0], k, fingerprint=name))

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
