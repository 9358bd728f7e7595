"""Tensors in mapped files, whatever the format: what readers return and writers take.

A file is mapped read-only and never copied. Views keep the mapping alive, so closing a file while an array still views
it is safe. No other process may truncate a mapped file: the kernel then ends this one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from weft.dtype import DTYPES, DType
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
            raise FormatError(self.name, "the file is empty") from None
        except OSError as error:
            raise NotFoundError(self.name, f"the file cannot be mapped: {error.strerror}") from None
        finally:
            os.close(handle)
        self.size = len(self._map)

    def slice(self, start: int = 0, end: int | None = None) -> memoryview:
        """Bytes start..end of the mapping, read-only; no copy."""
        if self._map is None:
            raise InputError(self.name, "the file is closed")
        end = self.size if end is None else end
        assert 0 <= start <= end <= self.size, "a view outside its file"
        return memoryview(self._map)[start:end]

    def view(self, start: int = 0, end: int | None = None) -> np.ndarray:
        """The same as an array of uint8."""
        import numpy as np

        return np.frombuffer(self.slice(start, end), np.uint8)

    def release(self, start: int, end: int) -> None:
        """Free the memory of the pages that hold start..end; a later access reads them from the file again."""
        page = mmap.ALLOCATIONGRANULARITY
        first, last = start // page * page, min(-(-end // page) * page, self.size)
        if self._map is not None and last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def read_ahead(self) -> None:
        """Ask the system to read all of the file soon, where it is not in memory yet."""
        if self._map is not None and hasattr(mmap, "MADV_WILLNEED"):
            self._map.madvise(mmap.MADV_WILLNEED)

    def close(self) -> None:
        """Release the mapping; it ends with the last view into it."""
        self._map = None


def _open_regular(path: Path) -> int:
    # O_NONBLOCK: opening a pipe must not wait for a writer; it has no effect on a regular file.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("weights", f"no such file: {path.name}") from None
    except OSError as error:
        raise NotFoundError(path.name, f"the file cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FormatError(path.name, "not a regular file")
    return handle


class TensorView:
    """A tensor in its stored form: `data` holds the bytes of `shape` (outermost first) elements of `dtype`.

    `made` says that its bytes are computed on every access.
    """

    made = False

    def __init__(self, dtype: DType, shape: tuple[int, ...], data: Any) -> None:
        self.dtype = dtype
        self.shape = tuple(int(n) for n in shape)
        self._data = _as_bytes(data)
        if self.dtype.quantised and (not self.shape or self.shape[-1] % self.dtype.block):
            raise WeightError("weights", f"rows of {self.shape} are not whole blocks of {dtype.block} ({dtype})")
        if self._data.size != self.nbytes:
            raise WeightError(
                "weights", f"{self.shape} of {dtype} takes {self.nbytes} bytes, but the data has {self._data.size}"
            )

    @classmethod
    def of(cls, value: Any) -> TensorView:
        """`value` itself if it is a TensorView, else a view of it as an array of its own element type."""
        import numpy as np

        if isinstance(value, TensorView):
            return value
        array = np.asarray(value)
        stored = array.dtype.newbyteorder("<")
        dtype = next((d for d in DTYPES.values() if d.numpy is not None and np.dtype(d.numpy) == stored), None)
        if dtype is None:
            raise InputError(
                "weights", f"arrays of {array.dtype} cannot be stored", advice="convert to a type of weft.dtype"
            )
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
        """The same as a buffer for the core, without making an array."""
        return self.bytes()

    def elements(self) -> np.ndarray:
        """The stored elements, each of one number, as integers of their size, in `shape`."""
        return self.bytes().view(f"<u{self.dtype.size_bytes}").reshape(self.shape)

    def transposed(self) -> TensorView:
        """The transposed matrix, in stored form."""
        import numpy as np

        return TensorView(self.dtype, self.shape[::-1], np.ascontiguousarray(self.elements().T))

    def take(self, order: Any) -> TensorView:
        """The entries `order` of the first axis, in stored form; rows of blocks stay whole."""
        if self.dtype.quantised and len(self.shape) < 2:
            raise WeightError("weights", f"single elements of {self.shape} of {self.dtype} cannot be taken")
        entries = self.bytes().reshape(self.shape[0], -1)[order]
        return TensorView(self.dtype, (len(order), *self.shape[1:]), entries)

    def numpy(self) -> np.ndarray:
        """The values in `shape`: a read-only view if numpy has the type, else float32 (bf16 and quantised)."""
        if self.dtype.numpy is not None:
            return self.bytes().view(self.dtype.numpy).reshape(self.shape)
        if not self.dtype.stores_weights:
            raise UnsupportedError("weights", f"values of type {self.dtype} cannot be read", advice="convert the file")
        import numpy as np

        from weft._core import quant

        return np.asarray(quant.dequantise(self.dtype.name, self.bytes(), self.size)).reshape(self.shape)


def _as_bytes(data: Any) -> np.ndarray:
    import numpy as np

    if not isinstance(data, np.ndarray):
        return np.frombuffer(data, np.uint8)
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


class TensorInfo(TensorView):
    """A tensor of a file: its name and place; bytes are read only on access."""

    def __init__(self, name: str, dtype: DType, shape: tuple[int, ...], file: MappedFile, start: int) -> None:
        """The reader has checked that the tensor lies inside the file and that its rows are whole blocks."""
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self._file = file
        self._start = start

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def bytes(self) -> np.ndarray:
        return self._file.view(self._start, self._start + self.nbytes)

    def buffer(self) -> memoryview:
        return self._file.slice(self._start, self._start + self.nbytes)

    def release(self) -> None:
        """Drop the tensor's resident pages, as after repacking it."""
        self._file.release(self._start, self._start + self.nbytes)

    def __repr__(self) -> str:
        return f"TensorInfo({self.name!r}, {self.dtype}, {list(self.shape)})"


class MadeView(TensorView):
    """A tensor that is made of others: its bytes are computed on every access, so that they take memory only in use."""

    made = True

    def __init__(self, dtype: DType, shape: tuple[int, ...], make: Callable[[], Any]) -> None:
        self.dtype = dtype
        self.shape = shape
        self._make = make

    def bytes(self) -> np.ndarray:
        return _as_bytes(self._make())


M = TypeVar("M", bound=Mapping[str, Any])


class TensorFile(Generic[M]):
    """The tensors of one model, from one file or several, and the `metadata` that the format stores with them."""

    def __init__(self, format: str, tensors: Mapping[str, TensorInfo], metadata: M, files: list[MappedFile]) -> None:
        self.format = format
        self.tensors = tensors
        self.metadata = metadata
        self.files = files

    def __getitem__(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            raise WeightError(self.files[0].name, f"there is no tensor called {name!r}") from None

    def release(self, name: str) -> None:
        """Drop the resident pages of one tensor."""
        self[name].release()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def close(self) -> None:
        """Close the files. Arrays taken before stay valid; taking another is an InputError."""
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
    """A file to write that takes the name `path` only once it is complete and on disk; see `replacing_path`."""
    with replacing_path(path) as temporary, open(temporary, "wb") as out:
        yield out


@contextlib.contextmanager
def replacing_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The path of an empty file that takes the name `path` when the block ends; on failure it is deleted.

    A symbolic link stays, and its target is replaced. The new file gets the mode of the old one at the end; until then
    only its owner can read it.
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
    """The mode of the file that `path` leads to, or None if there is none; InputError if it is not a regular file.

    Replacing a pipe or a device would leave its reader waiting, or the machine without /dev/null. The name of an open
    file (/dev/stdout) may lead to a regular file that already has output of others, which replacing would lose.
    """
    try:
        found = os.stat(path).st_mode
    except OSError:
        return None  # creating the file will raise if its folder is at fault
    if stat.S_ISDIR(found):
        raise InputError("output", f"{path} is a folder", advice="name a file")
    if not stat.S_ISREG(found) or os.path.abspath(path).startswith(OPEN_FILES):
        raise InputError(
            "output",
            f"{path} is a pipe, a device or an open file, which a new file would replace",
            advice="name a regular file, or write to standard output (`-o -`) and redirect it",
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
