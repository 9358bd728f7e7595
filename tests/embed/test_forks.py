"""A cache, store or embedder that is open or in use when the process forks works on: nothing is lost, nobody hangs."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
from forking import forked

import weft
from weft.embed import forks
from weft.embed.cache import DiskCache, Stored, key_of
from weft.embed.stores import open_store
from weft.errors import InputError, StoreError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


def entries(first: int, count: int) -> list[tuple[bytes, Stored]]:
    return [(key, Stored(np.ones(64, np.float32), 1, 0, 1)) for key in keys(first, count)]


def keys(first: int, count: int) -> list[bytes]:
    return [key_of("f", str(n)) for n in range(first, first + count)]


def test_a_forked_child_opens_its_own(path: Path) -> None:
    cache = DiskCache(path)
    cache.put("f", entries(0, 5))

    def work() -> None:
        cache.put("f", entries(5, 5))
        assert cache.get("f", keys(0, 10)).count(None) == 0

    assert os.waitpid(forked(work), 0)[1] == 0
    assert cache.get("f", keys(0, 10)).count(None) == 0


def test_what_a_forked_child_put_outlives_all_others(path: Path) -> None:
    """SQLite must not take the parent's locks for the child's: who closes last would remove the child's log."""
    cache = DiskCache(path)
    cache.put("f", entries(0, 5))
    go_on, told = os.pipe(), os.pipe()

    def work() -> None:
        cache.put("f", entries(5, 5))
        os.write(told[1], b"1")
        os.read(go_on[0], 1)
        cache.put("f", entries(10, 5))

    child = forked(work)
    os.close(told[1])
    assert os.read(told[0], 1)
    cache.close()
    code = "import sys; from weft.embed.cache import DiskCache; print(len(DiskCache(sys.argv[1])))"
    other = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    os.write(go_on[1], b"1")
    assert os.waitpid(child, 0)[1] == 0
    assert other.stdout == "10\n" and cache.get("f", keys(0, 15)).count(None) == 0
    for end in (*go_on, told[0]):
        os.close(end)


def test_a_child_does_not_wait_for_a_thread_of_its_parent(path: Path) -> None:
    cache = DiskCache(path)
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cache._connected():
            inside.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    threading.Timer(0.2, done.set).start()
    assert os.waitpid(forked(lambda: cache.put("f", entries(0, 5))), 0)[1] == 0
    thread.join()
    assert len(cache) == 5


@contextmanager
def in_use(use: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """While another thread is inside `use()`, a fork included."""
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with use():
            inside.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_fork_waits_no_longer_than_its_bound_and_the_child_does_not_touch_what_is_in_use(tmp_path: Path) -> None:
    """Of a cache nothing is read or written there: SQLite would do it without locks."""
    caches = [DiskCache(tmp_path / f"{name}.sqlite") for name in "abc"]
    for cache in caches:
        cache.put("f", entries(0, 5))

    def work() -> None:
        for cache in caches:
            assert cache.get("f", keys(0, 5)).count(None) == 5
            cache.put("f", entries(5, 5))
            assert cache.failed_writes == 5
            with pytest.raises(InputError, match="was in use when this process was forked"):
                DiskCache(cache.path)

    with in_use(caches[0]._connected), in_use(caches[1]._connected), in_use(caches[2]._connected):
        began = time.monotonic()
        child = forked(work)
        waited_s = time.monotonic() - began
        assert os.waitpid(child, 0)[1] == 0
    assert waited_s < 2 * forks.LONGEST_S + 1, "the bound is for all of them together"
    for cache in caches:
        cache.put("f", entries(5, 5))
        assert cache.get("f", keys(0, 10)).count(None) == 0


def test_a_store_that_is_in_use_at_a_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "notes.sqlite"), create=True)

    def work() -> None:
        with pytest.raises(StoreError, match="in use when this process was forked"):
            store.count()

    with in_use(lambda: store.transaction("write")):
        child = forked(work)
        assert os.waitpid(child, 0)[1] == 0
    assert store.count() == 0


def test_an_embedder_that_threads_use_goes_on_in_a_child(tiny_folder: Path) -> None:
    """A thread that has the model's turn is not there in the child, and would never give it back."""
    embedder, texts = weft.Embedder(str(tiny_folder), threads=1), ["the cat sat on the mat " * 4] * 64
    expected, done = embedder.encode(texts), threading.Event()

    def busy() -> None:
        while not done.is_set():
            embedder.encode(texts)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()

    def work() -> None:
        assert np.array_equal(embedder.encode(texts), expected)

    try:
        for _ in range(10):
            assert os.waitpid(forked(work), 0)[1] == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()
