"""A folder of documents, each cut into chunks of so many tokens that overlap and begin and end between words."""

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

MAX_FILE_BYTES = 16 << 20  # larger ones are data, not documents
PACKAGES = "node_modules"  # other people's documents, and more of them than one's own


@frozen
class Chunking:
    """Tokens of a chunk, and how many of them it shares with the one before it."""

    tokens: int = 200
    overlap: int = 40

    @classmethod
    def of(cls, tokens: int, overlap: int | None = None) -> Chunking:
        """With `overlap` a fifth of the tokens where it is not given."""
        return cls(tokens, tokens // 5 if overlap is None else overlap)

    def __post_init__(self) -> None:
        if type(self.tokens) is not int or type(self.overlap) is not int:
            raise InputError(f"[embed] chunks of {self.tokens!r} tokens that share {self.overlap!r}; whole numbers")
        if not 0 <= self.overlap < self.tokens:
            raise InputError(
                f"[embed] chunks of {self.tokens} tokens cannot share {self.overlap}; 0 to {self.tokens - 1}"
            )

    def fitting(self, most: int) -> Chunking:
        """The same where it has at most `most` tokens. More are refused, but of the default, which then is smaller."""
        if self.tokens <= most:
            return self
        if self == Chunking():
            return Chunking.of(most)
        raise InputError(
            f"[embed] chunks of {self.tokens} tokens do not fit this model; beside a prompt it has room for {most}: "
            f"give --chunk-tokens {most} or fewer"
        )


class Folder(Source):
    """Rows are chunks: `path` below the folder, `chunk` from 0, `start` and `end` in characters, `text`.

    Every file that is UTF-8 text is a document. Hidden ones, indexes and what stopped runs left are passed by; links,
    files over 16 MB, those that are no text or cannot be read, and packages are in `left_out`. `path` may be one
    document, too.
    """

    own_rows = True

    def __init__(self, path: Path, embedder: BaseEmbedder, chunking: Chunking | None = None) -> None:
        super().__init__(path)
        if _is_index(path):
            raise InputError(f"[embed] {path} is an index, and not documents; `weft search` asks it")
        tokenizer = getattr(embedder, "tokenizer", None)
        if tokenizer is None:
            raise InputError("[embed] documents are cut by tokens, and this embedder has no tokenizer; give a file")
        room = max(1, getattr(embedder, "max_tokens", 1 << 30) * 4 // 5)  # beside special tokens and a prompt
        self.chunking = (chunking or Chunking()).fitting(room)
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
        """The regular files that are not hidden, in the order of their names."""
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
            return False  # it is gone
        return stat.S_ISREG(mode) or self._leave(path, "a link" if stat.S_ISLNK(mode) else "no file")

    def _is_walked(self, folder: Path) -> bool:
        if folder.name.startswith(".") or folder in self._outputs or is_spool(folder) or _is_index(folder):
            return False
        if folder.is_symlink():
            return self._leave(folder, "a link")
        return folder.name != PACKAGES or self._leave(folder, "packages of other people")

    def _leave(self, place: Path, why: str) -> bool:
        self._unread[self._name(place)] = why
        return False

    def _pass_by(self, error: OSError) -> None:
        place = Path(error.filename)
        if place == self.path:
            raise NotFoundError(f"[input] {place} cannot be read: {error.strerror}") from None
        self._unread[self._name(place)] = f"cannot be read: {error.strerror}"

    def _name(self, place: Path) -> str:
        return str(place.relative_to(self._root)).encode("utf-8", "backslashreplace").decode()

    def _rows(self) -> Iterator[Row]:
        files = self.files
        self.left_out = dict(self._unread)
        for file in files:
            name = self._name(file)
            try:
                text = _read(file)
            except InputError as error:
                self.left_out[name] = str(error)
                continue
            for number, (start, end) in enumerate(spans(text, self._tokenizer, self.chunking)):
                yield {"path": name, "chunk": number, "start": start, "end": end, "text": text[start:end]}


def _is_index(folder: Path) -> bool:
    """Whether `weft.Index` saved this folder, by the first word of its header."""
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


def _read(file: Path) -> str:
    """The text of a file; InputError says why there is none."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"larger than {MAX_FILE_BYTES >> 20} MB")
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from None
    if b"\0" in data:
        raise InputError("no text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("not UTF-8") from None


def spans(text: str, tokenizer: Tokenizer, chunking: Chunking) -> Iterator[tuple[int, int]]:
    """Where the chunks of `text` start and end. One ends before a token that begins a word, where there is one in its
    last quarter; one of white space alone is none."""
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
