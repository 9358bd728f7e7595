"""A fingerprint says what made a vector: the same wherever it is made, another for anything that counts."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_adapters
from soaking import times
from tiny_st import write_st_folder

import weft
from weft.embed import fingerprint as fingerprints
from weft.weights import open_safetensors, write_safetensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_st_folder(tmp_path / "model")


def fingerprint(folder: Path, **options: object) -> str:
    return weft.Embedder(str(folder), **options).info["fingerprint"]  # type: ignore[arg-type]


def test_it_is_a_scheme_and_a_hash_and_info_has_its_parts(folder: Path) -> None:
    info = weft.Embedder(str(folder)).info
    scheme, digits = info["fingerprint"].split(":")
    assert scheme == "weft2" and len(digits) == 64 and int(digits, 16)
    parts = info["fingerprint_parts"]
    assert (parts["pooling"], parts["dense"], parts["dimension"], parts["compute"]) == ("first", ["tanh"], 24, "f32")
    assert json.loads(json.dumps(parts)) == parts


def test_it_stays_what_it_was(folder: Path) -> None:
    """Stores keep fingerprints for years: another version of weft must find the same, or have reason not to."""
    assert fingerprint(folder) == "weft2:b4108951b89d6755aec63f7302226380ad7adb2b42aa61232a1237c35c45d07e"


def test_where_and_when_and_how_many_threads_do_not_count(folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "renamed", copy_function=shutil.copy)
    for file in moved.rglob("*"):
        os.utime(file, (1, 1))
    expected = fingerprint(folder)
    assert fingerprint(moved, threads=1) == fingerprint(moved, threads=3) == expected
    code = "import sys, weft; print(weft.Embedder(sys.argv[1]).info['fingerprint'])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7", "WEFT_ISA": "scalar"}
    found = subprocess.run([sys.executable, "-c", code, str(moved)], env=environment, capture_output=True, text=True)
    assert found.stdout.strip() == expected, found.stderr


def test_who_wrote_the_config_does_not_count(folder: Path) -> None:
    expected = fingerprint(folder)
    edit(folder / "config.json", transformers_version="9.9", _name_or_path="x", architectures=["BertModel"])
    assert fingerprint(folder) == expected


@pytest.mark.parametrize("option", [{"normalise": False}, {"compute": "int8"}, {"pooling": "mean"}])
def test_what_the_caller_chooses_counts(folder: Path, option: dict) -> None:
    assert fingerprint(folder, **option) != fingerprint(folder)


def edit(path: Path, **changed: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def test_what_the_files_say_counts(folder: Path) -> None:
    first = weft.Embedder(str(folder)).fingerprint

    def differs(*parts: str) -> bool:
        return first.differences(weft.Embedder(str(folder)).fingerprint) == [*parts]

    edit(folder / "config_sentence_transformers.json", prompts={"query": "find: "})
    assert differs("prompts")
    edit(folder / "config.json", layer_norm_eps=1e-5)
    assert differs("weights", "prompts")
    write_st_folder(folder)
    edit(folder / "tokenizer_config.json", do_lower_case=False)  # which goes before what tokenizer.json says
    assert differs("tokenizer")
    write_st_folder(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = not tokenizer["normalizer"]["lowercase"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    edit(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")  # which goes by that file alone
    assert differs("tokenizer")


def test_what_a_tokenizer_does_with_long_words_and_its_own_words_counts(tmp_path: Path) -> None:
    vocab = ["a", "b", "c", "ab", "bc", "abc"]
    merges = [["a", "b"], ["b", "c"], ["ab", "c"]]
    pieces = {"type": "BPE", "vocab": {token: i for i, token in enumerate(vocab)}, "merges": merges}
    words = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
             "vocab": {token: i for i, token in enumerate([*vocab, "x", "##x"])}}  # fmt: skip

    def digest(model: dict[str, object]) -> str:
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "pre_tokenizer": {"type": "Whitespace"}}))
        return fingerprints._vocabulary_digest(weft.Tokenizer.from_file(tmp_path / "tokenizer.json"))

    assert digest(pieces) != digest({**pieces, "merges": [merges[1], merges[0], merges[2]]})
    assert digest(pieces) == digest(dict(reversed(pieces.items())))
    assert digest(words) != digest({**words, "max_input_chars_per_word": 99})


@pytest.mark.parametrize("file", ["model.safetensors", "2_Dense/model.safetensors"])
def test_one_changed_number_counts(folder: Path, file: str) -> None:
    first = weft.Embedder(str(folder)).fingerprint
    tensors = {name: view.numpy().copy() for name, view in open_safetensors(folder / file).tensors.items()}
    name = max(tensors, key=lambda n: tensors[n].size)
    tensors[name].reshape(-1)[-1] += 1
    (folder / file).unlink()
    write_safetensors(folder / file, tensors)
    assert first.differences(weft.Embedder(str(folder)).fingerprint) == ["weights"]


def test_adapters_count(folder: Path, tmp_path: Path) -> None:
    embedder = weft.Embedder(str(folder))
    config = json.loads((folder / "config.json").read_text())
    settings = {**tiny_adapters.PEFT_BERT, "target_modules": ["query", "value"]}
    adapter = embedder.adapters.load("a", tiny_adapters.write_adapter(tmp_path / "a", config, settings, "f32", 1))
    assert str(embedder.fingerprint.changed(adapter=adapter.digest.hex())) != str(embedder.fingerprint)


@pytest.mark.soak
def test_every_byte_of_a_tensor_of_several_pieces_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 512)
    file = folder / "model.safetensors"
    found = {fingerprint(folder)}
    tensors = {name: view.numpy().copy() for name, view in open_safetensors(file).tensors.items()}
    name = max(tensors, key=lambda n: tensors[n].nbytes)
    values = tensors[name].reshape(-1).view(np.uint8)
    count = times(50, 10)
    places = [len(values) * i // count for i in range(count)]
    for place in places:
        values[place] ^= 1
        write_safetensors(file, tensors)
        found.add(fingerprint(folder))
    assert len(found) == count + 1


def test_files_are_read_once_as_long_as_they_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprints, "SETTLED_SECONDS", -1e9)
    file, asked = tmp_path / "weights", []

    def digest() -> str:
        asked.append(file.read_bytes())
        return hashlib.sha256(asked[-1]).hexdigest()

    file.write_bytes(b"one")
    first = fingerprints.kept_digest([file], digest)
    assert fingerprints.kept_digest([file], digest) == first and asked == [b"one"]
    file.write_bytes(b"two")
    second = fingerprints.kept_digest([file], digest)
    assert second != first and asked == [b"one", b"two"]
    for kept in (tmp_path / "cache" / "digests").iterdir():
        kept.write_text("[]")
    assert fingerprints.kept_digest([file], digest) == second and len(asked) == 3
    monkeypatch.setattr(fingerprints, "SETTLED_SECONDS", 1e9)  # changed a moment ago, as far as it knows
    assert fingerprints.kept_digest([file], digest) == second and len(asked) == 4
    assert fingerprints.kept_digest([tmp_path / "gone"], lambda: "made") == "made"
