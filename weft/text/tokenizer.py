"""Tokenizers: text to ids and back. WordPiece, byte-level BPE and SentencePiece, native (csrc/text) behind this class.

A special token written in a text is ordinary text: only `parse_special=True` turns it into its id, for text that weft
or the caller wrote, never for what a user typed in a chat. `encode_prompt` is for raw prompts, which the caller writes.
Added tokens that are not flagged special are always found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft._core import text as _native
from weft.errors import InputError, NotFoundError, naming
from weft.frozen import frozen
from weft.text.gguf_vocab import infill_ids, native_arguments, special_names
from weft.text.settings import NAMES, SIDE_FILE_LIMIT, class_of, flag, named, read, settings_beside, with_settings
from weft.text.words.making import make

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from weft.text.ranks import Encoding

_FILES = ("tokenizer.json", "tekken.json", "vocab.json", "vocab.txt", "tokenizer.model")
TOKENIZER_LIMIT = 256 << 20
# Origins of the core's errors, replaced by the file's name: some files are converted to another kind for the core.
_KINDS = ("tiktoken", "tokenizer", "tokenizer.json", "tokenizer.model", "vocab.txt")


class Stream:
    """Decodes one id at a time and never emits half a character: the pieces joined are `decode` of all ids."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def add(self, id: int) -> str:
        """The text that is complete now; empty if the id ends inside a character."""
        return self._native.add(id)

    def finish(self) -> str:
        """The rest, an unfinished character as U+FFFD; the stream can be used again afterwards."""
        return self._native.finish()


@frozen
class Fitted:
    """A text or a pair cut to a length: the ids, their token types, and how many tokens of each text were dropped."""

    ids: list[int]
    types: list[int]
    dropped: tuple[int, int]


@frozen
class Located:
    """Ids of a text or a pair, their token types, and their `offsets`, int32 [n, 2]: start and end in the text.

    The special tokens around the texts are at (0, 0).
    """

    ids: list[int]
    types: list[int]
    offsets: npt.NDArray[np.int32]


class Tokenizer:
    """One model's tokenizer; immutable, and safe to use from several threads.

    `bos_id`, `eos_id`, `unk_id`, `sep_id`, `pad_id`, `cls_id` and `mask_id` are None if the files name no such token.
    """

    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    sep_id: int | None
    pad_id: int | None
    cls_id: int | None
    mask_id: int | None

    def __init__(self, native: Any, named: Mapping[str, int | None], infill: Mapping[str, int] | None = None) -> None:
        self._native = native
        self.stated_infill = infill or {}  # ids for filling in the middle that the file states; see `prompts/infill.py`
        for name in NAMES:
            setattr(self, f"{name}_id", named.get(name))

    @classmethod
    def from_file(cls, path: str | Path, *, ending: str | None = None) -> Tokenizer:
        """From a file, or a folder with one of them (the first wins): tokenizer.json, tekken.json, vocab.json with
        merges.txt beside it, vocab.txt, a SentencePiece .model (or Llama 3's, which is tiktoken's), a .tiktoken file.

        tokenizer_config.json and special_tokens_map.json beside it name the special tokens. The former also decides
        whether a text gets bos and eos (`add_bos_token`, `add_eos_token`; without them a tokenizer.json follows its own
        rule, and a .model adds bos), how vocab.txt and a BertTokenizer normalise, and whether a RobertaTokenizer puts a
        space before a text. The name of a .tiktoken file says which encoding it is.
        `ending` is a token that every text must end with, even if the files do not say so.
        """
        path = Path(path)
        if path.is_dir():
            path = file_in(path)
        if not path.is_file():
            advice = f"give {', '.join(_FILES)} or a folder"
            raise NotFoundError("tokenizer", f"no such file: {path.name}", advice=advice)
        with naming(path.name, *_KINDS):
            settings = settings_beside(path)
            made = cls._from_path(path, settings)
            if ending is None or made._ends_with(ending):
                return made
            return cls._from_path(path, {**settings, "eos_token": ending, "add_eos_token": True})

    @classmethod
    def _from_path(cls, path: Path, settings: Mapping[str, Any]) -> Tokenizer:
        from weft.text import merges, ranks, word_pieces

        if path.name == "tekken.json":
            return cls._from_ranks(*ranks.read_tekken(read(path, TOKENIZER_LIMIT)))
        if path.suffix == ".tiktoken":
            return cls.from_tiktoken(path, path.stem)
        if path.suffix == ".model" and ranks.is_rank_file(_head(path)):
            return cls.from_tiktoken(path, "llama3")
        tokens = {name: named(settings, name) for name in NAMES}
        if path.suffix == ".txt" and path.name != "merges.txt" and class_of(settings) == "MPNetTokenizer":
            tokens |= word_pieces.names_of(settings)
            content = word_pieces.tokenizer_json(read(path, TOKENIZER_LIMIT), settings)
            native = _from_json(content, path.name, settings, tokens)
        elif path.suffix == ".txt" and path.name != "merges.txt":
            native = _from_vocab(path, settings)
        elif path.suffix == ".model":
            add_bos, add_eos = flag(settings, "add_bos_token", True), flag(settings, "add_eos_token", False)
            native = make("from_sentencepiece", read(path, TOKENIZER_LIMIT), add_bos, add_eos)
        elif path.name in ("vocab.json", "merges.txt"):
            tokens |= merges.special_names(settings)
            native = _from_json(merged_json(path, settings), path.name, settings, tokens)
        else:
            content = with_settings(read(path, TOKENIZER_LIMIT), settings)
            native = _from_json(content, path.name, settings, tokens)
        return cls(native, {name: native.id(token) for name, token in tokens.items() if token is not None})

    @classmethod
    def from_tiktoken(
        cls,
        path: str | Path,
        name: str | None = None,
        *,
        pattern: str | None = None,
        special: Mapping[str, int] | None = None,
    ) -> Tokenizer:
        """From a file of tiktoken's ("base64 rank" lines), which holds only the ranks.

        How a text is split and which tokens are special comes from `name` (cl100k_base, o200k_base, llama3, qwen, ...),
        or from `pattern`, one of the published expressions, and `special`, ids by token.
        """
        from weft.text import ranks

        if name is not None and (pattern is not None or special is not None):
            what = "excludes pattern and special, which it stands for"
            raise InputError("tiktoken", what, field="name", given=name, advice="give one or the other")
        if name is None and pattern is None:
            what = "the file does not say how to split a text"
            raise InputError("tiktoken", what, advice="give a name or a pattern")
        encoding = ranks.Encoding(pattern, special or {}) if pattern is not None else ranks.encoding(str(name))
        return cls._from_ranks(read(Path(path), TOKENIZER_LIMIT), encoding)

    @classmethod
    def _from_ranks(cls, content: bytes, encoding: Encoding) -> Tokenizer:
        special, named = encoding.special, encoding.names
        native = make(
            "from_tiktoken",
            content,
            encoding.pattern,
            list(special.items()),
            encoding.first_id,
            special[named["bos"]] if encoding.bos else -1,
            encoding.nfc,
        )
        return cls(native, {name: native.id(token) for name, token in named.items()})

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], *, ending: str | None = None) -> Tokenizer:
        """From the `tokenizer.ggml.*` keys of a GGUF file; `ending` as for `from_file`.

        String arrays are lists of str, or pairs of arrays (bytes uint8 [size], offsets uint64 [count + 1]).
        """
        *arguments, numbers = native_arguments(metadata)
        native = make("from_gguf", *arguments, numbers)
        names, infill = special_names(metadata, native.vocab_size), infill_ids(metadata, native.vocab_size)
        made = cls(native, names, infill)
        if ending is None or made._ends_with(ending):
            return made
        native = make("from_gguf", *arguments, {**numbers, "eos": native.id(ending), "add_eos": 1})
        return cls(native, names, infill)

    def _ends_with(self, token: str) -> bool:
        """Whether every text ends with this token."""
        id = self.id(token)
        if id is None:
            raise InputError("tokenizer", "must be a token of the vocabulary", field="ending", given=token)
        return self.encode("")[-1:] == [id]

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, parse_added: bool = True
    ) -> list[int]:
        """The ids of `text`, with the model's special tokens around them unless `add_special` is False.

        With `parse_added=False` no added token is found, special or not.
        """
        return self._native.encode(text, add_special, parse_special, parse_added)

    def encode_prompt(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a raw prompt. Special tokens written in it are found, unless `parse_special` is False.

        The bos token is not added to a prompt that already begins with it.
        """
        ids = self.encode(text, add_special=add_special, parse_special=parse_special)
        if self.bos_id is None or not add_special or ids[:2] != [self.bos_id] * 2:
            return ids
        return ids[1:] if self.encode("")[:1] == [self.bos_id] else ids

    def encode_pair(
        self, first: str, second: str, *, add_special: bool = True, parse_special: bool = False
    ) -> tuple[list[int], list[int]]:
        """Ids of two texts joined as the model expects them, and the token type of each id."""
        return self._native.encode_pair(first, second, add_special, parse_special)

    def encode_offsets(
        self,
        first: str,
        second: str | None = None,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        unit: Literal["characters", "bytes"] = "characters",
    ) -> Located:
        """The ids of a text or a pair, and the place of each in its text: `text[start:end]`, or bytes of its UTF-8.

        Offsets equal those of the tokenizers library: a token that is part of a character spans all of it, and spaces
        around a word are included if the model's file says so.
        """
        if unit not in ("characters", "bytes"):
            raise InputError("encode_offsets", "must be 'characters' or 'bytes'", field="unit", given=unit)
        return Located(*self._native.encode_located(first, second, add_special, parse_special, unit == "characters"))

    def encode_within(
        self,
        limit: int,
        first: str,
        second: str | None = None,
        *,
        side: Literal["left", "right"] = "right",
        parse_special: bool = False,
    ) -> Fitted:
        """At most `limit` ids, special tokens included; tokens are dropped at the given side of a text.

        Of two texts the longer one is cut first.
        """
        template = self._native.template(second is not None)
        room = limit - sum(id >= 0 for id, _ in template)
        if side not in ("left", "right"):
            raise InputError("encode_within", "must be 'left' or 'right'", field="side", given=side)
        if room < 0:
            least = limit - room
            raise InputError(
                "encode_within", f"must be {least} or more, for the special tokens", field="limit", given=limit
            )
        bodies = [self.encode(text, add_special=False, parse_special=parse_special) for text in (first, second or "")]
        kept = _fit(len(bodies[0]), len(bodies[1]), room)
        cut = [ids[len(ids) - size :] if side == "left" else ids[:size] for ids, size in zip(bodies, kept)]
        parts = [([id] if id >= 0 else cut[-1 - id], type) for id, type in template]
        ids = [id for part, _ in parts for id in part]
        types = [type for part, type in parts for _ in part]
        return Fitted(ids, types, (len(bodies[0]) - kept[0], len(bodies[1]) - kept[1]))

    def encode_batch(
        self, texts: Iterable[str], *, add_special: bool = True, parse_special: bool = False, threads: int = 1
    ) -> list[npt.NDArray[np.int32]]:
        """One int32 array per text, computed by at most `threads` threads without the GIL."""
        if not 1 <= threads <= 256:
            raise InputError("encode_batch", "must be 1 to 256", field="threads", given=threads)
        return self._native.encode_batch(list(texts), add_special, parse_special, threads)

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        import numpy as np

        try:
            array = np.ascontiguousarray(ids, dtype=np.int32)
        except (OverflowError, TypeError, ValueError) as error:
            raise InputError("decode", f"must be a list of integers ({error})", field="ids", given=ids) from error
        if array.ndim != 1:
            raise InputError("decode", f"must be one list of integers, not of shape {array.shape}", field="ids")
        return self._native.decode(array, skip_special)

    def stream(self, *, skip_special: bool = True) -> Stream:
        """A decoder that takes one id at a time."""
        return Stream(self._native.stream(skip_special))

    @property
    def vocab_size(self) -> int:
        """One past the largest id."""
        return self._native.vocab_size

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens flagged special."""
        return frozenset(self._native.special_ids())

    @property
    def added_tokens(self) -> list[tuple[str, int, bool]]:
        """(text, id, special) of every added token."""
        return self._native.added_tokens()

    def token(self, id: int) -> str | None:
        """The token as the vocabulary writes it; None for an id without one."""
        return self._native.token(id)

    def token_bytes(self) -> list[bytes]:
        """The bytes that each id adds inside a text: not always whole characters, empty for an id without a token."""
        return self._native.token_bytes()

    def id(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it."""
        return self._native.id(token)


def _fit(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay if they share `room`: the longer is cut first, down to the other's length."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    long = room - short
    return (short, long) if first <= second else (long, short)


def file_in(folder: Path) -> Path:
    """The file of a folder that says what the tokenizer is."""
    for name in _FILES:
        if (folder / name).is_file() and (name != "vocab.json" or (folder / "merges.txt").is_file()):
            return folder / name
    raise NotFoundError("tokenizer", f"the folder {folder.name} has none of {', '.join(_FILES)}")


def merged_json(path: Path, settings: Mapping[str, Any]) -> bytes:
    """vocab.json and merges.txt as one tokenizer.json."""
    from weft.text import merges

    vocab, lines, added = merges.files_beside(path.parent)
    for file in (vocab, lines):
        if not file.is_file():
            raise NotFoundError("tokenizer", f"{path.name} needs {file.name} beside it, which is missing")
    extra = read(added, SIDE_FILE_LIMIT) if added.is_file() else None
    return merges.tokenizer_json(read(vocab, TOKENIZER_LIMIT), read(lines, TOKENIZER_LIMIT), extra, settings)


def _from_json(
    content: bytes, file: str, settings: Mapping[str, Any], tokens: Mapping[str, str | None]
) -> _native.Tokenizer:
    """A tokenizer.json with bos and eos around a text as the configuration says.

    A flag whose token is missing is ignored: Qwen's files have add_bos_token but no bos, and their own rule for the
    end. Without its flag, eos is not added, and bos only if the file's own rule adds it.
    """
    named = {name: tokens.get(name) or "" for name in ("bos", "eos")}
    flags = {name: settings.get(f"add_{name}_token") for name, token in named.items() if token}
    stated = {name: wanted for name, wanted in flags.items() if isinstance(wanted, bool)}
    if not stated:
        return make("from_json", content, file, None)
    if named["bos"] and "bos" not in stated:
        own = make("from_json", content, file, None)
        stated["bos"] = own.id(named["bos"]) in own.encode("", True, False, True)[:1]
    bos, eos = (token if stated.get(name) else "" for name, token in named.items())
    return make("from_json", content, file, (bos, eos))


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(256)


def _from_vocab(path: Path, settings: Mapping[str, Any]) -> Any:
    text = read(path, TOKENIZER_LIMIT)
    names = {
        key: named(settings, key) or default
        for key, default in [("unk", "[UNK]"), ("cls", "[CLS]"), ("sep", "[SEP]"), ("pad", "[PAD]"), ("mask", "[MASK]")]
    }
    lines = set(text.split(b"\n"))
    special = [token for token in names.values() if token.encode() in lines or token.encode() + b"\r" in lines]
    lower, cjk = flag(settings, "do_lower_case", True), flag(settings, "tokenize_chinese_chars", True)
    strip = flag(settings, "strip_accents", lower)
    return make("from_vocab", text, lower, strip, cjk, names["unk"], names["cls"], names["sep"], special)
