"""A tokenizer of bytes and a few longer tokens, for tests of grammars that need no model's vocabulary."""

from collections.abc import Iterable

from weft.generate.grammar import Matcher, Vocabulary

LONGER = [b'{"', b'":', b'", "', b"},", b"  ", b"\n  ", b"true", b"false", b"null", b"00", b"12", b"name", "é".encode()]
EOS, PAD = 256 + len(LONGER), 257 + len(LONGER)


class ByteTokenizer:
    """What a Vocabulary asks of a tokenizer. Ids: the bytes, LONGER, EOS, PAD."""

    special_ids = frozenset((EOS, PAD))

    def token_bytes(self) -> list[bytes]:
        return [*(bytes([byte]) for byte in range(256)), *LONGER, b"<eos>", b"<pad>"]

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """The longest token at each place."""
        data, ids = text.encode(), []
        by_length = sorted(range(256, EOS), key=lambda id: -len(LONGER[id - 256]))
        while data:
            id = next((id for id in by_length if data.startswith(LONGER[id - 256])), data[0])
            ids.append(id)
            data = data[len(LONGER[id - 256]) if id >= 256 else 1 :]
        return ids


def byte_vocabulary(size: int = PAD + 3) -> Vocabulary:
    return Vocabulary(ByteTokenizer(), size, [EOS])  # type: ignore[arg-type]


def accepts(matcher: Matcher, ids: Iterable[int]) -> bool:
    """Whether a fresh matcher takes all of `ids`, one after another, and may end there."""
    for id in ids:
        if matcher.allowed([id]) == 0:
            return False
        matcher.advance(id)
    return matcher.accepting
