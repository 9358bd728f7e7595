"""Files of models that weft does not read: what they are, by their first bytes, and what to use instead.

Only headers are read, and nothing in them is run: a pickle is recognised, never opened.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from weft.frozen import frozen

HEAD_BYTES = 4096
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")  # endings
VARINT_BYTES = 10
MAX_FIELDS = 64  # of a message that are looked at
ONNX_FIELDS = {*range(1, 9), 14, 20, 25, 26}
CORE_ML_FIELDS = {2, 10, *range(200, 3001)}
MAX_MEMBERS = 10_000  # of an archive that are looked at
ELSEWHERE = "use the safetensors or GGUF version of the model"
CONVERT = "convert it to safetensors where you trust it (safetensors.torch.save_file), or " + ELSEWHERE
UNPACK = "unpack it, and inspect what is in it"

Read = Callable[[int, int], bytes]  # some bytes of a file: from where, and at most how many


@frozen
class Foreign:
    """What a file is, such as "an ONNX model", some details of it, and what to do."""

    kind: str
    advice: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.details})" if self.details else self.kind


# Formats that their first bytes tell: where these are, the bytes, what the file is, what to do.
SIGNATURES: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself", "fetch the file: git lfs pull"),
    (4, b"TFL3", "a TensorFlow Lite model", ELSEWHERE),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes", ELSEWHERE),
    (4, b"ET12", "an ExecuTorch program", ELSEWHERE),
    (4, b"ORTM", "an ONNX Runtime model", ELSEWHERE),
    (0, b"lmgg", "a GGML file, the format before GGUF", "use the GGUF version of the model"),
    (0, b"fmgg", "a GGMF file, the format before GGUF", "use the GGUF version of the model"),
    (0, b"tjgg", "a GGJT file, the format before GGUF", "use the GGUF version of the model"),
    (0, b"algg", "a LoRA adapter in the format before GGUF", "use the adapter's safetensors folder (PEFT)"),
    (0, b"\x93NUMPY", "a numpy array", "load it with numpy.load; a model needs its safetensors or GGUF file"),
    (0, b"7767517\n", "an ncnn model", ELSEWHERE),
    (0, b"ptrt", "a TensorRT engine", ELSEWHERE),
    (0, b"ftrt", "a TensorRT engine", ELSEWHERE),
    (0, b"SQLite format 3\0", "a SQLite database", "search a store of weft with `weft search`"),
    (0, b"PAR1", "a Parquet file", "embed its texts with `weft embed --input`"),
    (0, b"%PDF-", "a PDF document", "extract its text first"),
    (0, b"\x1f\x8b", "a gzip archive", UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive", UNPACK),
    (0, b"\xfd7zXZ\0", "an xz archive", UNPACK),
    (0, b"BZh", "a bzip2 archive", UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (257, b"ustar", "a tar archive", UNPACK),
    (0, b"\x7fELF", "a program or library", ELSEWHERE),
)
FOLDERS = {  # a file or folder that only such a folder has
    "saved_model.pb": ("a TensorFlow SavedModel", ELSEWHERE),
    "coremldata.bin": ("a compiled Core ML model", ELSEWHERE),
    "Data/com.apple.CoreML": ("a Core ML package", ELSEWHERE),
    "openvino_model.xml": ("an OpenVINO model", ELSEWHERE),
    "pytorch_model.bin": ("a folder with a PyTorch checkpoint, which is a pickle", CONVERT),
    "tf_model.h5": ("a folder with Keras weights", ELSEWHERE),
    "flax_model.msgpack": ("a folder with Flax weights", ELSEWHERE),
    "model.onnx": ("a folder with an ONNX model", ELSEWHERE),
    "onnx/model.onnx": ("a folder with an ONNX model", ELSEWHERE),
}


def identify(path: str | os.PathLike[str]) -> Foreign | None:
    """What a file or folder is, if it is of a known kind that weft does not read; None if it is not, or if its first
    bytes are those of GGUF or safetensors."""
    place = Path(path)
    if place.is_dir():
        named = next((said for name, said in FOLDERS.items() if (place / name).exists()), None)
        return None if named is None else Foreign(*named)
    try:
        with open(place, "rb") as file:
            return _identified(place, file)
    except OSError:
        return None


def _identified(path: Path, file: BinaryIO) -> Foreign | None:
    def read(at: int, count: int) -> bytes:
        file.seek(at)
        return file.read(count)

    size, head = os.fstat(file.fileno()).st_size, read(0, HEAD_BYTES)
    if head.startswith(b"GGUF") or head[8:9] == b"{":  # after the length of the header, in safetensors
        return None
    for at, signature, kind, advice in SIGNATURES:
        if head[at : at + len(signature)] == signature:
            return Foreign(kind, advice)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06") or head.startswith(b"MZqFpD"):
        return _archive(path, head)
    if read(max(0, size - 8), 8) == b"\x57\xfb\x80\x8b\x24\x75\x47\xdb":
        return Foreign("the index of a TensorFlow checkpoint", ELSEWHERE)
    return _pickle(head) or _llama2c(head, size) or _message(read, size) or _text(path, head, size)


def _archive(path: Path, head: bytes) -> Foreign:
    """A zip file, by the names in it."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as opened:
            names = [info.filename for info in opened.infolist()[:MAX_MEMBERS]]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return Foreign("a damaged zip archive", "download it again")
    held = {name.partition("/")[2] for name in names} | set(names)
    ggufs = [name for name in names if name.endswith(".gguf")]
    if ggufs and head.startswith(b"MZ"):
        return Foreign("a llamafile: a program with a GGUF file in it", f"unpack that: unzip {path.name} {ggufs[0]}")
    if "data.pkl" in held and any(name.startswith("code/") for name in held):
        return Foreign("a TorchScript program", CONVERT)
    if "data.pkl" in held:
        return Foreign("a PyTorch checkpoint, which is a pickle that can run code when it is loaded", CONVERT)
    if {"metadata.json", "config.json"} <= held and "model.weights.h5" in held:
        return Foreign("a Keras model", ELSEWHERE)
    if names and all(name.endswith(".npy") for name in names):
        return Foreign("a numpy archive (.npz)", ELSEWHERE)
    if any("com.apple.CoreML" in name for name in names):
        return Foreign("a zipped Core ML package", ELSEWHERE)
    return Foreign("a zip archive", UNPACK, f"{len(names)} files")


def _pickle(head: bytes) -> Foreign | None:
    if head.startswith(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."):  # the magic number of torch.save before 1.6
        return Foreign("a PyTorch checkpoint, which is a pickle that can run code when it is loaded", CONVERT)
    protocol = head[1] if head[:1] == b"\x80" and len(head) > 2 else 0
    if protocol in (2, 3) or (protocol in (4, 5) and head[2:3] == b"\x95"):
        return Foreign("a Python pickle, which can run code when it is loaded", CONVERT, f"protocol {protocol}")
    return None


def _llama2c(head: bytes, size: int) -> Foreign | None:
    """A checkpoint of llama2.c: seven sizes and then floats, whose number follows from the sizes."""
    advice = "use the model's safetensors or GGUF version, or convert it with llama.cpp's convert-llama2c-to-ggml"
    if head[:4] == struct.pack("<I", 0x616B3432) and len(head) >= 36:
        version, dim, _, layers, heads = struct.unpack_from("<5i", head, 4)
        details = f"version {version}, {layers} layers of {dim}, {heads} heads"
        return Foreign("a checkpoint of llama2.c", advice, details) if version in (1, 2) else None
    if len(head) < 28:
        return None
    dim, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack_from("<7i", head)
    sizes = (dim, hidden, layers, heads, kv_heads, abs(vocabulary), length)
    if min(sizes) < 1 or max(sizes) > 1 << 24 or dim % heads:
        return None
    per_head = dim // heads
    block = 2 * dim + 2 * dim * dim + 2 * dim * kv_heads * per_head + 3 * dim * hidden
    floats = abs(vocabulary) * dim * (1 if vocabulary > 0 else 2) + layers * block + dim + length * per_head
    if size != 28 + 4 * floats:
        return None
    details = f"{layers} layers of {dim}, {heads} heads, {abs(vocabulary)} tokens"
    return Foreign("a checkpoint of llama2.c", advice, details)


def _message(read: Read, size: int) -> Foreign | None:
    """A model in Protocol Buffers: ONNX, Core ML or TensorFlow, by the numbers and types of its fields."""
    fields = list(_fields(read, size))
    numbers = {field.number for field in fields}
    if not fields or fields[0].number != 1:
        return None
    first, others = fields[0], numbers - {1}
    if first.bytes is not None:
        is_graph = numbers <= {1, 2, 3, 4} and _is_node(first.bytes)
        return Foreign("a TensorFlow graph", ELSEWHERE) if is_graph else None
    if {7, 8} & numbers and numbers <= ONNX_FIELDS:
        texts = [field.bytes.decode("utf-8", "replace") for field in fields if field.number in (2, 3) and field.bytes]
        maker = f", by {' '.join(texts)[:60]}" if texts else ""
        return Foreign("an ONNX model", ELSEWHERE, f"IR version {first.value}{maker}")
    if others and others <= CORE_ML_FIELDS and max(others) >= 200:
        return Foreign("a Core ML model", ELSEWHERE, f"specification version {first.value}")
    return Foreign("a TensorFlow SavedModel", ELSEWHERE) if others == {2} and first.value == 1 else None


def _is_node(data: bytes) -> bool:
    """Whether a message begins as a TensorFlow node does: its name, and then its operation."""
    found = list(_fields(lambda at, count: data[at : at + count], len(data)))[:2]
    names = [field.bytes for field in found if field.bytes and field.bytes.isascii()]
    return [field.number for field in found] == [1, 2] and len(names) == 2


@frozen
class _Field:
    """A field of a message: a number, or the first bytes of what it holds."""

    number: int
    value: int = 0
    bytes: bytes | None = None


def _fields(read: Read, size: int) -> Iterator[_Field]:
    """The first fields of a message of `size` bytes, up to a byte that no message has there."""
    at = 0
    for _ in range(MAX_FIELDS):
        if at >= size:
            return
        (key, after), head = _varint(data := read(at, 2 * VARINT_BYTES), 0), at
        kind, number = key & 7, key >> 3
        if key < 0 or number == 0 or kind not in (0, 1, 2, 5):
            return
        value, after = _varint(data, after) if kind in (0, 2) else (8 if kind == 1 else 4, after)
        at = head + after + (0 if kind == 0 else value)
        if value < 0 or at > size:
            return
        yield _Field(number, value, read(head + after, min(value, HEAD_BYTES)) if kind == 2 else None)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer that begins at `at`, and where it ends; -1 if it is cut off or too long."""
    value = 0
    for place, byte in enumerate(data[at : at + VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return -1, len(data)


def _text(path: Path, head: bytes, size: int) -> Foreign | None:
    """A text file: a page that was downloaded instead of a model, XML, JSON, or something else."""
    try:
        text = head.decode("utf-8-sig").lstrip()
    except UnicodeDecodeError as error:
        if len(head) - error.start > 3 or size <= len(head):  # else a character that the head cuts
            return None
        text = head[: error.start].decode("utf-8-sig").lstrip()
    low = text[:200].lower()
    if low.startswith(("<!doctype html", "<html")):
        return Foreign("an HTML page, not a model", "the download failed, or was of a page: download the file itself")
    if low.startswith("<?xml") and "<net" in text:
        return Foreign("an OpenVINO model (its XML part)", ELSEWHERE)
    if low.startswith("model_checkpoint_path"):
        return Foreign("the list of a TensorFlow checkpoint", ELSEWHERE)
    if not text or "\0" in text or not text[0].isprintable() or path.suffix.lower() in PICKLES:
        return None  # the oldest pickles are text, too
    return Foreign("a text file, not a model", "give a .gguf or .safetensors file, or the folder of a model")
