"""The files of a bundle: shards of weights, other files, and the manifest, in a folder that is there whole or not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from weft.errors import InputError

VERSION = 1
ALIGN = 64  # bytes; kernels read rows of weights where they lie
MANIFEST = "manifest.json"


class Shards:
    """Weights one after another in files of at most `limit` bytes; one that is longer has a file of its own."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._name, self._size = "", 0
        self.files: dict[str, dict[str, Any]] = {}
        self.tensors: list[dict[str, Any]] = []

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: Any) -> None:
        """Write a tensor, its rows as whole blocks; `data` has the bytes."""
        view = memoryview(data).cast("B")
        if self._file is None or (self._size and self._size + len(view) > self._limit):
            self._next()
        self._write(bytes(-self._size % ALIGN))
        place = {"file": self._name, "offset": self._size, "bytes": len(view)}
        self.tensors.append({"name": name, "dtype": dtype, "shape": list(shape), **place})
        self._write(view)

    def finish(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self.files[self._name] = {"bytes": self._size, "sha256": self._hash.hexdigest()}
            self._file = None

    def _next(self) -> None:
        self.finish()
        self._name = f"weights-{len(self.files) + 1:05d}.bin"
        self._file = open(self._folder / self._name, "xb")  # noqa: SIM115 (closed by finish)
        self._size, self._hash = 0, hashlib.sha256()

    def _write(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.write(data)
        self._hash.update(data)
        self._size += len(data)


def is_bundle(folder: Path) -> bool:
    """Whether this is a folder that export has written; others have files of the manifest's name, too."""
    try:
        made = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(made, dict) and "weft_bundle" in made


class BundleFolder:
    """A folder that appears under its name when everything in it is written; a context."""

    def __init__(self, output: Path, *, overwrite: bool) -> None:
        if output.exists() and not overwrite:
            raise InputError("export", "exists", field="output", given=str(output), advice="give --force to replace it")
        if output.exists() and not is_bundle(output) and (not output.is_dir() or any(output.iterdir())):
            what = "is not a bundle, so it is not replaced"
            raise InputError("export", what, field="output", given=str(output), advice="give another name")
        self.output = output
        self.folder = output.parent / f".{output.name}.{os.urandom(4).hex()}.part"
        self.files: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> BundleFolder:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name: str, data: bytes, *, host: str | None = None) -> None:
        """A file, which the manifest will list; `host` is the only kind of host that reads it."""
        self._store(name, data)
        about = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        self.files[name] = about if host is None else {**about, "for": host}

    def finish(self, manifest: Mapping[str, Any]) -> str:
        """Write the manifest and give the folder its name; the digest of the manifest, which is that of everything."""
        document = {"weft_bundle": VERSION, **manifest, "files": self.files}
        data = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False).encode()
        self._store(MANIFEST, data)
        old = None
        if self.output.exists():
            old = self.output.parent / f".{self.output.name}.{os.urandom(4).hex()}.old"
            os.rename(self.output, old)
        os.rename(self.folder, self.output)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        return hashlib.sha256(data).hexdigest()

    def _store(self, name: str, data: bytes) -> None:
        with open(self.folder / name, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
