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
from weft.errors import InputError, NotFoundError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.base import BaseEmbedder
    from weft.text import Tokenizer

MAX_FILE_BYTES = 16 << 20  # larger ones are data, not documents


@frozen
class Chunking:
    """Tokens of a chunk, and how many of them it shares with the one before it."""

    tokens: int = 200
    overlap: int = 40

    @classmethod
    def of(cls, tokens: int, overlap: int | None) -> Chunking:
        """With `overlap` a fifth of the tokens where it is not given."""
        return cls(tokens, tokens // 5 if overlap is None else overlap)

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < self.tokens:
            raise InputError(
                f"[embed] chunks of {self.tokens} tokens cannot share {self.overlap}; 0 to {self.tokens - 1}"
            )


class Folder(Source):
    """Rows are chunks: `path` below the folder, `chunk` from 0, `start` and `end` in characters, `text`.

    Every file that is UTF-8 text is a document; hidden ones, links, files over 16 MB and anything else are left out and
    counted in `skipped`.
    """

    def __init__(self, path: Path, embedder: BaseEmbedder, chunking: Chunking | None = None) -> None:
        super().__init__(path)
        tokenizer = getattr(embedder, "tokenizer", None)
        if tokenizer is None:
            raise InputError("[embed] a folder is cut by tokens, and this embedder has no tokenizer here; give a file")
        longest = max(1, getattr(embedder, "max_tokens", 1 << 30) * 4 // 5)  # room for special tokens and a prompt
        wanted = chunking or Chunking()
        size = min(wanted.tokens, longest)
        self.chunking = Chunking(size, min(wanted.overlap, size // 2))
        self._tokenizer: Tokenizer = tokenizer

    def identity(self) -> dict[str, Any]:
        hashed = sha256()
        for file in self.files:
            found = file.stat()
            hashed.update(
                f"{file.relative_to(self.path)}\0{found.st_size}\0{found.st_mtime_ns}\n".encode(
                    "utf-8", "surrogateescape"
                )
            )
        cut = [self.chunking.tokens, self.chunking.overlap]
        return {"path": str(self.path.resolve()), "files": len(self.files), "digest": hashed.hexdigest(), "chunks": cut}

    @cached_property
    def files(self) -> list[Path]:
        """The regular files that are not hidden, in the order of their names."""
        found = []
        try:
            for base, folders, names in os.walk(self.path, onerror=_raise):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                paths = (Path(base, name) for name in sorted(names) if not name.startswith("."))
                found += [path for path in paths if stat.S_ISREG(path.lstat().st_mode)]
        except OSError as error:
            raise NotFoundError(f"[input] {self.path} cannot be read: {error.strerror}") from None
        return found

    def _rows(self) -> Iterator[Row]:
        self.skipped = 0
        for file in self.files:
            text = _read(file)
            if text is None:
                self.skipped += 1
                continue
            name = str(file.relative_to(self.path)).encode("utf-8", "replace").decode()
            for number, (start, end) in enumerate(spans(text, self._tokenizer, self.chunking)):
                yield {"path": name, "chunk": number, "start": start, "end": end, "text": text[start:end]}


def _raise(error: OSError) -> None:
    raise error


def _read(file: Path) -> str | None:
    """The text of a file, None for what is no text."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            return None
        data = file.read_bytes()
    except OSError:
        return None
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


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
