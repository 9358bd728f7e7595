"""Migrations of 10,000 documents that are killed with SIGKILL at random places, and resumed.

    python tests/embed/migrate/migrate_soak.py --count 300
    python tests/embed/migrate/migrate_soak.py --count 60 --store postgres

A third of the trials have nobody else in the store, a third a process that writes meanwhile, a third one that is killed
too. Each trial checks the store as the kill left it: every vector is its model's, of its document's current text; one
fingerprint is served; what was acknowledged is there. Then it resumes, and checks that one batch at most was embedded
twice, and that the final table is that of an undisturbed run, byte for byte. One JSON line says what was seen; a broken
promise is an exception. test_crashes.py runs a few.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
for folder in ("tests/embed/migrate", ""):
    sys.path.insert(0, str(ROOT / folder))

from fake_embedder import FakeEmbedder, vector_of  # noqa: E402

from weft.embed.migrate import Corpus, Migrator  # noqa: E402
from weft.embed.stores import Phase, State, Store, open_store  # noqa: E402
from weft.errors import FingerprintError  # noqa: E402

BATCH = 100
ALONE, WRITER, BOTH_KILLED = "alone", "writer", "both killed"
KINDS = (ALONE, WRITER, BOTH_KILLED)
WRITES = 60  # of the process that writes


class SqliteTrials:
    """Copies of a SQLite file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def base(self) -> dict[str, Any]:
        return {"where": self._folder / "base.db"}

    def copy(self, number: int) -> dict[str, Any]:
        path = self._folder / f"trial{number}.db"
        shutil.copyfile(self._folder / "base.db", path)
        return {"where": path}

    def drop(self, address: dict[str, Any]) -> None:
        for path in self._folder.glob(f"{address['where'].name}*"):
            path.unlink()


class PostgresTrials:
    """Copies of a database of a server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._run("DROP DATABASE IF EXISTS base")
        self._run("CREATE DATABASE base")

    def _run(self, sql: str) -> None:
        import psycopg

        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(sql)

    def base(self) -> dict[str, Any]:
        return {"where": self._url.replace("/postgres?", "/base?")}

    def copy(self, number: int) -> dict[str, Any]:
        self._run(f"DROP DATABASE IF EXISTS trial{number} WITH (FORCE)")
        self._run(f"CREATE DATABASE trial{number} TEMPLATE base STRATEGY file_copy")
        return {"where": self._url.replace("/postgres?", f"/trial{number}?"), "number": number}

    def drop(self, address: dict[str, Any]) -> None:
        self._run(f"DROP DATABASE trial{address['number']} WITH (FORCE)")


Trials = SqliteTrials | PostgresTrials


def opened(address: dict[str, Any], **options: Any) -> Store:
    return open_store(address["where"], **options)


def child(work: Callable[[], None]) -> int:
    """A process of its own that does `work`; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        print(f"child: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def kill_at(pid: int, log: Path, lines: int, pause_s: float) -> bool:
    """Kill a migrator `pause_s` seconds after its log has so many lines; whether it was still running."""
    while not ended(pid) and (not log.exists() or log.read_bytes().count(b"\n") < lines):
        time.sleep(0.001)
    time.sleep(pause_s)
    return kill(pid)


def ended(pid: int) -> bool:
    """Whether a child has ended, and waits to be asked how."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill(pid: int) -> bool:
    """Kill a process; whether it was still running."""
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def writes(documents: int) -> list[tuple[str, str | None]]:
    """What the other process does, in order: texts of documents that are old or new, and deletions (None)."""
    rng = random.Random(5)
    made: list[tuple[str, str | None]] = []
    for at in range(WRITES):
        name = f"d{rng.randrange(documents * 11 // 10):05}"
        made.append((name, None if rng.random() < 0.3 else f"written {at}"))
    return made


def write(address: dict[str, Any], documents: int, log: Path, both: bool) -> None:
    """Do the writes, each acknowledged in the log after it returned; as an application with the old model, or both."""
    with opened(address) as store, log.open("ab", buffering=0) as out:
        corpus = Corpus(store, FakeEmbedder("old"), *([FakeEmbedder("new", 16)] if both else []))
        for at, (name, text) in enumerate(writes(documents)):
            try:
                corpus.delete([name]) if text is None else corpus.put({name: text})
            except FingerprintError:  # the migration is over, and this application has not heard of it
                assert not both and store.route().query == "fake:new"
                return
            out.write(f"{at}\n".encode())
            time.sleep(0.005)


def migrate(address: dict[str, Any], log: Path) -> None:
    with opened(address) as store:
        Migrator(store, FakeEmbedder("new", 16, log=log), batch=BATCH, lease_s=5).run()


def texts_of(store: Store) -> dict[str, tuple[str, int]]:
    """Every live document: text and revision."""
    with store.transaction("read") as session:
        rows = session.rows("SELECT id, text, revision FROM documents WHERE deleted = 0")
    return {name: (text, revision) for name, text, revision in rows}


def check_vectors(store: Store) -> str:
    """Every vector is of its own model and of the current text, and every document has one or waits for it.

    Returns a digest of the table that is the migration's target, or of the only one.
    """
    texts, digest = texts_of(store), hashlib.sha256()
    with store.transaction("read") as session:
        waiting = {(number, name) for number, name in session.rows("SELECT generation, id FROM todo")}
    for generation in store.generations().values():
        seen = set()
        model = generation.fingerprint.removeprefix("fake:")
        for name, revision, vector in store.vectors(generation.fingerprint):
            text, current = texts[name]
            assert revision == current, (name, revision, current)
            assert vector.tobytes() == vector_of(model, text, generation.dimension).tobytes(), name
            seen.add(name)
            if model == "new":
                digest.update(f"{name}\n{revision}\n".encode() + vector.tobytes())
        left = {name for number, name in waiting if number == generation.number}
        assert seen | left == texts.keys() and not seen & left
    return digest.hexdigest()


def check_route(store: Store) -> None:
    """What is served is what the state says, and searches go there."""
    found, now = store.migrations.open(), store.route()
    if found is None or found.state is State.PLANNED:
        assert (now.phase, now.query) == (Phase.STABLE, "fake:old")
    elif found.state is State.COMPLETED:
        assert (now.phase, now.query) == (Phase.ROLLBACK_WINDOW, "fake:new")
    else:
        assert found.state is State.RUNNING and (now.phase, now.query) == (Phase.MIGRATING, "fake:old")
    answer = Corpus(store, FakeEmbedder("old"), FakeEmbedder("new", 16)).search("text 1", 1)
    assert answer.fingerprint == now.query


def check_acknowledged(store: Store, documents: int, log: Path) -> int:
    """Every write in the log is in the store, unless a later one of the same document is; how many there are."""
    done = len(log.read_bytes().split()) if log.exists() else 0
    last = {name: (at, text) for at, (name, text) in enumerate(writes(documents)[: done + 1])}
    texts = texts_of(store)
    for name, (at, text) in last.items():
        if at == done:  # not acknowledged: it may be there or not, and hides the one before
            continue
        assert texts.get(name, (None, 0))[0] == text, (name, text)
    return done


def prepare(trials: Trials, documents: int) -> None:
    with opened(trials.base(), create=True) as store:
        store.adopt("fake:old", 8, "old")
        corpus = Corpus(store, FakeEmbedder("old"))
        for first in range(0, documents, 1000):
            corpus.put({f"d{i:05}": f"text {i}" for i in range(first, min(first + 1000, documents))})


def undisturbed(trials: Trials, folder: Path, documents: int) -> tuple[dict[str, str], float]:
    """The digest of the final table with and without the writes, and how long a run takes."""
    digests = {}
    for number, kind in enumerate((ALONE, WRITER)):
        address = trials.copy(-1 - number if isinstance(trials, SqliteTrials) else 10**6 + number)
        if kind == WRITER:
            write(address, documents, folder / "undisturbed", both=False)
        began = time.monotonic()
        migrate(address, folder / "undisturbed.log")
        took = time.monotonic() - began
        with opened(address) as store:
            digests[kind] = check_vectors(store)
        trials.drop(address)
    return digests, took


def trial(
    trials: Trials, folder: Path, documents: int, number: int, place: tuple[int, float], digests: dict[str, str]
) -> dict[str, int]:
    """One migration that is killed at a place: so many seconds after so many documents; what was seen."""
    kind = KINDS[number % len(KINDS)]
    both = kind == WRITER or number % 2 == 0  # one with the old model alone may end early, and its table differ
    address = trials.copy(number)
    log, written = folder / f"embedded{number}", folder / f"written{number}"
    migrator = child(lambda: migrate(address, log))
    writer = child(lambda: write(address, documents, written, both)) if kind != ALONE else None
    killed = kill_at(migrator, log, *place)
    if writer is not None:
        if kind == BOTH_KILLED:
            kill(writer)
        else:
            assert os.waitpid(writer, 0)[1] == 0
    with opened(address) as store:
        check_vectors(store)
        check_route(store)
        acknowledged = check_acknowledged(store, documents, written)
        found = store.migrations.open()
        new = FakeEmbedder("new", 16, log=log)
        if found is None or found.state is not State.COMPLETED:
            found = Migrator(store, new, batch=BATCH).run(take_over=True)
        assert found.state is State.COMPLETED and found.remaining == 0
        digest = check_vectors(store)
        check_route(store)
    if kind in digests:
        assert digest == digests[kind], "the final table differs from an undisturbed run's"
    counted = Counter(log.read_text().splitlines()) if log.exists() else Counter()
    again = sum(times - 1 for times in counted.values())
    assert again <= BATCH, f"{again} documents were embedded twice"
    trials.drop(address)
    for path in (log, written):
        path.unlink(missing_ok=True)
    return {"killed": killed, "again": again, "acknowledged": acknowledged}


def run(trials: Trials, folder: Path, *, count: int, documents: int, seed: int) -> dict[str, Any]:
    """Trials until `count` migrators were killed before they were done, anywhere on their way; the figures."""
    prepare(trials, documents)
    digests, took = undisturbed(trials, folder, documents)
    rng = random.Random(seed)
    began = time.monotonic()
    seen: list[dict[str, int]] = []
    while sum(row["killed"] for row in seen) < count:
        place = (rng.randint(0, documents), rng.uniform(0, 2 * took * BATCH / documents))
        seen.append(trial(trials, folder, documents, len(seen), place, digests))
        if len(seen) % 25 == 0:
            print(f"{len(seen)} trials, all as promised", file=sys.stderr, flush=True)
    return {
        "trials": len(seen),
        "documents": documents,
        "killed": count,
        "undisturbed_s": round(took, 2),
        "embedded_twice_most": max(row["again"] for row in seen),
        "embedded_twice_mean": round(sum(row["again"] for row in seen) / len(seen), 1),
        "writes_acknowledged": sum(row["acknowledged"] for row in seen),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill migrations and resume them.")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trials: Trials = SqliteTrials(folder)
        if given.store == "postgres":
            from postgres_server import MISSING, start_server

            server = start_server()
            assert server is not None, MISSING
            stack.callback(server.stop)
            trials = PostgresTrials(server.url)
        print(json.dumps(run(trials, folder, count=given.count, documents=given.documents, seed=given.seed)))


if __name__ == "__main__":
    main()
