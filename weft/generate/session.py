"""A session: a text that grows and reuses the KV cache of its prefix; it can be saved to disk.

A session owns only its tokens. The engine finds their pages of the KV cache by content, so forking copies a list, and a
session whose pages were evicted is only slower.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import FormatError, InputError, NotFoundError

if TYPE_CHECKING:
    from weft.generate.model import Model
    from weft.generate.result import Generation, Piece

_MAGIC = b"weftses1"  # the last character is the version
_HEAD = struct.Struct("<8sQ")  # magic, bytes of the description
_CHECK = 16
_MOST_BYTES = 1 << 24  # of a description


class Session:
    """A growing text over a model; `options`, as for `model.generate`, are the defaults of its calls.

    Prompts and generated tokens become part of it. Several sessions may be used in turns; each is for one thread.
    """

    def __init__(self, model: Model, tokens: Sequence[int] = (), **options: Any) -> None:
        self._model = model
        self._options = options
        self.tokens = list(tokens)

    @property
    def tokens_used(self) -> int:
        """Tokens of the text so far."""
        return len(self.tokens)

    @property
    def text(self) -> str:
        """The text so far, special tokens included."""
        return self._model.tokenizer.decode(self.tokens, skip_special=False)

    def extend(self, prompt: str | Sequence[int]) -> int:
        """Append text or ids and compute them; returns the number of tokens added.

        Appended text is tokenized by itself, and only text at the very start gets the model's first special token.
        Special tokens written in it are read as such. The next answer is bitwise the one for all ids given at once.
        """
        ids = self._ids(prompt)
        self._run(ids, {"max_tokens": 0})
        self.tokens += ids
        return len(ids)

    def generate(self, prompt: str | Sequence[int] = (), **options: Any) -> Generation:
        """Append `prompt`, if any, and the model's continuation, which is returned."""
        ids = self._ids(prompt)
        result = self._run(ids, options)
        self.tokens += ids + list(result.tokens)
        return result

    def stream(self, prompt: str | Sequence[int] = (), **options: Any) -> Iterator[Piece]:
        """As `generate`, piece by piece. Leaving the loop keeps the text so far."""
        ids = self._ids(prompt)
        self._check_room(ids)
        pieces = self._model.stream(self.tokens + ids, **{**self._options, **options})
        self.tokens += ids
        for piece in pieces:
            self.tokens += piece.tokens
            yield piece

    def fork(self) -> Session:
        """Another session with the same text; the two continue independently and share the KV cache."""
        return Session(self._model, self.tokens, **self._options)

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens. What is left need not be computed again, as far as it is still cached."""
        if type(count) is not int or not 0 <= count <= len(self.tokens):
            what = f"must be 0 to {len(self.tokens)}, the tokens of the session"
            raise InputError("session", what, field="count", given=count)
        del self.tokens[len(self.tokens) - count :]

    def reset(self) -> None:
        """Remove all text."""
        self.tokens.clear()

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return self._model.tokenizer.encode_prompt(prompt, add_special=not self.tokens)
        return [int(token) for token in prompt]

    def _check_room(self, ids: list[int]) -> None:
        if not self.tokens and not ids:
            raise InputError("session", "the session has no text yet", advice="give a prompt")

    def _run(self, ids: list[int], options: dict[str, Any]) -> Generation:
        self._check_room(ids)
        return self._model.generate(self.tokens + ids, **{**self._options, **options})

    # On disk

    def save(self, path: str | Path) -> None:
        """Write the session's tokens and its pages of the KV cache that are in memory, so that loading is quick.

        With recurrent state these are the pages up to its last checkpoint, and the state there.
        """
        pages, state = self._model.engine.read_pages(self.tokens, **self._circumstances())
        about = {"tokens": self.tokens, "pages": len(pages), "state": self._model.decoder.state_fingerprint}
        described = json.dumps(about, separators=(",", ":")).encode()
        body = b"".join([_HEAD.pack(_MAGIC, len(described)), described, *pages, state or b""])
        path = Path(path)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            with unfinished.open("wb") as file:
                file.write(body)
                file.write(blake2b(body, digest_size=_CHECK).digest())
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise InputError("session", f"{path} cannot be written: {error.strerror}") from error

    def _circumstances(self) -> dict[str, Any]:
        return {name: self._options[name] for name in ("salt", "adapter") if name in self._options}

    @classmethod
    def load(cls, model: Model, path: str | Path, **options: Any) -> Session:
        """The session in a file. Pages that another model or build computed are ignored and computed again."""
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise NotFoundError("session", f"{path} cannot be read: {error.strerror}") from error
        about, pages = _read(data, path.name)
        tokens = about["tokens"]
        most = model.decoder.vocab_size
        if not all(type(token) is int and 0 <= token < most for token in tokens):
            raise FormatError(
                "session", f"{path.name} has token ids of another model: this one has ids 0 to {most - 1}"
            )
        session = cls(model, tokens, **options)
        size, count, slot = model.decoder.page_bytes, about["pages"], model.decoder.slot_bytes if about["pages"] else 0
        if about["state"] == model.decoder.state_fingerprint and len(pages) == size * count + slot:
            given = [pages[start : start + size] for start in range(0, size * count, size)]
            state = pages[size * count :] if slot else None
            model.engine.write_pages(tokens, given, state, **session._circumstances())
        return session


def _read(data: bytes, name: str) -> tuple[dict[str, Any], bytes]:
    """The description and the pages in the bytes of a session file."""
    if len(data) < _HEAD.size + _CHECK or not data.startswith(_MAGIC):
        raise FormatError("session", f"{name} is not a session file of this version of weft")
    if blake2b(memoryview(data)[:-_CHECK], digest_size=_CHECK).digest() != data[-_CHECK:]:
        raise FormatError("session", f"{name} is damaged: the checksum does not match")
    _, size = _HEAD.unpack_from(data)
    if size > min(_MOST_BYTES, len(data) - _HEAD.size - _CHECK):
        raise FormatError("session", f"{name} is truncated: its description should have {size} bytes")
    try:
        about = json.loads(data[_HEAD.size : _HEAD.size + size])
        whole = isinstance(about["tokens"], list) and type(about["pages"]) is int and isinstance(about["state"], str)
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise FormatError("session", f"{name} has a malformed description")
    return about, data[_HEAD.size + size : -_CHECK]
