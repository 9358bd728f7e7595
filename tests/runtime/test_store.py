"""A program from the cache is the program that tracing gives, and whatever is wrong with the cache changes nothing."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_adapters
from test_state import ANOTHER_LEVEL

from weft.errors import FormatError
from weft.runtime import Decoder, Encoder, Head, open_checkpoint, store
from weft.runtime.prepared import Prepared
from weft.runtime.programs import Programs
from weft.weights import open_safetensors, write_safetensors

IDS = tiny.token_ids(tiny.LLAMA, 40)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, on and empty."""
    monkeypatch.setenv("WEFT_PROGRAM_CACHE", "1")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each program that is traced."""
    found: list[str] = []
    trace = Programs.trace

    def noted(self: Programs, name: str, build: Any, **options: Any) -> Any:
        found.append(name)
        return trace(self, name, build, **options)

    monkeypatch.setattr(Programs, "trace", noted)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("tiny") / "llama", tiny.LLAMA)


def decoder(folder: Path, **options: Any) -> Decoder:
    return Decoder(open_checkpoint(folder), **{"context": 64, **options})


def test_a_hit_is_the_same_program_and_gives_the_same_bits(cache: Path, folder: Path, traces: list[str]) -> None:
    first, second = decoder(folder), decoder(folder)
    assert traces == ["llama"]
    assert len(list(cache.iterdir())) == 1
    assert second.program == first.program
    assert second.prepared == first.prepared
    assert second.memory_plan() == first.memory_plan() and second.info == first.info
    assert second.config == first.config
    assert np.array_equal(first.logits(IDS), second.logits(IDS))


def test_the_program_with_adapters_is_cached_beside_the_plain_one(
    cache: Path, folder: Path, tmp_path: Path, traces: list[str]
) -> None:
    adapter = tiny_adapters.write_adapter(tmp_path / "a", tiny.LLAMA)
    logits = []
    for made in (decoder(folder), decoder(folder)):
        logits.append(made.logits(IDS, adapter=made.adapters.load("a", adapter)))
        assert traces == ["llama", "llama"] and len(list(cache.iterdir())) == 2
    assert np.array_equal(*logits)


def test_encoders_are_cached_too(cache: Path, tmp_path: Path, traces: list[str]) -> None:
    folder = tiny.write_folder(tmp_path / "bert", tiny.BERT)
    ids = [np.asarray(tiny.token_ids(tiny.BERT, 7), np.int32)]
    heads = (Head("mean", normalise=True), Head("mean", normalise=True), Head("first"))
    first, second, other = (Encoder(open_checkpoint(folder), head) for head in heads)
    assert np.array_equal(first.vectors(ids), second.vectors(ids))
    assert not np.array_equal(first.vectors(ids), other.vectors(ids))
    assert len(traces) == 2
    assert np.array_equal(first.hidden_states(ids[0]), second.hidden_states(ids[0]))
    assert len(traces) == 3


def test_what_decides_a_program_is_in_its_key(
    cache: Path, folder: Path, tmp_path: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder(folder)
    for options in ({"context": 65}, {"compute": "bf16"}, {"kv_dtype": "f16"}, {"level": ANOTHER_LEVEL}):
        decoder(folder, **options)
    decoder(tiny.write_folder(tmp_path / "other", {**tiny.LLAMA, "rope_theta": 20000.0}))
    monkeypatch.setattr(store, "_sources", lambda: "other code")
    decoder(folder)
    assert len(traces) == len(list(cache.iterdir())) == 7
    decoder(folder, threads=1, kv_tokens=128)  # these change nothing in a program
    assert len(traces) == 7


def test_tensors_of_other_types_beside_the_model_do_not_matter(cache: Path, folder: Path, tmp_path: Path) -> None:
    other = tiny.write_folder(tmp_path / "other", tiny.LLAMA)
    tensors = {
        name: view.numpy().copy() for name, view in open_safetensors(other / "model.safetensors").tensors.items()
    }
    write_safetensors(other / "model.safetensors", {**tensors, "mask": np.zeros(3, bool), "ids": np.arange(4)})
    first, second = (decoder(path, kv_dtype="f32").logits(IDS) for path in (folder, other))
    assert np.array_equal(first, second)


def damaged(data: bytes) -> dict[str, bytes]:
    head, _, rest = data.partition(b"\n")
    return {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "longer": data + b" ",
        "a flipped bit": data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
        "another version": data.replace(b"weft-program 1", b"weft-program 0", 1),
        "another key": head.replace(head.split()[2], b"0" * 32) + b"\n" + rest,
        "no text": bytes(range(256)) * 10,
        "no line": b"weft-program 1" * 100,
    }


@pytest.mark.parametrize("how", damaged(b"weft-program 1 key digest\n" + bytes(200)))
def test_a_broken_file_is_as_good_as_none(cache: Path, folder: Path, traces: list[str], how: str) -> None:
    wanted = decoder(folder).logits(IDS)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damaged(whole)[how])
    assert np.array_equal(decoder(folder).logits(IDS), wanted)
    assert len(traces) == 2
    assert path.read_bytes() == whole  # written anew


@pytest.mark.parametrize("about", ["", "[]", "{}", "[1,2,3,4,5]", '[[["a",1]],[],{},[0,0,0,0],{}]', "[" * 100_000])
def test_what_fits_its_hash_and_is_no_program_is_refused(cache: Path, about: str) -> None:
    with pytest.raises(FormatError):
        Prepared.from_lines(about, "{}")
    rest = f"{about}\n{{}}".encode()
    cache.mkdir(parents=True)
    (cache / "key").write_bytes(store._head("key", rest) + rest)
    assert store.find("key") is None


@pytest.mark.parametrize("where", ["file", "below a file", "a folder instead of the program"])
def test_a_cache_that_cannot_be_written_is_no_error(
    cache: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    wanted = decoder(folder).logits(IDS)
    (path,) = cache.iterdir()
    if where == "a folder instead of the program":
        path.unlink()
        path.mkdir()
    else:
        (tmp_path / "plain").write_text("")
        monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "plain" if where == "file" else tmp_path / "plain" / "below"))
    assert np.array_equal(decoder(folder).logits(IDS), wanted)
    assert not [name for name in os.listdir(cache) if name.endswith(".part")]


def test_writers_at_once_leave_whole_files(cache: Path, folder: Path) -> None:
    prepared = decoder(folder).prepared

    def write_and_read(number: int) -> bool:
        store.keep(f"key{number % 3}", prepared)
        return store.find(f"key{number % 3}") == prepared

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(write_and_read, range(64)))
    assert sorted(path.name for path in cache.iterdir())[-3:] == ["key0", "key1", "key2"]


def test_the_oldest_files_go_first(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = decoder(folder).prepared
    for path in cache.iterdir():
        path.unlink()
    monkeypatch.setattr(store, "MAX_FILES", 3)
    for number in range(5):
        store.keep(str(number), prepared)
        os.utime(cache / str(number), ns=(number, number))
        if number == 3:
            assert store.find("2") == prepared  # used, so it is new again
    assert sorted(os.listdir(cache)) == ["2", "3", "4"]
    monkeypatch.setattr(store, "MAX_BYTES", (cache / "2").stat().st_size * 3 // 2)
    store.keep("5", prepared)
    assert os.listdir(cache) == ["5"]


def test_the_flag_turns_it_off(cache: Path, folder: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_PROGRAM_CACHE", "0")
    for name in ("find", "keep"):  # not the cache in memory that tests share
        monkeypatch.setattr(store, name, getattr(store, name).on_disk)
    decoder(folder), decoder(folder)
    assert len(traces) == 2 and not cache.exists()
