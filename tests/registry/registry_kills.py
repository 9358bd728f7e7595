"""Run as a program: writers of a registry are killed at any moment, or eight work at once; nothing is lost.

    python registry_kills.py FOLDER kills SEED COUNT
    python registry_kills.py FOLDER together SEED ROUNDS

It only imports the registry, so that a writer is forked within a millisecond.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from weft.errors import InvalidTransitionError
from weft.registry import Registry

KINDS = ("add", "add", "promote", "promote", "rollback", "gc", "evaluate", "archive")
WRITERS = 8


def write_files(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_text(text * 2000)
    (folder / "config").write_text("the same in all" * 500)
    return folder


class Writer:
    """One process that changes a registry, and writes down what it is about to do and what is done."""

    def __init__(self, root: Path, name: str, seed: int, first: int, only: str | None = None) -> None:
        self.root, self.name, self.number = root, name, first
        self.random = random.Random(seed)
        self.only = only
        self.journal = os.open(root / f"journal-{name}-{seed}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, *words: str) -> None:
        os.write(self.journal, (json.dumps(words) + "\n").encode())

    def run(self, steps: int) -> None:
        registry = Registry(self.root / "registry")
        for _ in range(steps):
            self.step(registry)

    def step(self, registry: Registry) -> None:
        what = self.only or self.random.choice(KINDS)
        versions = [] if what == "add" else [v.version for v in self.usable(registry)]
        if what == "add" or not versions:
            self.number += 1
            version = f"1.{self.number}.0"
            source = write_files(self.root / f"source-{os.getpid()}", f"{self.name} {version} ")
            self.say("try", "add", version)
            registry.add(self.name, source, version, evaluations={"m": self.number})
            self.say("done", "add", version)
            return
        version = self.random.choice(versions)
        self.say("try", what, version)
        try:
            if what == "promote":
                registry.promote(f"{self.name}@{version}")
            elif what == "rollback":
                version = registry.rollback(self.name).version
            elif what == "gc":
                registry.gc()
            elif what == "evaluate":
                registry.evaluate(f"{self.name}@{version}", {"again": 1.0})
            else:
                registry.mark(f"{self.name}@{version}", "archived")
        except InvalidTransitionError:
            what = "refused"
        self.say("done", what, version)

    def usable(self, registry: Registry) -> list:
        names = {named.name: named for named in registry.names()}
        return [v for v in names[self.name].versions if v.state != "archived"] if self.name in names else []


def journal(root: Path) -> list[list[str]]:
    """All that writers wrote down, those of one process in order; a last line may be cut off."""
    found = []
    for path in sorted(root.glob("journal-*"), key=lambda path: path.stat().st_mtime_ns):
        for line in path.read_text().splitlines():
            with suppress(ValueError):
                found.append([path.name.split("-")[1], *json.loads(line)])
    return found


def check(root: Path, said: list[list[str]]) -> None:
    """Everything that was done is there, whole; what was under way is there whole or not at all."""
    registry = Registry(root / "registry")
    with registry.database.reading() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert not connection.execute("PRAGMA foreign_key_check").fetchall()
    names = {named.name: named for named in registry.names()}
    for name, state, what, version in said:
        if (state, what) == ("done", "add"):
            assert version in [v.version for v in names[name].versions], f"{name}@{version} was added and is gone"
    for named in names.values():
        for version in named.versions:
            if version.state != "archived":
                text = f"{named.name} {version.version} "
                assert (registry.path(version.reference) / "weights").read_text() == text * 2000
        in_production = [v.version for v in named.versions if v.state == "production"]
        aliased = [named.aliases["production"]] if "production" in named.aliases else []
        assert in_production == aliased, (named.name, in_production, aliased)
        moves = [e for e in registry.events(named.name, limit=10**9) if e.action in ("promoted", "rolled back")]
        assert [e.version for e in moves[:1]] == in_production, "the last event says what is in production"
        added = [e.version for e in registry.events(named.name, limit=10**9) if e.action == "added"]
        assert sorted(added) == sorted(v.version for v in named.versions)
    registry.close()


def last_move(said: list[list[str]], name: str) -> str | None:
    moves = [version for one, state, what, version in said if one == name and state == "done" and what in MOVES]
    return moves[-1] if moves else None


MOVES = ("promote", "rollback")


def wait_for_lines(path: Path, count: int) -> None:
    """Let a writer come as far as that many lines, however slow the machine is."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (path.read_bytes().count(b"\n") if path.exists() else 0) < count:
        time.sleep(0.0005)


def kills(root: Path, seed: int, count: int) -> None:
    chosen = random.Random(seed)
    Registry(root / "registry").close()
    under_way = dict.fromkeys((*KINDS, "nothing"), 0)
    said: list[list[str]] = []
    for i in range(count):
        first = max([int(v.split(".")[1]) for *_, v in said if v] or [0])
        child = os.fork()
        if not child:
            try:
                Writer(root, "it", i, first).run(10**6)
            finally:
                os._exit(1)
        wait_for_lines(root / f"journal-it-{i}", chosen.randrange(8))
        time.sleep(chosen.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        new = journal(root)
        for path in root.glob("journal-*"):
            path.unlink()
        said += new
        last = new[-1] if new else ["it", "done", "nothing", ""]
        under_way[last[2] if last[1] == "try" else "nothing"] += 1
        check(root, said)
        registry = Registry(root / "registry")
        names = {named.name: named for named in registry.names()}
        present = names["it"].aliases.get("production") if names else None
        expected, tried = last_move(said, "it"), last[1] == "try" and last[2] in MOVES
        assert present == expected or tried, f"{expected} was promoted, {present} is in production"
        if present != expected:
            said.append(["it", "done", "promote", present])  # it was under way, and was committed
        if chosen.random() < 0.2:
            registry.gc()
            assert not list((root / "registry" / "staging").iterdir()), "what a killed process left is removed"
            registry.close()
            check(root, said)
        registry.close()
    print(json.dumps({"kills": count, "under way": under_way, "said": len(said)}))


def together(root: Path, seed: int, rounds: int) -> None:
    """Eight processes, each with a name of its own, all with one that they share, from the first moment on."""
    children = []
    for i in range(WRITERS):
        child = os.fork()
        if not child:
            try:
                own = Writer(root, f"own{i}", seed + i, 0)
                shared = Writer(root, "shared", seed + 100 + i, i * 10_000, only="add")
                mover = Writer(root, "shared", seed + 200 + i, i * 10_000 + 5_000)
                for _ in range(rounds):
                    for writer in (own, shared, mover):
                        writer.run(1)
                os._exit(0)
            except BaseException as error:
                print(f"writer {i}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * WRITERS, codes
    said = journal(root)
    assert all(one[1] == "done" for one in said[1::2]), "each step that was begun is done"
    check(root, said)
    print(json.dumps({"writers": WRITERS, "done": sum(one[1] == "done" for one in said)}))


if __name__ == "__main__":
    folder, way, given_seed, given_count = sys.argv[1:]
    {"kills": kills, "together": together}[way](Path(folder), int(given_seed), int(given_count))
