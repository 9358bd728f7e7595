"""A cache changes how long a vector takes and nothing else, whoever shares it."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import tiny_adapters
from tiny_st import PROMPTS, TEXTS

import weft
from weft.embed import BaseEmbedder, Embedded, EmbedInterrupted
from weft.embed.cache import DiskCache, Layers, MemoryCache, Stored, key_of, lookup
from weft.embed.inputs import How
from weft.errors import InputError, TooLongError


def counting(folder: Path, **options: object) -> tuple[weft.Embedder, list[list[str]]]:
    """An embedder, and the lists of texts that it had to compute."""
    embedder = weft.Embedder(str(folder), threads=1, **options)  # type: ignore[arg-type]
    calls: list[list[str]] = []
    real = embedder._make

    def make(texts: list[str], how: object) -> object:
        calls.append(texts)
        return real(texts, how)  # type: ignore[arg-type]

    embedder._make = make  # type: ignore[assignment, method-assign]
    return embedder, calls


class Numbers(BaseEmbedder):
    """Texts that are numbers, and vectors of them; `before` is called with each list before it is made."""

    dimension = 2  # type: ignore[assignment]
    fingerprint = "numbers"  # type: ignore[assignment]
    info = MappingProxyType({"fingerprint": "numbers"})  # type: ignore[assignment]
    prompts = MappingProxyType({})  # type: ignore[assignment]

    def __init__(self, cache: object, before: Callable[[list[str]], None] = lambda texts: None) -> None:
        self.cache, self.before = cache, before  # type: ignore[assignment]
        self.progress: list[bool | None] = []

    def _make(self, texts: list[str], how: How) -> Embedded:
        self.progress.append(how.progress)
        self.before(texts)
        ones = np.ones(len(texts), np.int32)
        vectors = np.array([[float(text), 1] for text in texts], np.float32).reshape(-1, 2)
        return Embedded(vectors, ones, 0 * ones, ones, lambda: self.fingerprint)


def stored(value: float) -> Stored:
    return Stored(np.full(4, value, np.float32), 1, 0, 1)


def test_misses_are_made_in_one_call_and_merged_in_order(tiny_folder: Path, tiny_embedder: weft.Embedder) -> None:
    embedder, calls = counting(tiny_folder, cache="memory")
    embedder.encode([TEXTS[1], TEXTS[3]])
    made = embedder.embed([*TEXTS, TEXTS[0]])
    assert calls == [[TEXTS[1], TEXTS[3]], [TEXTS[0], TEXTS[2], TEXTS[4], TEXTS[5]]]
    assert np.array_equal(made.vectors, tiny_embedder.encode([*TEXTS, TEXTS[0]])) and made.cached == 2
    again = embedder.embed(TEXTS)
    assert again.cached == len(TEXTS) and len(calls) == 2 and again.tokens.tolist() == made.tokens.tolist()[:-1]
    assert again.fingerprint == made.fingerprint == tiny_embedder.info["fingerprint"]
    assert embedder.encode([]).shape == (0, 24)


def test_a_portion_is_kept_before_the_next_is_begun() -> None:
    cache, there = MemoryCache(10_000), []
    embedder = Numbers(cache, lambda texts: there.append((len(texts), cache.stats.size)))
    embedder.encode(["7", "2000"])
    texts = [str(n) for n in reversed(range(2500))] * 2
    made = embedder.embed(texts)
    assert there == [(2, 0), (1024, 2), (1024, 1026), (450, 2050)]
    assert made.vectors[:, 0].tolist() == [float(text) for text in texts] and made.cached == 4


def test_an_error_loses_no_finished_portion(tmp_path: Path) -> None:
    def refuse(texts: list[str]) -> None:
        if "2047" in texts:
            raise RuntimeError("no")

    cache = DiskCache(tmp_path / "cache.sqlite")
    texts = [str(n) for n in range(3000)]
    with pytest.raises(RuntimeError):
        Numbers(cache, refuse).encode(texts)
    assert len(cache) == 1024
    made = Numbers(cache).embed(texts)
    assert made.cached == 1024 and made.vectors[:, 0].tolist() == list(range(3000))


def test_an_interrupt_in_a_later_portion_keeps_all_that_is_done() -> None:
    cache = MemoryCache(10_000)
    texts = [str(n) for n in range(3000)]
    embedder = Numbers(cache)
    real = embedder._make

    def make(texts: list[str], how: How) -> Embedded:
        made = real(texts, how)
        if "2048" in texts:
            raise EmbedInterrupted(made.first(100))
        return made

    embedder._make = make  # type: ignore[method-assign]
    with pytest.raises(EmbedInterrupted) as caught:
        embedder.encode(texts)
    assert caught.value.vectors[:, 0].tolist() == list(range(2148)) and cache.stats.size == 2148


def test_an_interrupt_while_a_cache_writes_gives_what_is_done() -> None:
    class Interrupted(MemoryCache):
        def put(self, fingerprint: str, entries: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(EmbedInterrupted) as caught:
        Numbers(Interrupted()).encode([str(n) for n in range(1500)])
    assert len(caught.value.vectors) == 1024


def test_one_bar_is_drawn_over_all_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[tuple[object, int, object]] = []

    def shown(batches: list, total: int, progress: bool | None) -> list:
        bars.append((batches, total, progress))
        return batches

    monkeypatch.setattr(lookup, "shown", shown)
    embedder = Numbers(MemoryCache(10_000))
    embedder.encode([str(n) for n in range(1024)], progress=True)  # one portion: its own bar has finer steps
    embedder.encode([str(n) for n in range(3000)], progress=True)
    assert bars == [([(0, 1024)], 1024, False), ([(0, 1024), (1024, 1976)], 1976, True)]
    assert embedder.progress == [True, False, False]


def test_an_error_names_the_text_by_the_callers_place(tiny_folder: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), cache="memory", threads=1)
    embedder.encode(TEXTS[:3])
    with pytest.raises(TooLongError, match=r"text 5 has \d+ tokens") as caught:
        embedder.encode([*TEXTS[:3], "new", TEXTS[0], "word " * 1000])
    assert caught.value.index == 5 and caught.value.length > caught.value.limit == embedder.max_tokens

    def refuse(texts: list[str]) -> None:
        if "2000" in texts:
            index = texts.index("2000")
            raise TooLongError("embed", "has 9 tokens", field="text", length=9, limit=8, index=index)

    numbers = Numbers(MemoryCache(10_000), refuse)
    numbers.encode(["3", "4"])
    with pytest.raises(TooLongError, match="text 2001 has 9") as caught:
        numbers.encode(["0", *(str(n) for n in range(2500))])
    assert caught.value.index == 2001


def test_what_is_given_is_the_callers_own(tiny_folder: Path, tiny_embedder: weft.Embedder) -> None:
    embedder = weft.Embedder(str(tiny_folder), cache="memory")
    for _ in range(2):
        embedder.encode(TEXTS)[:] = 0
    assert np.array_equal(embedder.encode(TEXTS), tiny_embedder.encode(TEXTS))


def test_role_prompt_and_truncation_are_in_the_key(tiny_folder: Path) -> None:
    embedder, calls = counting(tiny_folder, cache="memory")
    ways = ({}, {"prompt_name": "query"}, {"prompt_name": "document"}, {"truncate": "head"}, {"truncate": "chunk"})
    vectors = [embedder.encode("the cat", **way) for way in ways]
    assert len(calls) == len(ways) and not np.array_equal(vectors[0], vectors[1])
    embedder.encode("the cat", prompt=PROMPTS["query"])  # the same text before it: the same vector
    assert len(calls) == len(ways)


def test_an_adapter_that_is_replaced_has_vectors_of_its_own(tiny_folder: Path, tmp_path: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), cache="memory")
    config = json.loads((tiny_folder / "config.json").read_text())
    settings = {**tiny_adapters.PEFT_BERT, "target_modules": ["query", "value"]}
    folders = [tiny_adapters.write_adapter(tmp_path / f"a{i}", config, settings, "f32", i) for i in (1, 2)]
    plain = embedder.encode(TEXTS)
    embedder.adapters.load("a", folders[0])
    first = embedder.embed(TEXTS, adapter="a")
    embedder.adapters.replace("a", folders[1])
    second = embedder.embed(TEXTS, adapter="a")
    assert first.cached == second.cached == 0 and len({first.fingerprint, second.fingerprint}) == 2
    assert np.abs(first.vectors - plain).max() > 1e-3 and np.abs(second.vectors - first.vectors).max() > 1e-3
    embedder.adapters.replace("a", folders[0])
    again = embedder.embed(TEXTS, adapter="a")
    assert again.cached == len(TEXTS) and np.array_equal(again.vectors, first.vectors)


def test_embedders_share_a_cache_without_meeting(tiny_folder: Path, wide_folder: Path) -> None:
    cache = MemoryCache()
    kinds = [
        weft.Embedder(str(tiny_folder), cache=cache),
        weft.Embedder(str(tiny_folder), cache=cache, compute="int8"),
        weft.Embedder(str(wide_folder), cache=cache),
        weft.Embedder(str(wide_folder), cache=cache, dimensions=32),
    ]
    for _ in range(2):
        for embedder in kinds:
            alone = weft.Embedder(
                embedder.info["path"], compute=embedder.info["compute"], dimensions=embedder._dimensions
            )
            assert np.array_equal(embedder.encode(TEXTS), alone.encode(TEXTS))
    assert cache.stats.hits == cache.stats.misses == 4 * len(TEXTS)


def test_no_part_of_a_key_passes_for_another() -> None:
    ways = [("f", "ab", ""), ("f", "b", "a"), ("f", "", "ab"), ("fa", "b", ""), ("f", "ab\0", ""), ("f", "ab", "\0")]
    assert len({key_of(print, text, prompt=prompt) for print, text, prompt in ways}) == len(ways)
    assert len({key_of("f", "a", truncate=mode, longest=n) for mode in ("head", "tail") for n in (1, 11)}) == 4
    assert len(key_of("f", "\ud800")) == 32  # half a surrogate pair is a text too


def test_the_least_recently_used_of_a_shard_goes() -> None:
    cache = MemoryCache(32)  # two a shard
    keys = [bytes([5, i]) for i in range(3)]
    cache.put("f", [(keys[0], stored(0)), (keys[1], stored(1))])
    cache.get("f", [keys[0]])
    cache.put("f", [(keys[2], stored(2))])
    assert [hit is not None for hit in cache.get("f", keys)] == [True, False, True]
    shards = cache.shard_stats()
    assert len(shards) == 16 and shards[5] == (2, 2, 3, 1) and shards[4] == (0, 2, 0, 0)
    assert cache.stats.hit_rate == 0.75 and MemoryCache(33).stats.capacity == 48
    none = MemoryCache(0)
    none.put("f", [(keys[0], stored(0))])
    assert none.get("f", keys[:1]) == [None]
    for wrong in (-1, "x", 1.5):
        with pytest.raises(InputError, match="capacity"):
            MemoryCache(wrong)  # type: ignore[arg-type]


def test_threads_may_share_one() -> None:
    cache = MemoryCache(160)
    errors: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(400):
            value = int(rng.integers(0, 300))
            key = key_of("f", str(value))
            (found,) = cache.get("f", [key])
            if found is not None and found.vector[0] != value:
                errors.append((value, found))
            cache.put("f", [(key, stored(value))])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = cache.stats
    assert not errors and stats.hits + stats.misses == 3200 and stats.size <= stats.capacity == 160


def test_layers_ask_the_nearest_first_and_fill_it() -> None:
    near, far = MemoryCache(), MemoryCache()
    layers = Layers(near, far)
    far.put("f", [(b"a", stored(1))])
    found = layers.get("f", [b"a", b"b"])
    assert found[0] is not None and found[1] is None and near.stats.size == 1
    layers.get("f", [b"a"])
    assert far.stats.hits == 1
    layers.put("f", [(b"b", stored(2))])
    assert (near.stats.size, far.stats.size) == (2, 2)


def test_what_is_no_cache_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(InputError, match=r"cache must be .*got 7"):
        weft.Embedder(str(tiny_folder), cache=7)


@pytest.mark.parametrize("word", ["ram", "dsik", "Memory", "", " "])
def test_a_word_that_is_no_kind_of_cache_is_not_a_files_name(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"cache must be 'memory', 'disk', a path"):
        weft.Embedder(str(tiny_folder), cache=word)
    assert not list(tmp_path.iterdir())
    for path in ("./ram", "ram.sqlite", tmp_path / "vectors"):
        weft.Embedder(str(tiny_folder), cache=path)
    assert {"ram", "ram.sqlite", "vectors"} <= {file.name for file in tmp_path.iterdir()}


def test_hits_and_misses_are_counted_over_all_layers(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    weft.Embedder(str(tiny_folder), cache=path).encode(TEXTS[:2])
    cache = weft.Embedder(str(tiny_folder), cache=path).cache
    assert isinstance(cache, Layers) and cache.stats == (0, 0) and cache.stats.hit_rate == 0
    embedder = weft.Embedder(str(tiny_folder), cache=cache)
    embedder.encode(TEXTS[:3])  # two from disk
    embedder.encode(TEXTS[:3])  # three from memory
    assert cache.stats == (5, 1) and cache.stats.hit_rate == 5 / 6
    assert [layer.stats.hits for layer in cache.caches] == [3, 2]  # type: ignore[attr-defined]
