"""A model's tokens as a grammar uses them: their bytes, and which of them are special."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.generate.grammar.keys import KeyTokens

if TYPE_CHECKING:
    from weft.generate.grammar.matcher import Cache
    from weft.text.tokenizer import Tokenizer

Mask = npt.NDArray[np.uint32]

MAX_TOKENS = 1 << 22


class Vocabulary:
    """The tokens of one model, made once and used for every grammar.

    `vocab_size` is the width of the model's logits. Ids that the tokenizer does not have are never allowed. Special
    tokens match no text. `eos_ids` are allowed where the grammar lets the text end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        from weft.generate.grammar.matcher import Cache

        if not 0 < vocab_size <= MAX_TOKENS:
            raise InputError("grammar", f"must be 1 to {MAX_TOKENS}", field="vocab_size", given=vocab_size)
        if not eos_ids or not all(0 <= id < vocab_size for id in eos_ids):
            wanted = f"must be one or more token ids from 0 to {vocab_size - 1}"
            raise InputError("grammar", wanted, field="eos_ids", given=list(eos_ids)[:8])
        known = tokenizer.token_bytes()[:vocab_size]
        self.size = vocab_size
        self.eos_ids = tuple(dict.fromkeys(eos_ids))
        self.special_ids = sorted({id for id in tokenizer.special_ids if id < vocab_size} | set(self.eos_ids))
        self.tokens: list[bytes] = known + [b""] * (vocab_size - len(known))
        self.words = -(-vocab_size // 32)
        self.cache: Cache = Cache()
        self._tokenizer = tokenizer
        self._special = frozenset(self.special_ids)

    @cached_property
    def native(self) -> Any:
        """llguidance's tokenizer."""
        import llguidance

        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Encoding(self, self._tokenizer)),
            n_vocab=self.size,
            eos_token=list(self.eos_ids),
        )

    def text_of(self, id: int) -> bytes:
        """The bytes that a token adds to a text with special tokens written out."""
        return (self._tokenizer.token(id) or "").encode() if id in self._special else self.tokens[id]

    def beginning_with(self, characters: bytes) -> Mask:
        """The tokens whose first byte is one of `characters`, one bit each."""
        special = set(self.special_ids)
        ids = [id for id, token in enumerate(self.tokens) if token[:1] and token[0] in characters and id not in special]
        mask = np.zeros(self.words, np.uint32)
        np.bitwise_or.at(mask, np.array(ids) // 32, np.left_shift(np.uint32(1), np.array(ids, np.uint32) % 32))
        return mask

    @cached_property
    def numbers(self) -> Mask:
        """Tokens that can continue a number."""
        return self.beginning_with(b"0123456789.eE+-")

    @cached_property
    def keys(self) -> KeyTokens:
        """Tokens that can complete a key of JSON."""
        special = set(self.special_ids)
        return KeyTokens([b"" if id in special else token for id, token in enumerate(self.tokens)])

    @cached_property
    def spaces(self) -> Mask:
        """Tokens that can continue white space."""
        return self.beginning_with(b" \n\r\t")


class _Encoding:
    """The tokenizer interface of llguidance, which calls it to encode text that must come next."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = vocabulary.eos_ids[0]
        self._tokenizer = tokenizer
        self._special = set(vocabulary.special_ids)

    def __call__(self, text: bytes) -> list[int]:
        ids = self._tokenizer.encode(text.decode("utf-8", "replace"), add_special=False)
        if b"".join(map(self._text, ids)) == text:
            return ids
        return self._greedy(text)  # the tokenizer normalises text, or puts a space before it

    def _text(self, id: int) -> bytes:
        return self.tokens[id] if id < len(self.tokens) and id not in self._special else b"\xff"

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {token: id for id, token in enumerate(self.tokens) if token and id not in self._special}

    def _greedy(self, text: bytes) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + 32), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                return ids
            ids.append(self._ids[text[start:end]])
            start = end
        return ids
