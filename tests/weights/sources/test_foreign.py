"""A file of another format is named for what it is, with what to use instead; nothing in it is run."""

import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.errors import UnsupportedError
from weft.weights import write_safetensors
from weft.weights.sources import locate
from weft.weights.sources.foreign import identify

GOLDEN = Path(__file__).parents[2] / "golden" / "weights"


def field(number: int, value: int | bytes) -> bytes:
    """A field of a message in Protocol Buffers."""

    def varint(n: int) -> bytes:
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def llama2c(vocabulary: int = 32) -> bytes:
    """The checkpoint that export.py of llama2.c writes for a tiny model: seven integers, then the tensors."""
    dim, hidden, layers, heads, kv_heads, length = 8, 24, 2, 4, 2, 16
    rows = abs(vocabulary)
    shapes = [(rows, dim), (layers, dim), (layers, dim, dim), (layers, 4, dim), (layers, 4, dim), (layers, dim, dim)]
    shapes += [(layers, dim), (layers, hidden, dim), (layers, dim, hidden), (layers, hidden, dim), (dim,)]
    shapes += [(length, 1), (length, 1)] + ([(rows, dim)] if vocabulary < 0 else [])
    head = struct.pack("<7i", dim, hidden, layers, heads, kv_heads, vocabulary, length)
    return head + b"".join(np.ones(shape, "<f4").tobytes() for shape in shapes)


def archive(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as opened:
        for name in names:
            opened.writestr(name, b"x")
    return out.getvalue()


def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as opened:
        opened.addfile(tarfile.TarInfo("a"))
    return out.getvalue()


def numpy_file(save: Callable[..., None]) -> bytes:
    out = io.BytesIO()
    save(out, np.ones(3))
    return out.getvalue()


NODE = field(1, field(1, b"input") + field(2, b"Placeholder") + field(5, b"\n\x05dtype"))
FILES: dict[str, tuple[bytes, str]] = {
    "stories.bin": (llama2c(), "a checkpoint of llama2.c (2 layers of 8, 4 heads, 32 tokens)"),
    "untied.bin": (llama2c(-32), "a checkpoint of llama2.c (2 layers of 8, 4 heads, 32 tokens)"),
    "v1.bin": (struct.pack("<I8i", 0x616B3432, 1, 8, 24, 2, 4, 2, 32, 16) + bytes(220), "a checkpoint of llama2.c"),
    "m.onnx": (field(1, 8) + field(2, b"pytorch") + field(7, b"x" * 9000) + field(8, b"\x10\x11"), "an ONNX model"),
    "saved_model.pb": (field(1, 1) + field(2, b"x" * 9000), "a TensorFlow SavedModel"),
    "frozen.pb": (NODE * 3 + field(4, b"\x08\x01"), "a TensorFlow graph"),
    "m.mlmodel": (field(1, 4) + field(2, b"x" * 9000) + field(500, b"y" * 99), "a Core ML model"),
    "m.tflite": (b"\x1c\0\0\0TFL3" + bytes(99), "a TensorFlow Lite model"),
    "variables.index": (bytes(90) + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb", "the index of a TensorFlow checkpoint"),
    "m.keras": (archive("metadata.json", "config.json", "model.weights.h5"), "a Keras model"),
    "m.pt": (archive("m/data.pkl", "m/data/0", "m/version"), "a PyTorch checkpoint"),
    "script.pt": (archive("m/data.pkl", "m/code/a.py", "m/constants.pkl"), "a TorchScript program"),
    "m.zip": (archive("a.txt", "b.txt"), "a zip archive (2 files)"),
    "broken.zip": (archive("a.txt")[:30], "a damaged zip archive"),
    "m.tar": (tar(), "a tar archive"),
    "m.gz": (b"\x1f\x8b\x08" + bytes(20), "a gzip archive"),
    "m.pkl": (pickle.dumps({"w": [1.0]}), "a Python pickle"),
    "old.pkl": (pickle.dumps([1], protocol=2), "a Python pickle"),
    "m.npy": (numpy_file(np.save), "a numpy array"),
    "m.npz": (numpy_file(np.savez), "a numpy archive"),
    "old.ggml": (b"lmgg" + bytes(99), "a GGML file"),
    "old.ggjt": (b"tjgg" + bytes(99), "a GGJT file"),
    "llava.llamafile": (b"MZqFpD='" + bytes(80) + archive("model.gguf"), "a llamafile"),
    "pointer.gguf": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git LFS pointer"),
    "page.safetensors": (b"<!DOCTYPE html><html>Sign in</html>", "an HTML page"),
    "ov.xml": (b'<?xml version="1.0"?>\n<net name="m" version="11">', "an OpenVINO model"),
    "readme.md": ("Schöne Grüße".encode() * 500, "a text file"),
}
REAL = {
    "tiny.onnx": "an ONNX model (IR version",
    "tiny.mlmodel": "a Core ML model (specification version",
    "tiny.h5": "an HDF5 file",
    "tiny.pt": "a PyTorch checkpoint, which is a pickle",
    "tiny-legacy.pt": "a PyTorch checkpoint, which is a pickle",
    "tiny-script.pt": "a TorchScript program",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_known_by_its_bytes(tmp_path: Path, name: str) -> None:
    data, said = FILES[name]
    for ending in ("", ".safetensors", *([".bin"] if said != "a text file" else [])):  # whatever its name is
        path = tmp_path / f"{name}{ending}"
        path.write_bytes(data)
        found = identify(path)
        assert found is not None and str(found).startswith(said) and found.advice
        with pytest.raises(UnsupportedError) as error:
            locate(path)
        assert said in error.value.what and error.value.advice == found.advice


@pytest.mark.parametrize("name", REAL)
def test_files_of_the_libraries_themselves_are_known(name: str) -> None:
    assert str(identify(GOLDEN / name)).startswith(REAL[name])


@pytest.mark.parametrize(
    "content", [b"", b"\x08", b"\x80", b"\x08" * 50, bytes(64), b"PK\x03\x04", b"\xff" * 5000, bytes(range(256)) * 20]
)
def test_any_bytes_are_answered(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    assert identify(tmp_path / "m") is None or str(identify(tmp_path / "m"))


def test_random_bytes_and_cut_files_are_answered(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    for data, _ in FILES.values():
        for _ in range(20):
            cut = bytearray(data[: draw.integers(1, len(data) + 1)])
            for at in draw.integers(0, len(cut), 3):
                cut[at] = draw.integers(256)
            (tmp_path / "m").write_bytes(cut)
            identify(tmp_path / "m")


def test_what_weft_reads_is_not_foreign(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m.safetensors", {"w": np.ones((4, 4), np.float32)}, {})
    assert identify(tmp_path / "m.safetensors") is None
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(20))
    assert identify(tmp_path / "m.gguf") is None and identify(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("saved_model.pb", "a TensorFlow SavedModel"),
        ("pytorch_model.bin", "a folder with a PyTorch checkpoint"),
        ("Data/com.apple.CoreML/model.mlmodel", "a Core ML package"),
        ("onnx/model.onnx", "a folder with an ONNX model"),
    ],
)
def test_a_folder_of_another_format_is_named(tmp_path: Path, inside: str, said: str) -> None:
    (tmp_path / "m" / inside).parent.mkdir(parents=True)
    (tmp_path / "m" / inside).write_bytes(b"x")
    assert said in str(identify(tmp_path / "m"))


def test_loading_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "stories.bin").write_bytes(llama2c())
    (tmp_path / "m.onnx").write_bytes(FILES["m.onnx"][0])
    for name, said in (("stories.bin", "a checkpoint of llama2.c"), ("m.onnx", "an ONNX model")):
        for load in (weft.load, weft.Embedder):
            with pytest.raises(UnsupportedError, match=said):
                load(str(tmp_path / name))
