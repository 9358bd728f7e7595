"""The migrator: takes documents that wait, embeds them, commits batch by batch, and cuts over."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count

from weft.embed.migrate.embedding import AnyEmbedder, Embedding, fingerprint_of, waited
from weft.embed.migrate.proof import Proof, check_measure
from weft.embed.stores import Migration, Reason, State, Store
from weft.embed.stores.ledger import LEASE_S, WINDOW_S
from weft.embed.stores.work import Done, Retry, Waiting, Work
from weft.errors import BusyError, FingerprintError, InputError, InvalidTransitionError, LeaseError, StoreError
from weft.frozen import frozen

BATCH = 100
CONCURRENCY = 4
ROLLBACK_TRIES = 3  # writers may add documents in the meantime
RECOUNT = 100  # batches between two counts of the remaining documents, which writers change too


@frozen
class Progress:
    """How far a run has come; `remaining` is counted every RECOUNT batches and estimated in between."""

    processed: int
    skipped: int
    remaining: int

    @property
    def counts(self) -> tuple[int, int]:
        """Documents done, and in all."""
        done = self.processed + self.skipped
        return done, done + self.remaining


class Migrator:
    """Re-embeds a store's documents with `embedder`, while the store is read and written.

    Memory holds one batch. A batch is committed together with the count of processed documents, so a process that is
    killed loses one batch, and resuming ends with the same table. `concurrency` is for embedders that take several
    calls at once (`concurrent`); a local model uses all threads for one call. If more than `allow_skips` documents
    cannot be embedded (by default 1 in 100 of all), the new vectors are not served: the migration fails, and can be
    resumed after a `retry`, or with a higher `allow_skips`.
    """

    def __init__(
        self,
        store: Store,
        embedder: AnyEmbedder,
        *,
        batch: int = BATCH,
        concurrency: int = CONCURRENCY,
        lease_s: float = LEASE_S,
        allow_skips: int | None = None,
    ) -> None:
        _check_whole("batch", batch, 1)
        _check_whole("concurrency", concurrency, 1)
        if allow_skips is not None:
            _check_whole("allow_skips", allow_skips, 0)
        if not isinstance(lease_s, (int, float)) or not lease_s > 0:
            raise InputError("migrate", "must be a positive number of seconds", field="lease_s", given=lease_s)
        self._store, self._embedder, self._allow_skips = store, embedder, allow_skips
        self._batch, self._concurrency, self._lease_s = batch, concurrency, lease_s
        self.fingerprint = fingerprint_of(embedder)
        self._proof = Proof(store)
        check_measure(embedder)
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stopping = False

    def plan(self, *, window_s: float = WINDOW_S, model: str | None = None) -> Migration:
        """Plan a migration to this embedder's fingerprint; `model` is its name for people."""
        model = str(self._embedder.info.get("model", "")) if model is None else model
        return self._store.migrations.plan(self.fingerprint, self._embedder.dimension, model, window_s=window_s)

    def run(self, progress: Callable[[Progress], None] | None = None, *, take_over: bool = False) -> Migration:
        """Start or resume the open migration (planning one if there is none) until it cuts over or is stopped.

        Ctrl-C commits the current batch and pauses; a second one drops the batch. A pause or cancel by another process
        ends the run as well; the result has the final state. An error of the embedder that is not about one document
        is recorded, leaves the migration failed, and is raised.
        """
        ledger = self._store.migrations
        found = ledger.open() or self.plan()
        self._check(found)
        if found.state is State.PLANNED:
            ledger.start(self.owner, self._lease_s)
        else:
            ledger.resume(self.owner, self._lease_s, take_over=take_over)
        try:
            self._prove()
            while self._embed_all(self._waiting(), progress):
                with suppress(
                    InvalidTransitionError
                ):  # stopped by another process: the next check of the lease ends the loop
                    done = ledger.complete(self.owner, allow_skips=self._allow_skips)
                    if done is not None:
                        return done
        except KeyboardInterrupt:
            self._stopping = True
        except (StoreError, BusyError):
            raise  # the failure cannot be recorded: the store is out of reach, or another process runs the migration
        except Exception as error:
            with suppress(InvalidTransitionError, LeaseError):  # paused or taken over: this process has lost the lease
                ledger.fail(self.owner, f"{type(error).__name__}: {error}")
            raise
        if self._stopping:
            with suppress(InvalidTransitionError, LeaseError):  # stopped or taken over at the same moment
                return ledger.pause(self.owner)
        return ledger.get(found.id)

    def rollback(self, progress: Callable[[Progress], None] | None = None, *, take_over: bool = False) -> Migration:
        """Serve the old vectors again. The embedder must be the old model's: documents that changed since the cut-over
        and have no vector of it are embedded first. Refused if more than `allow_skips` documents cannot be embedded, as
        at a cut-over; `retry` them with an embedder that truncates."""
        ledger = self._store.migrations
        found = ledger.lease(self.owner, self._lease_s, take_over=take_over)
        try:
            if found.source != self.fingerprint:
                raise FingerprintError(
                    "migrate",
                    f"a rollback needs the embedder of the old vectors, {found.source}",
                    given=self.fingerprint,
                )
            self._prove()
            for _ in range(ROLLBACK_TRIES):
                self._embed_all(self._waiting(), progress)
                if self._stopping:
                    raise KeyboardInterrupt
                with suppress(InvalidTransitionError):  # documents changed since they were counted
                    return ledger.rollback(allow_skips=self._allow_skips)
            return ledger.rollback(allow_skips=self._allow_skips)
        finally:
            ledger.release(self.owner)

    def retry(
        self, progress: Callable[[Progress], None] | None = None, *, ids: str | Iterable[str] | None = None
    ) -> Progress:
        """Embed skipped documents: `ids`, or all that were not skipped by hand. Those that fail again stay skipped.

        The embedder must have the fingerprint of the open migration, or the one that is served. Truncation is not part
        of a fingerprint, so an embedder that truncates long texts may replace the one that refuses them.
        """
        seen = Progress(0, 0, 0)

        def watch(now: Progress) -> None:
            nonlocal seen
            seen = now
            if progress is not None:
                progress(now)

        work = Retry(self._store, self.fingerprint, ids)
        self._prove()
        if not self._embed_all(work, watch):
            raise KeyboardInterrupt
        return seen

    def _waiting(self) -> Work:
        return Work(self._store, self.fingerprint, self.owner, self._lease_s)

    def _prove(self) -> None:
        self._proof.give(self._embedder, self.fingerprint)

    def _check(self, found: Migration) -> None:
        if found.state is State.COMPLETED:
            raise InvalidTransitionError(
                "migrate",
                f"the migration to {found.model or found.target} is completed, but not finished",
                advice="finish it or roll it back first",
            )
        if found.target != self.fingerprint:
            raise FingerprintError(
                "migrate",
                f"the open migration is to {found.target} ({found.model or 'unnamed'}), and the embedder has another "
                "fingerprint",
                given=self.fingerprint,
                advice="give that model, or cancel the migration",
            )
        here = self._embedder.dimension
        if found.dimension != here:
            raise FingerprintError(
                "migrate",
                f"the embedder has {here} dimensions, but the store has {found.dimension} for {self.fingerprint}: "
                "two models have the same fingerprint",
            )

    def _embed_all(self, work: Work, progress: Callable[[Progress], None] | None) -> bool:
        """Embed until `work` is done; False if it was stopped."""
        self._stopping = False
        embedding = Embedding(self._embedder, self._concurrency)
        seen = Progress(0, 0, work.count())
        try:
            for number in count(1):
                if progress is not None:
                    progress(seen)
                began = time.monotonic()
                batch = work.take(self._batch)
                if not batch or self._stopping:
                    return batch is not None and not self._stopping
                kept = work.commit(self._embedded(work, embedding, batch), time.monotonic() - began)
                if kept is None:
                    return False
                left = work.count() if number % RECOUNT == 0 else max(0, seen.remaining - sum(kept))
                seen = Progress(seen.processed + kept[0], seen.skipped + kept[1], left)
        finally:
            embedding.close()
        raise AssertionError("count() has no end")

    def _embedded(self, work: Work, embedding: Embedding, batch: list[Waiting]) -> list[Done]:
        """The results of a batch. The lease is renewed while it runs; the first Ctrl-C still waits for the batch."""
        under_way = embedding.start(batch)
        try:
            made = waited(under_way, self._lease_s / 3, work.renew)
        except KeyboardInterrupt:
            self._stopping = True
            made = waited(under_way, self._lease_s / 3, work.renew)
        if not work.tried and len(made) > 1 and all(done.reason is Reason.PERMANENT_API_ERROR for done in made):
            # a wrong setting, most likely: do not go on and skip every document of the store
            raise InputError(
                "migrate",
                f"the embedder refused all {len(made)} documents of a batch; the first error: {made[0].detail}",
            )
        return made


def _check_whole(name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise InputError("migrate", f"must be a whole number of at least {least}", field=name, given=value)
