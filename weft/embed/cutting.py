"""Texts to ids that fit a model: special tokens, truncation, and windows over texts that are too long."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.errors import InputError, TooLongError
from weft.runtime import Tokens

if TYPE_CHECKING:
    import numpy as np

    from weft.text import Tokenizer

TRUNCATIONS = ("error", "head", "tail", "chunk")
OVERLAP = 64  # tokens that a window shares with the one before it; at most half of a window


class TokenIds(NamedTuple):
    """The ids of each text, int32 [n], and how many tokens of each were cut off."""

    ids: list[np.ndarray]
    dropped: list[int]


class Sequences(NamedTuple):
    """Ids of n texts, each text one sequence or several windows: `ids[starts[i]:starts[i + 1]]` are those of text i."""

    ids: list[np.ndarray]
    starts: np.ndarray  # int64 [n + 1]
    dropped: np.ndarray  # int32 [n]

    @classmethod
    def of(cls, ids: Sequence[np.ndarray]) -> Sequences:
        """One sequence for each text, nothing cut."""
        import numpy as np

        return cls(list(ids), np.arange(len(ids) + 1), np.zeros(len(ids), np.int32))

    def first(self, texts: int) -> Sequences:
        """The sequences of the first `texts` texts."""
        starts = self.starts[: texts + 1]
        return Sequences(self.ids[: starts[-1]], starts, self.dropped[:texts])

    @property
    def tokens(self) -> np.ndarray:
        """How many tokens are computed for each text, int32 [n]."""
        import numpy as np

        if not self.ids:
            return np.zeros(0, np.int32)
        lengths = np.fromiter(map(len, self.ids), np.int32, len(self.ids))
        return lengths if len(self.ids) == len(self.dropped) else np.add.reduceat(lengths, self.starts[:-1])


def check_truncate(mode: str) -> str:
    if mode not in TRUNCATIONS:
        raise InputError("embed", f"must be one of {', '.join(TRUNCATIONS)}", given=mode, field="truncate")
    return mode


class Cutter:
    """Texts to ids by one tokenizer; no sequence is longer than `limit`.

    If prompts are not pooled, a sequence records how many of its first tokens belong to the prompt. `lower` converts
    texts to lower case before they are tokenized. A special token is recognised in a prompt, and with `parse_special`
    in a text too.
    """

    def __init__(
        self,
        tokenizer: Callable[[], Tokenizer],
        limit: int,
        *,
        prompt_pooled: bool = True,
        lower: bool = False,
        parse_special: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self.limit = limit
        self._prompt_pooled = prompt_pooled
        self._lower = lower
        self._parse_special = parse_special

    def token_ids(self, texts: Sequence[str], before: str, mode: str) -> TokenIds:
        """One sequence for each text, with `before` in front of it."""
        import numpy as np

        if mode == "chunk":
            what = "cannot be used for ids, since it makes several sequences of one text"
            raise InputError("embed", what, given=mode, field="truncate", advice="use encode or embed")
        encoded = self._encode(texts, before)
        dropped = [0] * len(encoded)
        for i, ids in enumerate(encoded):
            if len(ids) > self.limit:
                encoded[i] = self._cut(self._allowed(i, ids, mode), before, mode)
                dropped[i] = len(ids) - len(encoded[i])
        return TokenIds(self._marked([np.asarray(ids, np.int32) for ids in encoded], before), dropped)

    def sequences(self, texts: Sequence[str], before: str, mode: str) -> Sequences:
        """The sequences of each text; "chunk" cuts a long one into windows, each with `before` in front of it."""
        import numpy as np

        if mode != "chunk":
            found = self.token_ids(texts, before, mode)
            return Sequences(found.ids, np.arange(len(texts) + 1), np.asarray(found.dropped, np.int32))
        encoded = self._encode(texts, before)
        windows: list[list[np.ndarray]] = [
            [np.asarray(ids, np.int32)] if len(ids) <= self.limit else list(self._windows(self._cased(text), before))
            for ids, text in zip(encoded, texts)
        ]
        starts = np.cumsum([0, *map(len, windows)])
        return Sequences(
            self._marked([ids for some in windows for ids in some], before), starts, np.zeros(len(texts), np.int32)
        )

    def _cut(self, ids: Sequence[int], before: str, mode: str) -> np.ndarray:
        """The ids of `before` and a text, cut to `limit`: the text loses its end or its beginning; `before` and the
        special tokens around both stay."""
        import numpy as np

        front, back = self._frame
        prompt, room = self._room(before)
        inner = list(ids)[len(front) : len(ids) - len(back)]
        kept = inner[: len(prompt) + room] if mode == "head" else [*prompt, *inner[len(inner) - room :]]
        return np.asarray([*front, *kept, *back], np.int32)

    def _room(self, before: str) -> tuple[list[int], int]:
        """The tokens of a prompt, and how many tokens of a text fit beside them."""
        whole = self._cased(before)
        prompt = self._tokenizer().encode(whole, add_special=False, parse_special=True) if before else []
        room = self.limit - len(prompt) - sum(map(len, self._frame))
        if room < 1:
            raise TooLongError(
                "embed",
                f"the prompt has {len(prompt)} tokens and leaves no room for a text, the model takes {self.limit}",
                advice="use a shorter one",
                length=len(prompt),
                limit=self.limit,
            )
        return prompt, room

    def _marked(self, sequences: list[np.ndarray], before: str) -> list[Any]:
        if self._prompt_pooled or not before:
            return sequences
        tokenizer = self._tokenizer()
        prompt = tokenizer.encode(self._cased(before), parse_special=True)
        length = len(prompt) - (prompt[-1] in tokenizer.special_ids)
        return [Tokens(ids, skip=length) for ids in sequences]

    def _encode(self, texts: Sequence[str], before: str) -> list[Any]:
        whole = [self._cased(before + text) for text in texts]
        if self._parse_special:
            return list(self._tokenizer().encode_batch(whole, parse_special=True))
        held = self._specials(self._cased(before)) if before else 0
        for i, text in enumerate(whole if held else ()):
            if self._specials(text) != held:
                raise InputError(
                    "embed",
                    "contains a special token of the model, which would be read as one because the prompt has one too",
                    field="text",
                    index=i,
                    advice="remove it from the text",
                )
        return list(self._tokenizer().encode_batch(whole, parse_special=held > 0))

    def _specials(self, text: str) -> int:
        """How many special tokens `text` contains."""
        return len(self._special_words.findall(text))

    @cached_property
    def _special_words(self) -> re.Pattern[str]:
        words = (re.escape(word) for word, _, special in self._tokenizer().added_tokens if special)
        return re.compile("|".join(sorted(words, key=len, reverse=True)) or r"(?!)")

    def _cased(self, text: str) -> str:
        if not self._lower:
            return text
        # Letter by letter, as the tokenizers library does: str.lower() would turn Σ at the end of a word into ς.
        return "".join(map(str.lower, text)) if "Σ" in text else text.lower()

    def _allowed(self, i: int, ids: Sequence[int], mode: str) -> Sequence[int]:
        if mode != "error":
            return ids
        raise TooLongError(
            "embed",
            f"has {len(ids)} tokens, the model takes {self.limit}",
            field="text",
            index=i,
            advice="shorten it, or use truncate='head', 'tail' or 'chunk'",
            length=len(ids),
            limit=self.limit,
        )

    def _windows(self, text: str, before: str) -> Iterator[np.ndarray]:
        """Windows of equal length, the last may be shorter; each shares OVERLAP tokens with the one before it."""
        import numpy as np

        front, back = self._frame
        prompt, room = self._room(before)
        inner = self._tokenizer().encode(text, add_special=False, parse_special=self._parse_special)
        stride = room - min(OVERLAP, room // 2)
        for start in range(0, max(1, len(inner) - room + stride), stride):
            yield np.asarray([*front, *prompt, *inner[start : start + room], *back], np.int32)

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer puts before and after a text."""
        tokenizer = self._tokenizer()
        plain, whole = tokenizer.encode("a", add_special=False), tokenizer.encode("a")
        at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
        return whole[:at], whole[at + len(plain) :]


def joined(vectors: np.ndarray, sequences: Sequences, normalise: bool) -> np.ndarray:
    """The vector of each text: the mean of its windows' vectors, weighted by tokens, and normalised if asked."""
    import numpy as np

    starts = sequences.starts
    if len(vectors) == len(starts) - 1:
        return vectors
    weights = np.array([len(ids) for ids in sequences.ids], np.float64)
    sums = np.add.reduceat(vectors * weights[:, None], starts[:-1], axis=0)
    means = sums / np.add.reduceat(weights, starts[:-1])[:, None]
    if normalise:
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    found = means.astype(np.float32)
    alone = np.diff(starts) == 1
    found[alone] = vectors[starts[:-1][alone]]  # the same bits as without windows
    return found
