"""safetensors files are read in place, written as the reference writes them, and let go page by page."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from weft.dtype import DTYPES
from weft.errors import InputError, UnsupportedError, WeightError
from weft.weights import TensorView, open_safetensors, open_weights, quantise, write_safetensors


def sample() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    kinds = ("f4", "f2", "i1", "u1", "i2", "i4", "i8", "f8", "?")
    arrays = {f"{kind}.weight": (rng.standard_normal((3, 5)) * 9).astype(kind) for kind in kinds}
    return {
        **arrays,
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.int64),
        'é"\n': np.ones(3, np.float16),
    }


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", sample(), {"format": "pt", "note": "é"})
    with open_safetensors(tmp_path / "x.safetensors") as file:
        assert file.metadata == {"format": "pt", "note": "é"}
        assert set(file.tensors) == set(sample())
        for name, array in sample().items():
            assert file[name].shape == array.shape and file[name].numpy().dtype == array.dtype
            assert np.array_equal(file[name].numpy(), array)
        assert file.nbytes == sum(a.nbytes for a in sample().values())


def test_files_equal_the_reference_byte_for_byte(tmp_path: Path) -> None:
    save = pytest.importorskip("safetensors.numpy").save
    for metadata in (None, {}, {"format": "pt"}):
        write_safetensors(tmp_path / "x.safetensors", sample(), metadata)
        assert (tmp_path / "x.safetensors").read_bytes() == save(sample(), metadata)


def test_the_reference_reads_what_is_written(tmp_path: Path) -> None:
    load = pytest.importorskip("safetensors.numpy").load_file
    write_safetensors(tmp_path / "x.safetensors", sample())
    loaded = load(tmp_path / "x.safetensors")
    assert all(np.array_equal(loaded[name], array) for name, array in sample().items())


def test_bfloat_is_written_from_a_view_and_read_as_floats(tmp_path: Path) -> None:
    values = np.random.default_rng(2).standard_normal((4, 4)).astype(np.float32)
    write_safetensors(tmp_path / "x.safetensors", {"w": quantise(values, "bf16")})
    tensor = open_safetensors(tmp_path / "x.safetensors")["w"]
    assert tensor.dtype == DTYPES["bf16"] and tensor.nbytes == 32
    assert tensor.numpy().dtype == np.float32 and np.abs(tensor.numpy() - values).max() < 0.02


def test_types_without_arithmetic_open_but_have_no_values(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}'
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")
    tensor = open_safetensors(tmp_path / "x.safetensors")["w"]
    assert tensor.bytes().tobytes() == b"abcd"
    with pytest.raises(UnsupportedError, match="f8_e4m3"):
        tensor.numpy()


def test_views_look_into_the_mapping_and_outlive_the_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", {"w": np.arange(1000, dtype=np.float32)})
    file = open_safetensors(tmp_path / "x.safetensors")
    first, second = file["w"].bytes(), file["w"].bytes()
    assert first.ctypes.data == second.ctypes.data and not first.flags.writeable
    values = file["w"].numpy()
    file.close()
    assert values.sum() == 499500
    with pytest.raises(InputError, match="closed"):
        file["w"].bytes()


def test_an_unknown_name_is_a_weight_error(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", {})
    with pytest.raises(WeightError, match="no tensor called 'w'"):
        open_safetensors(tmp_path / "x.safetensors")["w"]


def sharded(folder: Path) -> Path:
    names = [f"layer.{i}" for i in range(6)]
    shards = {name: f"model-0000{i % 3 + 1}-of-00003.safetensors" for i, name in enumerate(names)}
    for shard in set(shards.values()):
        write_safetensors(folder / shard, {n: np.full(4, int(n[-1])) for n in names if shards[n] == shard})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 192}, "weight_map": shards}), encoding="utf-8")
    return index


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    for path in (index, tmp_path):
        with open_weights(path) as file:
            assert len(file.files) == 3 and len(file.tensors) == 6
            assert all((t.numpy() == int(name[-1])).all() for name, t in file.tensors.items())


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"w": np.zeros(2, np.float32)})
    before = path.read_bytes()

    def fail(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_safetensors(path, {"w": np.ones(2, np.float32)})
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x.safetensors"]


def test_what_the_format_cannot_hold_is_not_written(tmp_path: Path) -> None:
    for tensors, metadata in [
        ({"w": quantise(np.zeros(32, np.float32), "q8_0")}, None),
        ({"__metadata__": np.zeros(1, np.float32)}, None),
        ({"w": np.zeros(1, np.complex128)}, None),
        ({}, {"k": 1}),
    ]:
        with pytest.raises(InputError):
            write_safetensors(tmp_path / "x.safetensors", tensors, metadata)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")
def test_released_tensors_leave_memory_and_can_be_read_again(tmp_path: Path) -> None:
    size = 32 << 20
    write_safetensors(tmp_path / "x.safetensors", {name: np.full(size, i, np.uint8) for i, name in enumerate("abcd")})
    file = open_safetensors(tmp_path / "x.safetensors")
    start = resident_bytes()
    peak = 0
    for i, (name, tensor) in enumerate(file.tensors.items()):
        assert int(tensor.bytes()[::4096].sum()) == i * size // 4096
        peak = max(peak, resident_bytes() - start)
        file.release(name)
    assert size // 2 < peak < 2 * size
    assert resident_bytes() - start < size // 2
    assert (file["b"].bytes()[::4096] == 1).all()


def test_opening_reads_only_the_header(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = b'{"w":{"dtype":"U8","shape":[68719476736],"data_offsets":[0,68719476736]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    try:
        os.truncate(path, 8 + len(header) + (1 << 36))
    except OSError:
        pytest.skip("the file system has no sparse files of this size")
    assert open_safetensors(path)["w"].nbytes == 1 << 36


def test_a_view_of_a_foreign_byte_order_is_stored_little_endian() -> None:
    assert TensorView.of(np.array([1], ">i4")).bytes().tobytes() == b"\1\0\0\0"
