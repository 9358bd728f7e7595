"""weft.wasm has the bits of the scalar level: the same sums in the same order, without a fused step."""

import base64
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from weft import Embedder
from weft.export import export

TEXTS = ["the cat sat", "a", "Hello, WORLD! 123", "the quick brown fox jumps over the lazy dog", "one two three"] * 9


def vectors_of(answer: dict, count: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(answer["vectors"]), np.float32).reshape(count, -1)


def need_scalar() -> None:
    from weft.backends.cpu import levels_present

    if "scalar" not in levels_present():
        pytest.skip("the scalar level was not built: `make test` builds it")


def test_vectors_have_the_bits_of_the_scalar_level(
    in_node, st_folder: Path, st_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_scalar()
    monkeypatch.setenv("WEFT_ISA", "scalar")
    wanted = Embedder(str(st_folder), threads=1, compute="f32")
    answer = in_node(st_bundle, texts=TEXTS)
    assert answer["info"]["level"] == "wasm128"
    assert answer["info"]["threads"] == 1
    assert np.array_equal(vectors_of(answer, len(TEXTS)), wanted.encode(TEXTS))
    assert np.array_equal(
        vectors_of(in_node(st_bundle, texts=TEXTS[:3], role="query"), 3), wanted.encode_query(TEXTS[:3])
    )


def test_real_vectors(in_node, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = export(str(minilm), tmp_path / "m.weft", compute="f32", shard_bytes=20 << 20).path
    found = vectors_of(in_node(bundle, texts=TEXTS[:5]), 5)
    best = Embedder(str(minilm), threads=1, compute="f32").encode(TEXTS[:5])
    assert np.max(1 - np.sum(found.astype(np.float64) * best, axis=1)) < 1e-6
    need_scalar()
    monkeypatch.setenv("WEFT_ISA", "scalar")
    assert np.array_equal(found, Embedder(str(minilm), threads=1, compute="f32").encode(TEXTS[:5]))


def test_ids_are_those_of_python(in_node, st_folder: Path, st_bundle: Path) -> None:
    tokenizer = Embedder(str(st_folder)).tokenizer
    for text in ["", "é [SEP] 漢字", TEXTS[2]]:
        assert in_node(st_bundle, tokenise=text)["ids"] == list(tokenizer.encode(text))


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ({"texts": ["a", "the cat sat " * 40]}, "too_long", "truncate"),
        ({"texts": ["a"], "role": "verse"}, "not_found", "no prompt called verse"),
        ({"texts": ["a\0b"]}, "input", "zero character"),
    ],
)
def test_bad_input_is_refused_again_and_again(in_node, st_bundle: Path, what: dict, code: str, words: str) -> None:
    answer = in_node(st_bundle, **what, repeat=300)
    assert answer["error"]["code"] == code
    assert words in answer["error"]["message"]
    assert answer["heaps"][0] == answer["heaps"][1]  # what was taken before the error is given back


def test_memory_does_not_grow(in_node, st_bundle: Path) -> None:
    first, last = in_node(st_bundle, texts=TEXTS, repeat=200)["heaps"]
    assert first == last


@pytest.mark.parametrize("name", ["weights-00001.bin", "tokenizer.bin", "program.json", "manifest.json"])
def test_a_damaged_file_is_refused(in_node, st_bundle: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(st_bundle, folder)
    data = bytearray((folder / name).read_bytes())
    if name == "manifest.json":
        data = bytearray(json.dumps({**json.loads(data), "weft_bundle": 99}).encode())
    else:
        data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    error = in_node(folder, texts=["a"])["error"]
    assert error["code"] == ("unsupported" if name == "manifest.json" else "format")
    assert name in error["message"]
