"""Pages are shared between requests with the same beginning, in memory and on disk, and no request gets a wrong one."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fake_decoder import VOCAB, FakeDecoder, expected_tokens
from soaking import times

from weft.errors import InputError
from weft.generate import Engine, Request, Sampling
from weft.runtime.paged.pages import PAGE_TOKENS, PagePool
from weft.runtime.paged.prefix import Node, Prefixes, token_bytes
from weft.runtime.paged.store import PrefixStore


def family(rng: np.random.Generator, seed: int) -> tuple[int, ...]:
    """A prompt that begins as others do and then goes its own way."""
    start = np.random.default_rng(int(rng.integers(4))).integers(0, VOCAB, 200)
    return tuple(start[: rng.integers(1, 200)].tolist() + rng.integers(0, VOCAB, rng.integers(0, 8)).tolist())


def some_request(rng: np.random.Generator, seed: int) -> Request:
    sampling = Sampling(float(rng.choice([0.0, 1.0])), seed=seed)
    return Request(family(rng, seed), sampling, max_tokens=int(rng.integers(1, 60)), salt=str(rng.choice(["", "b"])))


def run_all(engine: Engine, requests: list[Request], rng: np.random.Generator) -> None:
    handles = []
    while len(handles) < len(requests) or not all(h.finished for h in handles):
        if len(handles) < len(requests) and rng.random() < 0.5:
            handles.append(engine.submit(requests[len(handles)]))
        engine.step()
    for request, handle in zip(requests, handles):
        result = handle.result()
        assert (result.tokens, result.finish_reason) == expected_tokens(request, request.max_tokens or 0)


@pytest.mark.soak
@pytest.mark.parametrize("bits", [2, 8, 128])
@pytest.mark.parametrize("seed", range(times(12, 3)))
def test_shared_beginnings_change_nothing_even_where_hashes_collide(seed: int, bits: int) -> None:
    rng = np.random.default_rng(seed)
    decoder = FakeDecoder(pages=int(rng.integers(12, 40)))  # few: what was to be shared must not be taken instead
    engine = Engine(decoder, step_tokens=int(rng.choice([7, 64, 512])), max_running=8, hash_bits=bits)
    run_all(engine, [some_request(rng, i) for i in range(60)], rng)
    stats = engine.stats()
    assert stats.free_pages == stats.pages and stats.running == stats.waiting == 0
    assert stats.cached_tokens > 0
    assert bits == 128 or engine._sharing.prefixes.collisions > 0


def test_one_prompt_is_computed_once_for_all_who_share_it() -> None:
    decoder = FakeDecoder(pages=200)
    engine = Engine(decoder, step_tokens=128)
    prompt = tuple(i % VOCAB for i in range(500))
    handles = [engine.submit(Request((*prompt, i), max_tokens=3, ignore_eos=True)) for i in range(16)]
    results = [handle.result() for handle in handles]
    computed = sum(len(step.ids) for step in decoder.steps)
    assert [r.usage.cached_tokens for r in results] == [0] + [480] * 15
    assert computed == 501 + 15 * 21 + 16 * 2
    assert len({r.tokens for r in results}) > 1


def test_generated_text_is_found_again_and_a_salt_keeps_others_out() -> None:
    engine = Engine(FakeDecoder())
    first = engine.submit(Request((1, 2, 3), max_tokens=100, ignore_eos=True)).result()
    text = (1, 2, 3, *first.tokens)
    again = engine.submit(Request(text, max_tokens=1)).result()
    assert again.usage.cached_tokens == 96
    assert engine.submit(Request(text, max_tokens=1, salt="other")).result().usage.cached_tokens == 0
    assert engine.submit(Request(text, max_tokens=1, prefix_cache=False)).result().usage.cached_tokens == 0
    assert Engine(FakeDecoder(), prefix_cache=False).submit(Request(text)).result().usage.cached_tokens == 0


def test_a_preempted_request_goes_on_from_what_is_left_of_its_pages() -> None:
    decoder = FakeDecoder(pages=8, eos_ids=frozenset())
    engine = Engine(decoder, step_tokens=64)
    requests = [Request(tuple(range(i, i + 20)), max_tokens=120, ignore_eos=True) for i in range(4)]
    handles = [engine.submit(r) for r in requests]
    assert [h.result().tokens for h in handles] == [expected_tokens(r, 120)[0] for r in requests]
    assert engine.preemptions and engine.stats().cached_tokens


class Model:
    """What the pool and the cache should do, in plain dictionaries."""

    def __init__(self, seed: int, pages: int, bits: int) -> None:
        self.rng = random.Random(seed)
        self.pool = PagePool(pages)
        self.prefixes = Prefixes(self.pool, secret=b"k" * 32, hash_bits=bits)
        self.root = self.prefixes.root("root")
        self.content: dict[int, tuple[int, ...]] = {}  # page -> the whole text up to its end
        self.texts: list[tuple[list[int], list[Node]]] = []  # pages and nodes that somebody holds
        self.hits = self.takes = 0

    def operate(self) -> None:
        kind = self.rng.random()
        if len(self.texts) > 8 or (self.texts and not self.pool.free_count):
            kind = 1.0  # somebody leaves, so that pages are taken again and again
        if kind < 0.35:
            self.open()
        elif kind < 0.7 and self.texts:
            self.extend(self.rng.choice(self.texts))
        elif kind < 0.78 and self.texts:  # a fork
            pages, nodes = self.rng.choice(self.texts)
            self.pool.share(pages)
            self.texts.append((list(pages), list(nodes)))
        elif self.texts:  # the end, or preemption
            pages, _ = self.texts.pop(self.rng.randrange(len(self.texts)))
            self.pool.release(pages)

    def open(self) -> None:
        text = self.random_text(self.rng.randint(1, 4))
        raw = token_bytes(text)
        nodes = self.prefixes.find(self.root, raw, self.prefixes.hashes(self.root, raw))
        for index, node in enumerate(nodes):
            assert self.content[node.page] == text[: (index + 1) * PAGE_TOKENS], "a wrong page"
        self.pool.share([node.page for node in nodes])
        self.texts.append(([node.page for node in nodes], list(nodes)))
        self.hits += len(nodes)

    def extend(self, held: tuple[list[int], list[Node]]) -> None:
        pages, nodes = held
        if not self.pool.free_count or len(pages) != len(nodes):
            return
        (page,) = self.pool.take(1)
        self.takes += 1
        last = self.content[pages[-1]] if pages else ()
        tokens = self.random_text(1)
        self.content[page] = last + tokens
        node = self.prefixes.add(nodes[-1] if nodes else self.root, token_bytes(tokens), page)
        if node is not None and node.page != page:
            assert self.content[node.page] == self.content[page], "another content"
            self.pool.share([node.page])
            self.pool.release([page])
            page = node.page
        pages.append(page)
        if node is not None:
            nodes.append(node)

    def random_text(self, pages: int) -> tuple[int, ...]:
        return tuple(token for _ in range(pages) for token in [self.rng.randrange(9)] * PAGE_TOKENS)

    def check(self) -> None:
        held = [page for pages, _ in self.texts for page in pages]
        assert all(held.count(page) == self.pool.users(page) for page in range(self.pool.count))
        assert len(set(held)) + self.pool.free_count == self.pool.count


@pytest.mark.parametrize("seed", range(8))
def test_forks_evictions_and_preemptions_leak_nothing(seed: int) -> None:
    model = Model(seed, pages=24, bits=3 if seed % 2 else 128)
    for number in range(4_000):
        model.operate()
        if number % 50 == 0:
            model.check()
    for pages, _ in model.texts:
        model.pool.release(pages)
    assert model.pool.free_count == model.pool.count and model.hits and model.takes > 24


# On disk


def engine_on(folder: Path, **options: int) -> Engine:
    return Engine(FakeDecoder(pages=60), prefix_dir=folder, **options)  # type: ignore[arg-type]


PROMPT = tuple(i % VOCAB for i in range(200))


def test_pages_on_disk_are_found_by_the_next_engine(tmp_path: Path) -> None:
    engine = engine_on(tmp_path)
    first = engine.submit(Request(PROMPT, max_tokens=5, ignore_eos=True)).result()
    engine.close()
    second = engine_on(tmp_path).submit(Request(PROMPT, max_tokens=5, ignore_eos=True)).result()
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 192)
    assert first.tokens == second.tokens
    other = engine_on(tmp_path).submit(Request(PROMPT, max_tokens=5, salt="x")).result()
    assert other.usage.cached_tokens == 0


def pages_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.page"))


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "exchanged", "longer"])
def test_a_damaged_page_is_not_served_and_goes(tmp_path: Path, damage: str) -> None:
    engine = engine_on(tmp_path)
    engine.submit(Request(PROMPT, max_tokens=1)).result()
    engine.close()
    for path in pages_in(tmp_path):
        data = bytearray(path.read_bytes())
        if damage == "cut":
            data = data[:-3]
        elif damage == "bit":
            data[len(data) // 2] ^= 4
        elif damage == "empty":
            data = bytearray()
        elif damage == "longer":
            data += b"x"
        path.write_bytes(data if damage != "exchanged" else pages_in(tmp_path)[0].read_bytes())
    engine = engine_on(tmp_path)
    result = engine.submit(Request(PROMPT, max_tokens=5, ignore_eos=True)).result()
    assert result.tokens == expected_tokens(Request(PROMPT, ignore_eos=True), 5)[0]
    assert result.usage.cached_tokens <= 32
    assert damage == "exchanged" or engine._sharing.store.damaged == 1  # type: ignore[union-attr]


def test_the_directory_keeps_to_its_limit_and_the_last_used_stay(tmp_path: Path) -> None:
    decoder = FakeDecoder(pages=60)
    store = PrefixStore(tmp_path, decoder, limit=2_000)
    (page,) = decoder.pages.take(1)
    for number in range(40):
        store._write_one(store._path(bytes([number]) * 16), b"text", decoder.read_page(page))
        os.utime(store._path(bytes([number]) * 16), (number, number))
    sizes = [path.stat().st_size for path in pages_in(tmp_path)]
    assert sum(sizes) <= 2_000 and store.read(bytes([39]) * 16, b"text") is not None
    assert store.read(bytes(16), b"text") is None


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="give a directory"):
        engine_on(tmp_path / "file")
    with pytest.raises(InputError, match="must be at least 1 byte"):
        engine_on(tmp_path, prefix_bytes=0)


WRITER = """
import sys
sys.path[:0] = sys.argv[2:]
from test_prefix import *
engine = engine_on(Path(sys.argv[1]), prefix_bytes=60_000)
print("ready", flush=True)
for number in range(10**9):
    rng = np.random.default_rng(number)
    run_all(engine, [some_request(rng, i) for i in range(4)], rng)
"""


def kill_trial(folder: Path, after: float) -> None:
    """A process that writes pages is killed; what it left is right or absent."""
    command = [sys.executable, "-c", WRITER, str(folder), *map(str, Path(__file__).parents[:2])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    engine, rng = engine_on(folder), np.random.default_rng(1)
    run_all(engine, [some_request(rng, i) for i in range(10)], rng)
    assert engine._sharing.store is not None and engine._sharing.store.damaged == 0
    engine.close()


@pytest.mark.soak
def test_a_killed_writer_leaves_no_wrong_page(tmp_path: Path) -> None:
    for trial in range(times(50, 2)):
        kill_trial(tmp_path, 0.01 * trial)
    assert pages_in(tmp_path)
