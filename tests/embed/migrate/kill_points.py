"""A migration's whole life, killed before each of its SQL statements in turn, and gone on with.

python tests/embed/migrate/kill_points.py       every statement, on both stores; test_crashes.py tries some
"""

import itertools
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import migrate_soak as soak
from fake_embedder import FakeEmbedder

from weft.embed.migrate import Corpus, Migrator
from weft.embed.stores import Document, State, Store
from weft.embed.stores.dialect import Session

OLD, NEW = FakeEmbedder("old"), FakeEmbedder("new", 16)
DOCUMENTS = 25
ROLLBACK, FINISH = "rollback", "finish"


def live(address: dict[str, Any], end: str) -> None:
    """A migration from its plan to its end, with a change in the rollback window."""
    with soak.opened(address) as store:
        Migrator(store, NEW, batch=10).run()
        Corpus(store, NEW).put({"d00003": "changed"})
        if end == ROLLBACK:
            Migrator(store, OLD).rollback()
        else:
            store.migrations.finish(now=True)


def dies_before(statement: int, work: Callable[[], None]) -> bool:
    """Do `work` in a process that kills itself before its n-th SQL statement; whether it came so far."""

    def dying() -> None:
        calls = itertools.count(1)

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                if next(calls) == statement:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args)

            return run

        plain = Session.__init__
        Session.__init__ = lambda self, run, each: plain(self, counted(run), counted(each))  # type: ignore[method-assign]
        work()

    _, status = os.waitpid(soak.child(dying), 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def go_on(store: Store, end: str) -> None:
    """Go on with whatever life was left at."""
    found = store.migrations.open()
    if found is None and not store.migrations.history():
        found = Migrator(store, NEW, batch=10).plan()
    if found is not None and found.state is not State.COMPLETED:
        found = Migrator(store, NEW, batch=10).run(take_over=True)
    document = store.get("d00003")
    if document is None or document.text != "changed":
        Corpus(store, NEW).put({"d00003": "changed"})
    if found is not None and end == ROLLBACK:
        Migrator(store, OLD).rollback(take_over=True)
    elif found is not None:
        store.migrations.finish(now=True)


def check(store: Store, end: str) -> None:
    """The store as an undisturbed life leaves it."""
    served = OLD if end == ROLLBACK else NEW
    soak.check_vectors(store)
    assert store.route().query == served.fingerprint
    assert list(store.generations()) == [served.fingerprint]
    assert store.get("d00003") == Document("d00003", "changed", 2)
    assert store.count() == DOCUMENTS


def run(trials: soak.Trials, end: str, step: int = 1) -> int:
    """Kill before every `step`-th statement; the number of the last one."""
    soak.prepare(trials, DOCUMENTS)
    for statement in itertools.count(1, step):
        address = trials.copy(statement)
        died = dies_before(statement, lambda address=address: live(address, end))  # type: ignore[misc]
        with soak.opened(address) as store:
            soak.check_vectors(store)
            if store.migrations.open() is not None:
                soak.check_route(store)
            go_on(store, end)
            check(store, end)
        trials.drop(address)
        if not died:
            break
    return statement


def main() -> None:
    from postgres_server import MISSING, start_server

    server = start_server()
    assert server is not None, MISSING
    try:
        for end in (ROLLBACK, FINISH):
            with tempfile.TemporaryDirectory() as folder:
                print("sqlite", end, run(soak.SqliteTrials(Path(folder)), end), flush=True)
            print("postgres", end, run(soak.PostgresTrials(server.url), end), flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
