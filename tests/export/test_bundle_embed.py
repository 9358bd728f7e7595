"""Vectors from C have the bits of those from Python, and damaged bundles are refused with a code and a sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import libweft
import numpy as np
import pytest
from libweft import Model, StatusError

from weft import Embedder
from weft.backends.cpu import levels_present
from weft.errors import InputError, UnsupportedError
from weft.export import export

TEXTS = ["the cat sat", "a", "Hello, WORLD! 123", "the quick brown fox jumps over the lazy dog", "one two three"] * 9


@pytest.mark.parametrize("level", levels_present())
@pytest.mark.parametrize("threads", [1, 3])
def test_vectors_have_the_bits_of_python(
    st_folder: Path, st_bundle: Path, level: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_ISA", level)
    wanted = Embedder(str(st_folder), threads=1)
    with Model(st_bundle, level=level, threads=threads) as model:
        assert np.array_equal(model.embed(TEXTS), wanted.encode(TEXTS))
        assert np.array_equal(model.embed(TEXTS, role="query"), wanted.encode_query(TEXTS))
        assert f'"level": "{level}"' in model.info


@pytest.mark.parametrize("compute", ["f32", "bf16", "bf16x3", "f16", "int8"])
def test_real_vectors_in_every_arithmetic(minilm: Path, compute: str, tmp_path: Path) -> None:
    bundle = export(str(minilm), tmp_path / "m.weft", compute=compute, shard_bytes=20 << 20).path
    assert len(list(bundle.glob("weights-*.bin"))) > 3
    wanted = Embedder(str(minilm), threads=1, compute=compute).encode(TEXTS[:6])
    with Model(bundle, threads=2) as model:
        assert np.array_equal(model.embed(TEXTS[:6]), wanted)


def test_ids_are_those_of_python(st_folder: Path, st_bundle: Path) -> None:
    tokenizer = Embedder(str(st_folder)).tokenizer
    with Model(st_bundle) as model:
        for text in [*TEXTS[:5], "", "é [SEP] 漢字"]:
            assert model.tokenise(text) == tokenizer.encode(text)
        assert model.tokenise("a [SEP]", 3) == tokenizer.encode("a [SEP]", parse_special=True)


def test_a_long_text_is_an_error_or_loses_its_end(st_folder: Path, st_bundle: Path) -> None:
    long = "the cat sat " * 40
    with Model(st_bundle) as model:
        with pytest.raises(StatusError, match="truncate") as error:
            model.embed(["a", long])
        assert error.value.status == libweft.TOO_LONG
        wanted = Embedder(str(st_folder), truncate="head").encode([long])
        assert np.array_equal(model.embed([long], truncate=True), wanted)
        with pytest.raises(StatusError, match="no prompt called verse"):
            model.embed(["a"], role="verse")


def edited(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        change(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return edit


def flip(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return damage


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1])


DAMAGE: dict[str, tuple[Callable[[Path], None], int]] = {
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), libweft.NOT_FOUND),
    "no shard": (lambda folder: (folder / "weights-00001.bin").unlink(), libweft.NOT_FOUND),
    "a flipped bit of weights": (flip("weights-00001.bin"), libweft.FORMAT),
    "a flipped bit of the program": (flip("program.json"), libweft.FORMAT),
    "a flipped bit of the tokenizer": (flip("tokenizer.bin"), libweft.FORMAT),
    "a short shard": (cut("weights-00001.bin"), libweft.FORMAT),
    "half a manifest": (cut("manifest.json"), libweft.FORMAT),
    "a later version": (edited(lambda m: m.update(weft_bundle=2)), libweft.UNSUPPORTED),
    "another kind": (edited(lambda m: m.update(kind="oracle")), libweft.UNSUPPORTED),
    "a file elsewhere": (edited(lambda m: m["files"].update({"../x": {"bytes": 0, "sha256": ""}})), libweft.FORMAT),
    "a weight outside": (edited(lambda m: m["weights"][0].update(offset=1 << 40)), libweft.FORMAT),
    "a weight of another shape": (edited(lambda m: m["weights"][0].update(shape=[1, 1])), libweft.INPUT),
    "a weight too few": (edited(lambda m: m["weights"].pop()), libweft.FORMAT),
    "more tokens than positions": (edited(lambda m: m["embed"].update(max_tokens=100_000)), libweft.FORMAT),
    "no tokenizer": (edited(lambda m: m.update(tokenizer=None)), libweft.NOT_FOUND),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_bundle_is_refused(st_bundle: Path, tmp_path: Path, damage: str) -> None:
    folder = shutil.copytree(st_bundle, tmp_path / "b.weft")
    change, status = DAMAGE[damage]
    change(folder)
    with pytest.raises(StatusError) as error:
        Model(folder)
    assert error.value.status == status, error.value
    assert error.value.message.startswith("[")


def test_a_bundle_is_replaced_only_if_asked_and_nothing_else_is(st_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.weft"
    first = export(str(st_folder), out)
    with pytest.raises(InputError, match="exists"):
        export(str(st_folder), out)
    assert export(str(st_folder), out, overwrite=True).digest == first.digest
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(InputError, match="not a bundle"):
        export(str(st_folder), tmp_path / "notes", overwrite=True)
    for name, manifest in (("labels", '{"format": "weft-labels 1"}'), ("app", "[]"), ("odd", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(manifest)
        with pytest.raises(InputError, match="not a bundle"):
            export(str(st_folder), tmp_path / name, overwrite=True)
        assert (tmp_path / name / "manifest.json").read_text() == manifest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app", "b.weft", "labels", "notes", "odd"]


def test_a_bundle_that_is_loaded_as_a_model_says_what_it_is(st_folder: Path, tmp_path: Path) -> None:
    out = export(str(st_folder), tmp_path / "b.weft").path
    with pytest.raises(UnsupportedError, match=r"is a bundle of `weft export`.*name the model"):
        Embedder(str(out))
