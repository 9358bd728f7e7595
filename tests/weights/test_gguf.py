"""GGUF files are read in place and written so that the reference reads them; split files are read whole."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.dtype import DTYPES
from weft.errors import FormatError, InputError, NotFoundError, UnsupportedError
from weft.weights import StringArray, TensorView, open_gguf, open_weights, quantise, write_gguf

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "u8": np.uint8(255),
    "i8": np.int8(-128),
    "u16": np.uint16(65535),
    "i16": np.int16(-32768),
    "u32": np.uint32((1 << 32) - 1),
    "i32": np.int32(-(1 << 31)),
    "f32": np.float32(1.5),
    "bool": True,
    "string": "é\n",
    "u64": np.uint64((1 << 64) - 1),
    "i64": np.int64(-(1 << 63)),
    "f64": np.float64(1e300),
    "plain int": 7,
    "negative int": -7,
    "large int": 1 << 40,
    "plain float": 0.25,
    "strings": ["a", "", "é", "x" * 1000],
    "bools": np.array([True, False, True]),
    "ints": [1, 2, -3],
    "floats": [0.5, 1.0],
    "no strings": [],
    **{
        f"array {kind}": np.arange(5).astype(kind)
        for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u8", "i8", "f8")
    },
}


def tensors() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    packed = {
        d.name: TensorView(d, (2, 2 * d.block), rng.integers(0, 256, 4 * d.size_bytes, dtype=np.uint8))
        for d in DTYPES.values()
        if d.gguf is not None and d.numpy is None
    }
    dense = {kind: rng.standard_normal((2, 3, 4)).astype(kind) for kind in ("f4", "f2", "f8")}
    return {
        **packed,
        **dense,
        **{kind: np.arange(5).astype(kind) for kind in ("i1", "i2", "i4", "i8")},
        "row": np.ones(3, "f4"),
    }


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", tensors(), METADATA)
    with open_gguf(tmp_path / "x.gguf") as file:
        assert list(file.metadata) == list(METADATA) and list(file.tensors) == list(tensors())
        for key, value in METADATA.items():
            assert list(np.atleast_1d(file.metadata[key])) == list(np.atleast_1d(value)), key
        for name, value in tensors().items():
            view = TensorView.of(value)
            assert file[name].shape == view.shape and file[name].dtype == view.dtype
            assert np.array_equal(file[name].bytes(), view.bytes())


def test_values_keep_their_types(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", {}, METADATA)
    types = {key: str(value) for key, value in open_gguf(tmp_path / "x.gguf").metadata.values_by_key.items()}
    for key in ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "u64", "i64", "f64"):
        assert types[key] == key
    assert (types["plain int"], types["negative int"], types["large int"], types["plain float"]) == (
        "u32",
        "i32",
        "i64",
        "f32",
    )
    assert (types["ints"], types["floats"], types["bools"]) == ("array of i32", "array of f32", "array of bool")
    assert types["strings"] == types["no strings"] == "array of string"


def test_the_reference_reads_what_is_written(tmp_path: Path) -> None:
    reader = pytest.importorskip("gguf").GGUFReader
    write_gguf(tmp_path / "x.gguf", tensors(), METADATA)
    read = reader(tmp_path / "x.gguf")
    for key, value in METADATA.items():
        if key != "no strings":
            assert list(np.atleast_1d(read.fields[key].contents())) == list(np.atleast_1d(value)), key
    for tensor in read.tensors:
        assert tensor.data.tobytes() == TensorView.of(tensors()[tensor.name]).bytes().tobytes(), tensor.name


@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_files_equal_the_reference_byte_for_byte(tmp_path: Path, alignment: int) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "llama")
    writer.add_custom_alignment(alignment)
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("eps", 1e-5)
    writer.add_array("tokens", ["a", "bc"])
    writer.add_array("types", [1, 3])
    weights = quantise(np.random.default_rng(0).standard_normal((3, 64)), "q5_0")
    writer.add_tensor("w", weights.bytes().reshape(3, -1), raw_dtype=gguf.GGMLQuantizationType.Q5_0)
    writer.add_tensor("b", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = {"general.architecture": "llama", "general.alignment": alignment, "llama.block_count": 2, "eps": 1e-5}
    lists = {"tokens": ["a", "bc"], "types": [1, 3]}
    write_gguf(tmp_path / "ours.gguf", {"w": weights, "b": np.arange(5, dtype=np.float32)}, {**metadata, **lists})
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def test_a_file_can_be_rewritten_from_what_was_read(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", tensors(), METADATA)
    file = open_gguf(tmp_path / "x.gguf")
    write_gguf(tmp_path / "y.gguf", file.tensors, file.metadata.stored())
    assert (tmp_path / "y.gguf").read_bytes() == (tmp_path / "x.gguf").read_bytes()


def test_string_lists_stay_in_the_file_until_read(tmp_path: Path) -> None:
    words = [b"a", b"", "é".encode(), b"\xff\xfe", b"last"]
    write_gguf(tmp_path / "x.gguf", {}, {"words": words})
    strings = open_gguf(tmp_path / "x.gguf").metadata["words"]
    assert isinstance(strings, StringArray) and len(strings) == 5
    assert [strings.raw(i) for i in range(5)] == words
    assert list(strings) == strings[:] == ["a", "", "é", "��", "last"]
    assert strings[-1] == "last" and strings[1:4:2] == ["", "��"] and "é" in strings
    with pytest.raises(IndexError):
        strings[5]


def test_accessors_check_types_and_name_the_key(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", {}, METADATA)
    meta = open_gguf(tmp_path / "x.gguf").metadata
    assert meta.get_int("u8") == 255 and meta.get_int("i8", low=-200) == -128 and meta.get_float("f64") == 1e300
    assert meta.get_bool("bool") is True and meta.get_str("string") == "é\n"
    assert (
        meta.get_int("absent", 5) == 5 and meta.get_str("absent", "") == "" and meta.get_bool("absent", False) is False
    )
    assert list(meta.get_array("ints", "int")) == [1, 2, -3] and list(meta.get_array("absent", "str", ())) == []
    for read in (meta.get_int, meta.get_float, meta.get_bool, meta.get_str, lambda key: meta.get_array(key, "int")):
        with pytest.raises(FormatError, match=r"\[x\.gguf\] absent is missing"):
            read("absent")


@pytest.mark.parametrize("key", list(METADATA))
def test_a_wrong_type_is_refused_by_every_accessor(tmp_path: Path, key: str) -> None:
    write_gguf(tmp_path / "x.gguf", {}, METADATA)
    meta = open_gguf(tmp_path / "x.gguf").metadata
    right = str(meta.values_by_key[key])
    element = right.removeprefix("array of ")
    kind = {"bool": "bool", "string": "str"}.get(element, "float" if element.startswith("f") else "int")
    scalars = {"int": meta.get_int, "float": meta.get_float, "bool": meta.get_bool, "str": meta.get_str}
    for name, read in scalars.items():
        if name != kind or right.startswith("array"):
            with pytest.raises(FormatError, match=f"{key} must be of type {name}, not {right}"):
                read(key)
        if name != kind or not right.startswith("array"):
            with pytest.raises(FormatError, match=f"{key} must be an array of {name}"):
                meta.get_array(key, name)


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", {}, {"n": np.uint64((1 << 64) - 1), "x": np.float32("nan"), "s": b"\xff"})
    meta = open_gguf(tmp_path / "x.gguf").metadata
    for read, key in ((meta.get_int, "n"), (meta.get_float, "x"), (meta.get_str, "s")):
        with pytest.raises(FormatError, match=rf"\[x\.gguf\] {key} (must be|is not)"):
            read(key)


def split(folder: Path, parts: int = 3) -> Path:
    for i in range(parts):
        own = {"split.no": np.uint16(i), "split.count": np.uint16(parts), "split.tensors.count": np.int32(2 * parts)}
        first = {"general.architecture": "llama", "llama.block_count": 1} if i == 0 else {}
        weights = {f"t{2 * i + k}": np.full(3, 2 * i + k, np.float32) for k in range(2)}
        write_gguf(folder / f"m-{i + 1:05}-of-{parts:05}.gguf", weights, {**first, **own})
    return folder / f"m-00001-of-{parts:05}.gguf"


def test_any_part_of_a_split_model_opens_the_whole(tmp_path: Path) -> None:
    split(tmp_path)
    for path in (*sorted(tmp_path.glob("*.gguf")), tmp_path):
        with open_weights(path) as file:
            assert file.metadata.get_int("llama.block_count") == 1 and len(file.files) == 3
            assert [int(file[f"t{i}"].numpy()[0]) for i in range(6)] == list(range(6))


def test_the_reference_can_split(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full(3, i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(tmp_path / "m-00001-of-00003.gguf")
    assert [int(file[f"t{i}"].numpy()[0]) for i in range(5)] == list(range(5))


def test_a_split_model_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    first = split(tmp_path)
    second, third = first.with_name("m-00002-of-00003.gguf"), first.with_name("m-00003-of-00003.gguf")
    renamed = first.rename(tmp_path / "other.gguf")
    with pytest.raises(FormatError, match="parts are called"):
        open_gguf(renamed)
    renamed.rename(first)
    kept = second.read_bytes()
    second.write_bytes(third.read_bytes())
    with pytest.raises(FormatError, match=r"split\.no"):
        open_gguf(first)
    write_gguf(second, {"t0": np.ones(1, "f4")}, {"split.no": np.uint16(1), "split.count": np.uint16(3)})
    with pytest.raises(FormatError, match="earlier part"):
        open_gguf(first)
    write_gguf(second, {"x": np.ones(1, "f4")}, {"split.no": np.uint16(1), "split.count": np.uint16(3)})
    with pytest.raises(FormatError, match=r"split\.tensors\.count"):
        open_gguf(first)
    second.unlink()
    with pytest.raises(NotFoundError, match="m-00002-of-00003"):
        open_gguf(first)
    second.write_bytes(kept)
    assert len(open_gguf(first).tensors) == 6


def test_what_the_format_cannot_hold_is_not_written(tmp_path: Path) -> None:
    one = np.ones(1, np.float32)
    for bad, metadata in [
        ({"w": np.ones(1, np.uint8)}, {}),
        ({"w": np.ones((1, 1, 1, 1, 1), np.float32)}, {}),
        ({"w": np.ones((0, 2), np.float32)}, {}),
        ({"x" * 64: one}, {}),
        ({"": one}, {}),
        ({}, {"k": [[1, 2], [3, 4]]}),
        ({}, {"k": [1, "x"]}),
        ({}, {"k": None}),
        ({}, {"": 1}),
        ({}, {"k": 1 << 70}),
        ({}, {"general.alignment": 12}),
    ]:
        with pytest.raises(InputError):
            write_gguf(tmp_path / "x.gguf", bad, metadata)
    assert os.listdir(tmp_path) == []


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UnsupportedError, match="pickle"):
        open_weights(tmp_path / "model.bin")


def test_a_folder_without_weights_or_with_a_choice_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no model\.safetensors\.index\.json"):
        open_weights(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / name, {}, {})
    with pytest.raises(NotFoundError, match=r"a\.gguf, b\.gguf"):
        open_weights(tmp_path)
