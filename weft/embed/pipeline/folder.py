"""A folder of documents, each cut into overlapping chunks of tokens that begin and end between words."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.sources import Row, Source
from weft.embed.pipeline.spool import is_spool
from weft.errors import InputError, NotFoundError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.base import BaseEmbedder
    from weft.text import Tokenizer

MAX_FILE_BYTES = 16 << 20  # larger files are data, not documents
PACKAGES = "node_modules"  # documents of third-party packages


@frozen
class Chunking:
    """Tokens per chunk, and how many of them it shares with the chunk before it."""

    tokens: int = 200
    overlap: int = 40

    @classmethod
    def of(cls, tokens: int, overlap: int | None = None) -> Chunking:
        """A chunking whose `overlap` is a fifth of the tokens by default."""
        return cls(tokens, tokens // 5 if overlap is None else overlap)

    def __post_init__(self) -> None:
        for field, value in (("chunk_tokens", self.tokens), ("overlap", self.overlap)):
            if type(value) is not int:
                raise InputError("embed", "must be a whole number", field=field, given=value)
        if not 0 <= self.overlap < self.tokens:
            raise InputError(
                "embed",
                f"must be 0 to {self.tokens - 1}, less than the {self.tokens} tokens of a chunk",
                field="overlap",
                given=self.overlap,
            )

    def fitting(self, limit: int) -> Chunking:
        """This chunking, if a chunk and a prompt fit in `limit` tokens; the default is made smaller."""
        most = max(1, limit * 4 // 5)
        if self.tokens <= most:
            return self
        if self == Chunking():
            return Chunking.of(most)
        raise InputError(
            "embed",
            f"must be at most {most}: the model reads {limit} tokens, and a fifth is reserved for prompts",
            field="chunk_tokens",
            given=self.tokens,
        )


class Folder(Source):
    """Rows are chunks: `path` below the folder, `chunk` from 0, `start` and `end` in characters, `text`.

    Every file that is UTF-8 text is a document. Hidden files, indexes and the spools of stopped runs are ignored;
    links, files over 16 MB, binary or unreadable files, and packages are listed in `left_out`. `path` may also be one
    document.
    """

    own_rows = True

    def __init__(self, path: Path, embedder: BaseEmbedder, chunking: Chunking | None = None) -> None:
        super().__init__(path)
        if _is_index(path):
            raise InputError(
                "embed", f"{path} is an index, not a folder of documents", advice="search it with `weft search`"
            )
        tokenizer = getattr(embedder, "tokenizer", None)
        if tokenizer is None:
            raise InputError(
                "embed",
                "documents are cut into chunks of tokens, and a model on a server has no tokenizer here",
                advice="give a file of rows (.jsonl, .csv, .parquet, .txt)",
            )
        self.chunking = (chunking or Chunking()).fitting(getattr(embedder, "max_tokens", 1 << 30))
        self._tokenizer: Tokenizer = tokenizer
        self._root = path if path.is_dir() else path.parent
        self._outputs: set[Path] = set()
        self._unread: dict[str, str] = {}

    def leave_out(self, *outputs: Path) -> None:
        root = self._root.resolve()
        places = [place.parent.resolve() / place.name for place in outputs]
        self._outputs = {self._root / place.relative_to(root) for place in places if root in place.parents}

    def identity(self) -> dict[str, Any]:
        hashed = sha256()
        for file in self.files:
            hashed.update(f"{file.relative_to(self._root)}\0{_stamp(file)}\n".encode("utf-8", "surrogateescape"))
        cut = [self.chunking.tokens, self.chunking.overlap]
        return {"path": str(self.path.resolve()), "files": len(self.files), "digest": hashed.hexdigest(), "chunks": cut}

    @cached_property
    def files(self) -> list[Path]:
        """The regular files that are not hidden, ordered by name."""
        if not self.path.is_dir():
            self._stat()
            return [self.path]
        found = []
        for base, folders, names in os.walk(self.path, onerror=self._pass_by):
            folders[:] = sorted(name for name in folders if self._is_walked(Path(base, name)))
            paths = (Path(base, name) for name in sorted(names) if not name.startswith("."))
            found += [path for path in paths if path not in self._outputs and self._is_file(path)]
        return found

    def _is_file(self, path: Path) -> bool:
        try:
            mode = path.lstat().st_mode
        except OSError:
            return False  # deleted
        return stat.S_ISREG(mode) or self._leave(path, "a link" if stat.S_ISLNK(mode) else "not a regular file")

    def _is_walked(self, folder: Path) -> bool:
        if folder.name.startswith(".") or folder in self._outputs or is_spool(folder) or _is_index(folder):
            return False
        if folder.is_symlink():
            return self._leave(folder, "a link")
        return folder.name != PACKAGES or self._leave(folder, "third-party packages")

    def _leave(self, place: Path, why: str) -> bool:
        self._unread[self._name(place)] = why
        return False

    def _pass_by(self, error: OSError) -> None:
        place = Path(error.filename)
        if place == self.path:
            raise NotFoundError("input", f"cannot read {place}: {error.strerror}") from None
        self._unread[self._name(place)] = f"cannot be read: {error.strerror}"

    def _name(self, place: Path) -> str:
        return str(place.relative_to(self._root)).encode("utf-8", "backslashreplace").decode()

    def _rows(self) -> Iterator[Row]:
        files = self.files
        self.left_out = dict(self._unread)
        for file in files:
            name = self._name(file)
            text, why = _read(file)
            if text is None:
                self.left_out[name] = why
                continue
            for number, (start, end) in enumerate(spans(text, self._tokenizer, self.chunking)):
                yield {"path": name, "chunk": number, "start": start, "end": end, "text": text[start:end]}


def _is_index(folder: Path) -> bool:
    """Whether `weft.Index` saved this folder, by the format name in its header."""
    try:
        with open(folder / "index.json", "rb") as file:
            return b'"weft-index"' in file.read(200)
    except OSError:
        return False


def _stamp(file: Path) -> str:
    try:
        found = file.stat()
    except OSError as error:
        return str(error.strerror)
    return f"{found.st_size}\0{found.st_mtime_ns}"


def _read(file: Path) -> tuple[str | None, str]:
    """The text of a file, or None and the reason why it has none."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            return None, f"larger than {MAX_FILE_BYTES >> 20} MB"
        data = file.read_bytes()
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    if b"\0" in data:
        return None, "not text"
    try:
        return data.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        return None, "not UTF-8"


def spans(text: str, tokenizer: Tokenizer, chunking: Chunking) -> Iterator[tuple[int, int]]:
    """Start and end of each chunk of `text`, in characters. A chunk ends before a token that begins a word, if its last
    quarter has one. Chunks of white space are left out."""
    offsets = tokenizer.encode_offsets(text, add_special=False).offsets
    first, count = 0, len(offsets)
    while first < count:
        last = _word_end(text, offsets, first, min(first + chunking.tokens, count))
        start, end = int(offsets[first][0]), int(offsets[last - 1][1])
        if text[start:end].strip():
            yield start, end
        if last == count:
            return
        first = _word_start(text, offsets, max(first + 1, last - chunking.overlap), last)


def _begins_word(text: str, offsets: np.ndarray, token: int) -> bool:
    start = int(offsets[token][0])
    return start == 0 or text[start - 1].isspace() or text[start : start + 1].isspace()


def _word_end(text: str, offsets: np.ndarray, first: int, last: int) -> int:
    if last == len(offsets):
        return last
    least = last - (last - first) // 4
    return next((token for token in range(last, least - 1, -1) if _begins_word(text, offsets, token)), last)


def _word_start(text: str, offsets: np.ndarray, first: int, last: int) -> int:
    return next((token for token in range(first, last) if _begins_word(text, offsets, token)), first)
