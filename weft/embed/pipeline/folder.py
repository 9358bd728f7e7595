"""A folder of documents, each cut into overlapping chunks of tokens that begin and end between words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.sources import Row, Source
from weft.embed.pipeline.walking import EMPTY, Selection, Walk, is_index
from weft.errors import InputError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.base import BaseEmbedder
    from weft.text import Tokenizer


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
    """Rows are chunks: `path` below the folder, `chunk` from 0, `start` and `end` in characters, `line` from 1, `text`.

    Every file that `selection` chooses and that is UTF-8 text is a document; all others are in `left_out`, but for what
    the run itself writes. `path` may also be one document.
    """

    own_rows = True

    def __init__(
        self,
        path: Path,
        embedder: BaseEmbedder,
        chunking: Chunking | None = None,
        selection: Selection | None = None,
    ) -> None:
        super().__init__(path)
        if is_index(path):
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
        self.selection = selection or Selection()
        self._tokenizer: Tokenizer = tokenizer
        self._root = (path if path.is_dir() else path.parent).resolve()
        self._outputs: set[Path] = set()

    def leave_out(self, *outputs: Path) -> None:
        self._outputs = {place.parent.resolve() / place.name for place in outputs}

    def identity(self) -> dict[str, Any]:
        hashed = sha256()
        for file in self.files:
            hashed.update(f"{file.relative_to(self._root)}\0{_stamp(file)}\n".encode("utf-8", "surrogateescape"))
        cut = [self.chunking.tokens, self.chunking.overlap]
        return {"path": str(self.path.resolve()), "files": len(self.files), "digest": hashed.hexdigest(), "chunks": cut}

    @cached_property
    def files(self) -> list[Path]:
        """The files that are chosen, ordered by name."""
        if not self.path.is_dir():
            self._stat()
            return [self._root / self.path.name]
        walk = Walk(self._root, self.selection, self._outputs)
        self.left_out |= {self._name(place): why for place, why in walk.left_out.items()}
        return walk.files

    def _name(self, place: Path) -> str:
        return str(place.relative_to(self._root)).encode("utf-8", "backslashreplace").decode()

    def _rows(self) -> Iterator[Row]:
        for file in self.files:
            name = self._name(file)
            text, why = _read(file, self.selection.max_file_bytes)
            if text is None:
                self.left_out[name] = why
                continue
            line, counted, number = 1, 0, -1
            for number, (start, end) in enumerate(spans(text, self._tokenizer, self.chunking)):
                line, counted = line + text.count("\n", counted, start), start
                yield {"path": name, "chunk": number, "start": start, "end": end, "line": line, "text": text[start:end]}
            if number < 0:
                self.left_out[name] = EMPTY


def _stamp(file: Path) -> str:
    try:
        found = file.stat()
    except OSError as error:
        return str(error.strerror)
    return f"{found.st_size}\0{found.st_mtime_ns}"


def _read(file: Path, most: int) -> tuple[str | None, str]:
    """The text of a file of at most `most` bytes, or None and the reason why it has none."""
    try:
        if file.stat().st_size > most:
            return None, f"larger than {most / 1e6:g} MB"
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
