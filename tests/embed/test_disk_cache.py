"""The cache on disk gives back exactly what was put, to any process, or nothing: never a damaged or a wrong vector."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_st import TEXTS

import weft
from weft.embed.cache import DiskCache, Stored, key_of
from weft.embed.cache import disk as module
from weft.errors import FormatError, InputError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "cache.sqlite"


def entries(first: int, count: int, size: int = 64) -> list[tuple[bytes, Stored]]:
    """Vectors whose numbers follow from their key."""
    numbers = range(first, first + count)
    return [(key_of("f", str(n)), Stored(np.full(size, n, np.float32), n, 1, 2)) for n in numbers]


def keys(first: int, count: int) -> list[bytes]:
    return [key for key, _ in entries(first, count, 1)]


def test_what_was_put_comes_back_in_the_order_asked(path: Path) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(0, 1000))
    found = DiskCache(path).get("f", [*reversed(keys(0, 1000)), key_of("f", "none")])
    assert found[-1] is None
    for n, stored in zip(reversed(range(1000)), found[:-1]):
        assert stored is not None and stored[1:] == (n, 1, 2) and (stored.vector == n).all()
    assert len(cache) == 1000 and cache.get("f", []) == []


def test_another_fingerprint_never_gets_it(path: Path) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(0, 3))
    assert cache.get("g", keys(0, 3)) == [None] * 3
    cache.put("g", entries(5, 1))
    with sqlite3.connect(path) as connection:  # rows that claim to be another model's
        connection.execute("UPDATE vectors SET model = (SELECT id FROM models WHERE fingerprint = 'g')")
    assert cache.get("g", keys(0, 3)) == [None] * 3 and cache.damaged == 3


@pytest.mark.parametrize("place", [0, 4, 15, 16, 31, 32, 100, -1])
def test_a_damaged_row_is_a_miss_and_is_written_anew(path: Path, place: int) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(7, 1))
    with sqlite3.connect(path) as connection:
        (data,) = connection.execute("SELECT entry FROM vectors").fetchone()
        broken = bytearray(data)
        broken[place] ^= 1
        connection.execute("UPDATE vectors SET entry = ?", (bytes(broken),))
    assert cache.get("f", keys(7, 1)) == [None] and cache.damaged == 1
    cache.put("f", entries(7, 1))
    assert cache.get("f", keys(7, 1))[0] is not None


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 32, b"\0" * 31])
def test_rubbish_in_a_row_is_a_miss(path: Path, data: bytes) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(0, 1))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE vectors SET entry = ?", (data,))
    assert cache.get("f", keys(0, 1)) == [None]


def test_the_least_recently_used_go_when_it_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    cache = DiskCache(path, max_bytes=1 << 20)
    cache.put("f", entries(0, 200, 384))
    now[0] += 2 * module.TOUCH_S
    cache.get("f", keys(0, 20))
    for start in range(200, 2000, 200):
        now[0] += 10
        cache.put("f", entries(start, 200, 384))
        assert cache.size_bytes <= 1 << 20
    assert path.stat().st_size <= 1.2 * (1 << 20)  # pages went back to the file system
    assert cache.get("f", keys(1900, 100)).count(None) == 0 and cache.get("f", keys(20, 180)).count(None) == 180
    assert 400 < len(cache) < 700


def test_the_log_stays_small_and_nine_tenths_of_the_cap_stay_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cap, logs = 4 << 20, []
    cache = DiskCache(path, max_bytes=cap)
    trim = cache._trim

    def watched() -> None:
        logs.append(path.with_name("cache.sqlite-wal").stat().st_size)
        trim()

    monkeypatch.setattr(cache, "_trim", watched)
    cache.put("f", entries(0, 10_000, 384))  # 15 MB in one call
    assert len(logs) > 10 and max(logs) < cap / 2 and cache.file_bytes < 1.5 * cap
    assert 0.85 * cap < cache.size_bytes <= cap
    assert cache.get("f", keys(9_000, 1_000)).count(None) == 0


def test_pruning_gives_the_log_back(path: Path) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(0, 2000, 384))
    assert cache.file_bytes > cache.size_bytes > 3_000_000
    assert cache.clear() == 2000 and cache.file_bytes == cache.size_bytes < 200_000


def test_a_log_that_others_read_is_left_for_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHRINK_WAIT_S", 0.01)
    cache = DiskCache(path)
    cache.put("f", entries(0, 100, 384))
    with sqlite3.connect(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM vectors").fetchone()
        assert cache.clear() == 100 and len(cache) == 0
    reader.close()
    with cache._connected() as connection:
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (module.WAIT_S * 1000,)


def test_a_model_has_a_name_beside_its_fingerprint(path: Path, tiny_folder: Path) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(0, 3))
    weft.Embedder(str(tiny_folder), cache=cache, compute="int8").encode(TEXTS)
    weft.Embedder(str(tiny_folder), cache=str(path)).encode(TEXTS)
    found = {(m.name, m.vectors, m.dimension) for m in cache.models()}
    assert found == {("", 3, 64), (f"{tiny_folder}, int8", 6, 24), (f"{tiny_folder}, f32", 6, 24)}
    cache.name_model("f", "first")
    cache.put("f", entries(3, 1))
    cache.name_model("f", "second")
    assert [m.name for m in cache.models() if m.fingerprint == "f"] == ["first"]
    cache.put("f", entries(4, 1))
    assert [m.name for m in cache.models() if m.fingerprint == "f"] == ["second"]


def test_a_file_from_before_names_is_read_and_gets_them(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        for statement in (*module.SCHEMA, "PRAGMA user_version = 1"):
            connection.execute(statement)
        connection.execute("INSERT INTO models (fingerprint) VALUES ('f')")
        (key, stored), *_ = entries(7, 1)
        row = (key, 1, 5, module.write_entry("f", key, stored))
        connection.execute("INSERT INTO vectors (key, model, used, entry) VALUES (?, ?, ?, ?)", row)
    cache = DiskCache(path)
    assert [(m.fingerprint, m.name) for m in cache.models()] == [("f", "")]
    assert cache.get("f", keys(7, 1))[0] is not None
    cache.name_model("f", "tiny")
    cache.put("f", entries(8, 1))
    assert [(m.name, m.vectors) for m in DiskCache(path).models()] == [("tiny", 2)]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)


def test_pruning_by_size_age_and_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    cache = DiskCache(path)
    cache.put("f", entries(0, 300, 384))
    now[0] += 1000
    cache.put("g", entries(0, 100, 384))
    assert [(m.fingerprint, m.vectors, m.used) for m in cache.models()] == [("g", 100, 1001000), ("f", 300, 1000000)]
    assert cache.prune(older_than_s=500) == 300 and [m.fingerprint for m in cache.models()] == ["g"]
    assert 0 < cache.prune(max_bytes=150_000) < 100 and cache.size_bytes <= 150_000
    left = len(cache)
    assert cache.prune(fingerprint="f") == 0 and cache.prune(fingerprint="g") == left > 0
    cache.put("f", entries(0, 10))
    assert cache.clear() == len(keys(0, 10)) and len(cache) == 0 and cache.models() == []


def test_a_file_of_something_else_is_told_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(FormatError, match=r"cache\.sqlite is not an embedding cache"):
        DiskCache(path)
    assert path.read_bytes().startswith(b"not a database")
    path.unlink()
    for tables, version in ((("bills",), 0), (("models",), 0), (("models", "bills"), module.VERSION)):
        with sqlite3.connect(path) as connection:
            for table in tables:
                connection.execute(f"CREATE TABLE {table} (id, name)")
            connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        before = path.read_bytes()
        with pytest.raises(FormatError, match="another program"):
            DiskCache(path)
        assert path.read_bytes() == before  # in its own journal mode, too
        path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(FormatError, match="version 9"):
        DiskCache(path)
    for wrong in (5, "1GB", None):
        with pytest.raises(InputError, match="max_bytes"):
            DiskCache(path, max_bytes=wrong)  # type: ignore[arg-type]


def test_a_place_that_holds_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file" / "cache.sqlite", tmp_path / "file" / "folder" / "cache.sqlite", tmp_path):
        with pytest.raises(InputError, match=r"cannot be written: .*; give a writable file") as caught:
            DiskCache(place)
        assert str(place) in str(caught.value)


def told_to_others(path: Path) -> str:
    """What somebody who is not root is told who opens the cache."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            DiskCache(path)
            os.write(write, b"opened")
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as said:
        told = said.read().decode()
    os.waitpid(child, 0)
    return told


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_place_that_may_not_be_written_is_told() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        DiskCache(folder / "cache.sqlite").put("f", entries(0, 3))
        (folder / "cache.sqlite").chmod(0o444)
        folder.chmod(0o555)
        try:
            for place in ("cache.sqlite", "new.sqlite", "folder/new.sqlite"):
                told = told_to_others(folder / place)
                assert told.startswith(f"InputError: [cache] {folder / place} cannot be written: "), told
                assert "or 'memory'" in told
            folder.chmod(0o777)
            told = told_to_others(folder / "cache.sqlite")  # the file alone
            assert "InputError" in told and "readonly" in told
        finally:
            folder.chmod(0o700)


def test_a_disk_that_cannot_be_written_stops_nobody(path: Path, tiny_folder: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), cache=DiskCache(path))
    embedder.encode(TEXTS[:2])
    cache = embedder.cache
    assert isinstance(cache, DiskCache)
    with cache._connected() as connection:
        connection.execute("PRAGMA query_only = 1")
    made = embedder.embed(TEXTS)
    assert made.cached == 2 and cache.failed_writes == 4
    assert np.array_equal(made.vectors, weft.Embedder(str(tiny_folder)).encode(TEXTS))


def test_a_damaged_file_stops_nobody(path: Path, tiny_folder: Path) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(0, 500, 384))
    cache.close()
    with open(path, "r+b") as file:  # all but the first page
        file.seek(module.PAGE_BYTES)
        file.write(b"\xa5" * (path.stat().st_size - module.PAGE_BYTES))
    embedder = weft.Embedder(str(tiny_folder), cache=DiskCache(path))
    assert np.array_equal(embedder.encode(TEXTS), weft.Embedder(str(tiny_folder)).encode(TEXTS))
    assert cache.get("f", keys(0, 500)) == [None] * 500
    for ask in (cache.models, cache.clear, lambda: len(cache), lambda: cache.prune(older_than_s=0)):
        with pytest.raises(FormatError, match=r"cache\.sqlite is damaged: .*; delete it"):
            ask()


def test_nobody_waits_for_a_writer_to_read(path: Path) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(0, 3))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("UPDATE vectors SET used = 0")  # so long ago that a hit is to be written down
    writer.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    found = [cache.get("f", keys(0, 3)), DiskCache(path).get("f", keys(0, 3))]
    assert time.monotonic() - start < module.WAIT_S / 2 and all(None not in part for part in found)
    writer.execute("ROLLBACK")
    assert writer.execute("SELECT MAX(used) FROM vectors").fetchone() == (0,)
    cache.get("f", keys(0, 3))
    assert writer.execute("SELECT MIN(used) FROM vectors").fetchone() > (0,)


def test_pruning_is_done_in_small_steps_and_takes_no_nonsense(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_ROWS", 7)
    cache = DiskCache(path)
    cache.put("f", entries(0, 30))
    steps: list[int] = []
    write = cache._write
    monkeypatch.setattr(cache, "_write", lambda change, **more: steps.append(1) or write(change, **more))
    for wrong in ({"older_than_s": -5}, {"max_bytes": -1}, {"max_bytes": "3"}, {"older_than_s": float("nan")}):
        with pytest.raises(InputError, match="must be a number from 0 on"):
            cache.prune(**wrong)  # type: ignore[arg-type]
    assert len(cache) == 30 and not steps
    assert (
        cache.prune(fingerprint="f") == 30 and len(steps) == 6 + 1
    )  # seven at a time, until none is left; then models


def test_processes_share_a_file(path: Path, tiny_folder: Path) -> None:
    code = (
        "import sys, weft\n"
        "embedder = weft.Embedder(sys.argv[1], threads=1, cache=sys.argv[2])\n"
        "for i in range(20):\n"
        "    embedder.encode([f'the cat {j}' for j in range(i, i + 20)])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tiny_folder), str(path)]
    writers = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for writer in writers:
        assert writer.communicate()[1] == "" and writer.returncode == 0
    embedder = weft.Embedder(str(tiny_folder), cache=str(path))
    texts = [f"the cat {j}" for j in range(39)]
    made = embedder.embed(texts)
    assert made.cached == 39 and np.array_equal(made.vectors, weft.Embedder(str(tiny_folder)).encode(texts))


def test_a_file_that_another_makes_meanwhile_is_a_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other comes between our two first questions; it must not get to write there, or we see half a cache."""
    ask = module._pragma
    others: list[threading.Thread] = []

    def asked(connection: sqlite3.Connection, name: str) -> int:
        answer = ask(connection, name)
        if not others:
            others.append(threading.Thread(target=DiskCache, args=(path,)))
            others[0].start()
            others[0].join(0.5)
        return answer

    monkeypatch.setattr(module, "_pragma", asked)
    cache = DiskCache(path)
    others[0].join()
    cache.put("f", entries(0, 5))
    assert len(cache) == 5


class Interrupted:
    """A connection; Ctrl-C comes while a transaction waits to begin, and Python hears of it once it has begun."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real, self._left = real, 1

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        done = self._real.execute(sql, *values)  # type: ignore[arg-type]
        if sql == "BEGIN IMMEDIATE" and self._left:
            self._left = 0
            raise KeyboardInterrupt
        return done

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def test_ctrl_c_while_others_write_leaves_no_transaction_open(path: Path) -> None:
    cache = DiskCache(path)
    cache._connection = Interrupted(cache._connection)  # type: ignore[arg-type, assignment]
    with pytest.raises(KeyboardInterrupt):
        cache.put("f", entries(0, 3))
    cache.put("f", entries(3, 3))
    assert cache.failed_writes == 0 and len(cache) == 3
    with sqlite3.connect(path, timeout=0) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody holds the file


def test_prune_counts_what_it_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, other = DiskCache(path), DiskCache(path)
    cache.put("f", entries(0, 5))
    shrink = cache._shrink

    def late() -> None:
        other.put("f", entries(5, 7))
        shrink()

    monkeypatch.setattr(cache, "_shrink", late)
    assert cache.prune(fingerprint="f") == 5 and len(cache) == 7
    assert cache.clear() == 7 and len(cache) == 7


def test_a_log_that_goes_while_it_is_measured_has_no_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(0, 5))
    cache.close()
    monkeypatch.setattr(Path, "is_file", lambda self: True)  # it was there a moment ago
    assert cache.file_bytes == path.stat().st_size


def test_a_file_that_was_deleted_is_made_anew(path: Path) -> None:
    """What is put into one that has no name any more is lost with the process."""
    cache = DiskCache(path)
    cache.put("f", entries(0, 5))
    for file in list(path.parent.iterdir()):
        file.unlink()
    assert cache.get("f", keys(0, 5)) == [None] * 5
    cache.put("f", entries(5, 5))
    assert DiskCache(path).get("f", keys(0, 10)).count(None) == 5


def test_a_file_is_the_same_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = DiskCache("cache.sqlite")
    cache.put("f", entries(0, 5))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    cache.close()
    assert cache.get("f", keys(0, 5)).count(None) == 0 and not any(Path().iterdir())


def test_a_file_that_cannot_be_made_anew_stops_nobody(path: Path) -> None:
    cache = DiskCache(path)
    for file in list(path.parent.iterdir()):
        file.unlink()
    path.mkdir()
    cache.put("f", entries(0, 5))
    assert cache.get("f", keys(0, 5)) == [None] * 5 and cache.failed_writes == 5
