"""Tensors in mapped files, whatever the format: what a reader gives and a writer takes.

A file is mapped read-only and never copied. Views keep the mapping alive, so closing a file while an array still looks
into it is safe. A file must not be cut short by others while it is mapped: the kernel then ends the process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from weft.dtype import BY_GGUF, DTYPES, DType
from weft.errors import FormatError, InputError, NotFoundError, UnsupportedError, WeightError

if TYPE_CHECKING:
    import numpy as np

OPEN_FILES = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")


class MappedFile:
    """One regular file, mapped read-only; `name` is what messages call it (no folder)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = self.path.name
        handle = _open_regular(self.path)
        try:
            self._map: mmap.mmap | None = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise FormatError(f"[weights] {self.name} is empty") from None
        except OSError as error:
            raise NotFoundError(f"[weights] {self.name} cannot be mapped: {error.strerror}") from None
        finally:
            os.close(handle)
        self.size = len(self._map)

    def slice(self, start: int = 0, end: int | None = None) -> memoryview:
        """Bytes start..end of the mapping, read-only; no copy."""
        if self._map is None:
            raise InputError(f"[weights] {self.name} is closed")
        end = self.size if end is None else end
        assert 0 <= start <= end <= self.size, "a view outside its file"
        return memoryview(self._map)[start:end]

    def view(self, start: int = 0, end: int | None = None) -> np.ndarray:
        """The same as an array of uint8."""
        import numpy as np

        return np.frombuffer(self.slice(start, end), np.uint8)

    def release(self, start: int, end: int) -> None:
        """Give the memory of the pages that hold start..end back; they are read again from the file when touched."""
        page = mmap.ALLOCATIONGRANULARITY
        first, last = start // page * page, min(-(-end // page) * page, self.size)
        if self._map is not None and last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def read_ahead(self) -> None:
        """Ask the system to read all of the file soon, where it is not in memory yet."""
        if self._map is not None and hasattr(mmap, "MADV_WILLNEED"):
            self._map.madvise(mmap.MADV_WILLNEED)

    def close(self) -> None:
        """Let go of the mapping; it ends when the last view into it does."""
        self._map = None


def _open_regular(path: Path) -> int:
    # O_NONBLOCK: opening a pipe must not wait for a writer; it means nothing for a regular file.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"[weights] no such file: {path.name}") from None
    except OSError as error:
        raise NotFoundError(f"[weights] {path.name} cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FormatError(f"[weights] {path.name} is not a regular file")
    return handle


class TensorView:
    """A tensor in its stored form: `data` holds the bytes of `shape` (outermost first) elements of `dtype`."""

    def __init__(self, dtype: DType, shape: tuple[int, ...], data: Any) -> None:
        self.dtype = dtype
        self.shape = tuple(int(n) for n in shape)
        self._data = _as_bytes(data)
        if self.dtype.quantised and (not self.shape or self.shape[-1] % self.dtype.block):
            raise WeightError(f"[weights] rows of {self.shape} are not whole blocks of {dtype.block} ({dtype})")
        if self._data.size != self.nbytes:
            raise WeightError(f"[weights] {self._data.size} bytes do not hold {self.shape} of {dtype}: {self.nbytes}")

    @classmethod
    def of(cls, value: Any) -> TensorView:
        """`value` itself where it is a stored tensor, else an array in the element type it has."""
        import numpy as np

        if isinstance(value, TensorView):
            return value
        array = np.asarray(value)
        stored = array.dtype.newbyteorder("<")
        dtype = next((d for d in DTYPES.values() if d.numpy is not None and np.dtype(d.numpy) == stored), None)
        if dtype is None:
            raise InputError(f"[weights] arrays of {array.dtype} are not stored; convert to a type of weft.dtype")
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
        return cls(dtype, array.shape, little)

    @property
    def size(self) -> int:
        """How many elements."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.size)

    def bytes(self) -> np.ndarray:
        """The stored bytes, uint8 [nbytes]; no copy."""
        return self._data

    def buffer(self) -> Any:
        """The same as something that the core reads; no array is made."""
        return self.bytes()

    def take(self, order: Any) -> TensorView:
        """The entries `order` of the first axis, in stored form: rows of blocks move whole."""
        if self.dtype.quantised and len(self.shape) < 2:
            raise WeightError(f"[weights] the elements of {self.shape} of {self.dtype} cannot be taken one by one")
        entries = self.bytes().reshape(self.shape[0], -1)[order]
        return TensorView(self.dtype, (len(order), *self.shape[1:]), entries)

    def numpy(self) -> np.ndarray:
        """The values in `shape`: a read-only view where numpy has the type, else float32 (bf16 and quantised)."""
        if self.dtype.numpy is not None:
            return self.bytes().view(self.dtype.numpy).reshape(self.shape)
        if self.dtype.gguf not in BY_GGUF:
            raise UnsupportedError(f"[weights] values of type {self.dtype} cannot be read; convert the file")
        import numpy as np

        from weft._core import quant

        return np.asarray(quant.dequantise(self.dtype.name, self.bytes(), self.size)).reshape(self.shape)


def _as_bytes(data: Any) -> np.ndarray:
    import numpy as np

    if not isinstance(data, np.ndarray):
        return np.frombuffer(data, np.uint8)
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


class TensorInfo(TensorView):
    """A tensor of a file: its name and place; the bytes are touched only when asked for."""

    def __init__(self, name: str, dtype: DType, shape: tuple[int, ...], file: MappedFile, start: int) -> None:
        """The reader has checked that the tensor lies inside the file and that its rows are whole blocks."""
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self._file = file
        self._start = start

    def bytes(self) -> np.ndarray:
        return self._file.view(self._start, self._start + self.nbytes)

    def buffer(self) -> memoryview:
        return self._file.slice(self._start, self._start + self.nbytes)

    def release(self) -> None:
        """Drop the tensor's resident pages, as after repacking it."""
        self._file.release(self._start, self._start + self.nbytes)

    def __repr__(self) -> str:
        return f"TensorInfo({self.name!r}, {self.dtype}, {list(self.shape)})"


M = TypeVar("M", bound=Mapping[str, Any])


class TensorFile(Generic[M]):
    """The tensors of one model, from one file or several; `metadata` is what the format keeps beside them."""

    def __init__(self, format: str, tensors: Mapping[str, TensorInfo], metadata: M, files: list[MappedFile]) -> None:
        self.format = format
        self.tensors = tensors
        self.metadata = metadata
        self.files = files

    def __getitem__(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            raise WeightError(f"[weights] no tensor called {name!r} in {self.files[0].name}") from None

    def release(self, name: str) -> None:
        """Drop the resident pages of one tensor."""
        self[name].release()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def close(self) -> None:
        """Let go of the files. Arrays already taken stay valid; asking for more is an InputError."""
        for file in self.files:
            file.close()

    def __enter__(self) -> TensorFile[M]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write that takes the name `path` only once it is whole and on disk; see `replacing_path`."""
    with replacing_path(path) as temporary, open(temporary, "wb") as out:
        yield out


@contextlib.contextmanager
def replacing_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The path of an empty file that takes the name `path` once the block is left; nothing is left on failure.

    A link is written through, and what is there keeps its mode; until then only its owner may read what replaces it.
    """
    mode = check_replaceable(path)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    os.close(os.open(temporary, flags, 0o666 if mode is None else 0o600))
    try:
        yield temporary
        with open(temporary, "r+b") as written:
            os.fsync(written.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def check_replaceable(path: str | os.PathLike[str]) -> int | None:
    """The mode of the file that `path` leads to, None where there is none; what is no regular file is refused.

    A file that takes the place of a pipe or a device leaves whoever reads it waiting, and a machine without /dev/null.
    Behind a name of an open file (/dev/stdout) may be a regular one, to which others have written before.
    """
    try:
        found = os.stat(path).st_mode
    except OSError:
        return None  # whoever makes the file is told what is wrong with its folder
    if stat.S_ISDIR(found):
        raise InputError(f"[output] {path} is a folder; name a file")
    if not stat.S_ISREG(found) or os.path.abspath(path).startswith(OPEN_FILES):
        raise InputError(
            f"[output] {path} is a pipe, a device or an open file, and a file would take its place; name one, or write "
            "to standard output (`-o -`) and send it there"
        )
    return stat.S_IMODE(found)


def _sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` durable, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
