"""SentencePiece models: scores decide merges, bytes stand for unknown characters, and a hostile file is an error."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from weft.errors import FormatError, UnsupportedError, WeftError
from weft.text.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "a", "b", "ab", "▁a", "▁▁", "aa", "bb"]
SCORES = [-9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -4.0, -4.0]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
TYPES = [2, 3, 3] + [6] * 256 + [1] * len(PIECES)


def gguf(**extra: Any) -> dict[str, Any]:
    keys = {
        "model": "llama",
        "tokens": TOKENS,
        "scores": [0.0] * 259 + SCORES,
        "token_type": TYPES,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **extra,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def field(number: int, value: int | bytes | float) -> bytes:
    """One field of a protobuf message: a varint, bytes or a float."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def model_file(kind: int = 2, normaliser: bytes = b"", user: tuple[str, ...] = ()) -> bytes:
    """A SentencePiece file of the pieces above, and user-defined ones behind them; spaces are not collapsed unless
    `normaliser` says so."""
    rows = [*zip(TOKENS, [0.0] * 259 + SCORES, TYPES), *((token, 0.0, 4) for token in user)]
    pieces = [field(1, field(1, token.encode()) + field(2, score) + field(3, type)) for token, score, type in rows]
    trainer = field(2, field(3, kind) + field(35, 1) + field(41, 1) + field(42, 2))
    return b"".join(pieces) + trainer + field(3, field(4, 0) + normaliser)


def load(folder: Path, content: bytes) -> Tokenizer:
    (folder / "tokenizer.model").write_bytes(content)
    return Tokenizer.from_file(folder)


def names(tokenizer: Tokenizer, text: str, **options: bool) -> list[str | None]:
    return [tokenizer.token(id) for id in tokenizer.encode(text, add_special=False, **options)]


def test_the_highest_score_merges_first() -> None:
    tokenizer = Tokenizer.from_gguf(gguf())
    assert names(tokenizer, "ab") == ["▁", "ab"]
    assert names(tokenizer, "aab  b") == ["▁a", "ab", "▁▁", "b"]


def test_a_character_without_a_piece_is_its_bytes_and_comes_back() -> None:
    tokenizer = Tokenizer.from_gguf(gguf())
    assert names(tokenizer, "a€") == ["▁a", "<0xE2>", "<0x82>", "<0xAC>"]
    assert tokenizer.decode(tokenizer.encode("a€ b")) == "a€ b"


def test_gguf_adds_bos_and_a_space_unless_told_not_to() -> None:
    assert Tokenizer.from_gguf(gguf()).encode("b")[0] == 1
    assert names(Tokenizer.from_gguf(gguf(add_space_prefix=False)), "b") == ["b"]
    assert Tokenizer.from_gguf(gguf(add_bos_token=False, add_eos_token=True)).encode("b")[-1] == 2


def test_special_text_stays_text_in_pieces() -> None:
    tokenizer = Tokenizer.from_gguf(gguf())
    assert 2 not in tokenizer.encode("a</s>")
    assert 2 in tokenizer.encode("a</s>", parse_special=True)


def test_the_bytes_of_pieces_are_those_in_the_middle_of_a_text() -> None:
    tokenizer = Tokenizer.from_gguf(gguf())
    ids = tokenizer.encode("aé😀", add_special=False)
    assert b"".join(tokenizer.token_bytes()[id] for id in ids).lstrip() == "aé😀".encode()


def test_a_stream_of_bytes_waits_for_the_whole_character() -> None:
    stream = Tokenizer.from_gguf(gguf()).stream()
    assert [stream.add(3 + byte) for byte in "€".encode()] == ["", "", "€"]
    assert [stream.add(3 + 0xE2), stream.add(3 + 0x41), stream.finish()] == ["", "\ufffdA", ""]


@pytest.mark.parametrize("kind", [1, 2])
def test_a_long_text_without_spaces_comes_back(kind: int, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, model_file(kind))
    ids = tokenizer.encode("ba" * (1 << 18))
    assert tokenizer.decode(ids) == "ba" * (1 << 18)


def test_a_model_file_and_gguf_give_the_same_ids(tmp_path: Path) -> None:
    tokenizer, other = load(tmp_path, model_file()), Tokenizer.from_gguf(gguf())
    for text in ["", "ab", " ab  aab", "é b", "bbb aaa"]:
        assert tokenizer.encode(text) == other.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", [1, 2])
def test_user_defined_pieces_are_found_in_the_text_with_its_spaces_marked(kind: int, tmp_path: Path) -> None:
    """As SentencePiece does: the mark before a text stays, and a piece of marks stands for spaces."""
    tokenizer = load(tmp_path, model_file(kind, user=("<sep>", "▁▁▁")))
    assert names(tokenizer, "<sep>b") == ["▁", "<sep>", "b"]
    assert names(tokenizer, "b   b") == ["▁", "b", "▁▁▁", "b"]
    assert names(tokenizer, "a<sep><sep>") == ["▁a", "<sep>", "<sep>"]
    assert tokenizer.decode(tokenizer.encode("a   <sep>b")) == "a   <sep>b"


def test_a_model_file_cut_anywhere_is_an_error_or_another_model(tmp_path: Path) -> None:
    whole = model_file()
    for cut in range(0, len(whole), 13):
        try:
            load(tmp_path, whole[:cut])
        except WeftError:
            continue
        assert cut > 0
    with pytest.raises(FormatError, match="ends inside"):
        load(tmp_path, whole[:-1])


def test_a_model_type_weft_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="model_type 3"):
        load(tmp_path, model_file(kind=3))


@pytest.mark.parametrize(
    "extra, match",
    [
        ({"scores": [0.0]}, "scores"),
        ({"scores": [0.0] * 259 + [float("nan")] * 8}, "not finite"),
        ({"tokens": ["<unk>", "<s>", "</s>", "<0xZZ>", *TOKENS[4:]]}, "type byte"),
    ],
)
def test_wrong_pieces_are_named(extra: dict[str, Any], match: str) -> None:
    with pytest.raises(FormatError, match=match):
        Tokenizer.from_gguf(gguf(**extra))


def unigram_json(table: bytes) -> dict[str, Any]:
    charsmap = base64.b64encode(table).decode()
    return {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]},
    }


@pytest.mark.parametrize("seed", range(40))
def test_a_random_table_of_characters_is_an_error_or_harmless(seed: int, tmp_path: Path) -> None:
    """Bounds of the double array: run under a sanitizer this shows reads outside it."""
    import random

    rng = random.Random(seed)
    units = [rng.getrandbits(32) & rng.choice([0xFFFFFFFF, 0x3FFFF]) for _ in range(512)]
    for byte in range(256):  # labels that match, so that walks go deep
        units[byte] = byte | rng.getrandbits(1) << 8 | rng.randrange(600) << 10
    trie = struct.pack("<512I", *units)
    table = struct.pack("<I", len(trie)) + trie + b"x\0yy\0"
    (tmp_path / "tokenizer.json").write_text(json.dumps(unigram_json(table)))
    try:
        tokenizer = Tokenizer.from_file(tmp_path)
        tokenizer.encode("".join(map(chr, range(1, 700))))
    except FormatError:
        pass


@pytest.mark.parametrize("table", [b"\1", b"\xff\xff\xff\xff", b"\4\0\0\0ab", b"\3\0\0\0abc", b"\4\0\0\0abcd\xff"])
def test_a_malformed_table_of_characters_is_a_format_error(table: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(unigram_json(table)))
    with pytest.raises(FormatError, match="charsmap"):
        Tokenizer.from_file(tmp_path)


# U+0343 becomes "a". What tokenizers 0.23.3 gives: a grapheme that begins with it is replaced whole.
GRAPHEMES = {
    "\u0343b": [1, 2],
    "\u0343\u033ab": [1, 2],
    "\U000f9278\u0343\u033ab": [0, 1, 0, 2],
    "\u0378\u0343\u033ab": [0, 1, 0, 2],
    "\u0343\U0001f3fbb": [1, 0, 2],
    "\u0600\u0343\u033ab": [0, 1, 0, 2],
    "\n\u0343\u033ab": [0, 1, 2],
    "\u200b\u0343\u033ab": [0, 1, 2],
    "\u200d\u0343b": [0, 1, 2],
    "\u0343b\u0343\u0343": [1, 2, 1, 1],
}


@pytest.mark.parametrize("text, ids", GRAPHEMES.items(), ids=ascii)
def test_characters_are_replaced_grapheme_by_grapheme(text: str, ids: list[int], tmp_path: Path) -> None:
    units = [0] * 1024
    units[0], units[204], units[78], units[79] = 1 << 10, 1 << 10 | 0xCD, 1 << 10 | 1 << 8 | 0x83, 1 << 31
    table = struct.pack("<I", 4096) + struct.pack("<1024I", *units) + b"a\0"
    (tmp_path / "tokenizer.json").write_text(json.dumps(unigram_json(table)))
    assert Tokenizer.from_file(tmp_path).encode(text, add_special=False) == ids
