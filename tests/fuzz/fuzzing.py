"""What the fuzz targets of the Python readers share: files to read, errors that count as answers, odd values.

A target is a module with `check(data)`, which takes any bytes and raises for a bug, and `mutate(data, rng)`, which
edits an input so that most of it still parses. The tests replay the corpus with `check`, `run.py` fuzzes with both.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from weft.errors import WeftError

CORPUS = Path(__file__).parent / "corpus"
BOUNDARIES = (0, 1, 2, 7, 8, 31, 32, 63, 64, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
              (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip


class Scratch:
    """A folder of this process, in memory where the system has such a place; gone with the process."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weft-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self._owner = os.getpid()

    def __del__(self) -> None:
        if self._owner == os.getpid():
            shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path


@contextmanager
def refusals(folder: Path, *names: str) -> Iterator[None]:
    """Swallow weft's own errors, once their message is fit to print and has one of `names` in it, where there are any;
    any other exception is a bug."""
    try:
        yield
    except WeftError as error:
        message = str(error)
        assert message.startswith("[") and len(message) <= 1000, f"a message that is not one: {message[:200]!r}"
        assert str(folder) not in message, f"a message that tells where files are: {message[:200]!r}"
        assert not names or any(name in message for name in names), f"a message without the file: {message[:200]!r}"
        message.encode("utf-8")


def files_of(data: bytes) -> dict[str, bytes]:
    """The files of an input that is `name NUL text NUL name NUL text …`."""
    fields = data.split(b"\0")
    return {name.decode("latin-1"): text for name, text in zip(fields[::2], fields[1::2])}


def write_files(folder: Path, names: Iterable[str], texts: Mapping[str, bytes]) -> None:
    """Of the files `names`, those that are in `texts` and no others."""
    for name in names:
        if name in texts:
            (folder / name).write_bytes(texts[name])
        else:
            (folder / name).unlink(missing_ok=True)


def edit_files(data: bytes, rng: random.Random, edit: Callable[[str, bytes], bytes]) -> bytes:
    """Such an input with one of its files edited or, seldom, left out."""
    fields = data.split(b"\0")
    if len(fields) < 2 or rng.random() < 0.05:
        return odd_bytes(rng, data)
    at = 2 * rng.randrange(len(fields) // 2)
    if rng.random() < 0.03:
        del fields[at : at + 2]
    else:
        fields[at + 1] = edit(fields[at].decode("latin-1"), fields[at + 1]).replace(b"\0", b"")
    return b"\0".join(fields)


def odd_number(rng: random.Random, value: int, bits: int) -> int:
    """A number of `bits` bits: at a boundary, near `value`, or any."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice(BOUNDARIES) % (1 << bits)
    if kind == 1:
        return (value + rng.choice((-1, 1, 2, -2, 8, -8))) % (1 << bits)
    return rng.getrandbits(rng.randrange(1, bits + 1))


def odd_bytes(rng: random.Random, data: bytes) -> bytes:
    """`data` with one to four bytes changed, put in or taken away."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(out) + 1), rng.randrange(3)
        if kind == 0:
            out.insert(at, rng.getrandbits(8))
        elif at < len(out):
            out[at : at + 1] = b"" if kind == 1 else bytes([rng.choice((0, 127, 128, 255, rng.getrandbits(8)))])
    return bytes(out)
